//! Loads a model from safetensors files with several processes, one for each GPU, which exchange bytes with NCCL.
//!
//! usage: load_ranks [--cufile|--posix] [--all|--balanced] CHECKPOINT [RANKS]
//!
//! The example starts itself once for each rank. There are RANKS of them, or one for each GPU. Each rank loads three
//! times, and prints the time and GB/s of model. The first load also sets up what the later ones reuse, and allocates the
//! memory that they load into. Placements,
//! the model that is made if there is none, and the comparison are those of the example load_placed.
//!
//! The first process creates the id of the group, and passes it to the others in an environment variable. A program
//! on several hosts can use a file, a socket or MPI instead.

mod common;

use cufile::IoBuf;
use std::env;
use std::process::{Child, Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use common::placed::{expected, placement};
use common::{Arguments, Result, require_same, save_small};
use gpufile::Engine;
use gpufile::formats::safetensors::Checkpoint;
use gpufile::ranks::{RankGroup, UniqueId};

/// The variable with the number of this rank, that of all ranks, and the id.
const RANK: &str = "GPUFILE_EXAMPLE_RANK";

fn main() -> ExitCode {
    common::run("[--cufile|--posix] [--all|--balanced] CHECKPOINT [RANKS]", |arguments| {
        match env::var(RANK) {
            Ok(variable) => load(&arguments, &variable),
            Err(_) => start(&arguments),
        }
    })
}

fn start(arguments: &Arguments) -> Result {
    let path = arguments.path(0)?;
    if !path.exists() {
        save_small(path)?;
        println!("made {}, which was not there", path.display());
    }
    let gpus = || Ok::<_, gpufile::Error>(Engine::global().cuda()?.device_count()? as usize);
    let ranks = match arguments.path(1).ok().and_then(|word| word.to_str()) {
        Some(word) => word.parse().map_err(|error| format!("{word} ranks: {error}"))?,
        None => gpus().map_err(|error| format!("no GPUs to use: {error}"))?,
    };
    let id: String = UniqueId::new()?.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut running = Vec::new();
    for rank in 0..ranks {
        let mut command = Command::new(env::current_exe()?);
        command.args(env::args().skip(1)).env(RANK, format!("{rank} {ranks} {id}"));
        running.push((rank, command.spawn()?));
    }
    wait(running)
}

/// Waits for the ranks. If one fails, the others end soon by themselves, because it tells them. If it was killed, they
/// would wait for it.
fn wait(mut running: Vec<(usize, Child)>) -> Result {
    const GRACE: Duration = Duration::from_secs(5);
    let mut failed: Option<(Instant, String)> = None;
    while !running.is_empty() {
        let mut still = Vec::new();
        for (rank, mut child) in running {
            match child.try_wait()? {
                None => still.push((rank, child)),
                Some(status) if status.success() => {}
                Some(status) => {
                    failed.get_or_insert_with(|| (Instant::now(), format!("rank {rank}: {status}")));
                }
            }
        }
        if failed.as_ref().is_some_and(|(since, _)| since.elapsed() > GRACE) {
            for (_, child) in &mut still {
                child.kill()?;
            }
        }
        running = still;
        thread::sleep(Duration::from_millis(5));
    }
    failed.map_or(Ok(()), |(_, text)| Err(text.into()))
}

fn load(arguments: &Arguments, variable: &str) -> Result {
    const LOADS: usize = 3;
    let [rank, ranks, id] = variable.split(' ').collect::<Vec<_>>()[..] else {
        return Err(format!("{RANK}={variable}: expected a rank, the number of ranks and an id").into());
    };
    let (rank, ranks) = (rank.parse::<usize>()?, ranks.parse()?);
    let mut bytes = [0; 128];
    for (byte, digits) in bytes.iter_mut().zip(id.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(str::from_utf8(digits)?, 16)?;
    }
    let device = Engine::global().cuda()?.device(rank as u32)?;
    let mut group = RankGroup::join(&device, &UniqueId::from_bytes(bytes), rank, ranks)?;

    let checkpoint = Checkpoint::open_with([arguments.path(0)?], &arguments.options())?;
    let placement = placement(arguments);
    let mut memory = None;
    for number in 1..=LOADS {
        let start = Instant::now();
        let loaded = checkpoint.load().placed(&placement).reuse(memory.take()).by_rank(&mut group)?;
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "rank {rank}, load {number}: {} tensors and slices, {} bytes in {seconds:.6} seconds, {:.2} GB/s of model",
            loaded.iter().len(),
            loaded.buffer().len_bytes(),
            checkpoint.len_bytes() as f64 / seconds / 1e9
        );
        if number == LOADS {
            for part in loaded.iter() {
                let whole = checkpoint.read_tensor(part.info.name)?;
                let mut bytes = vec![0; part.range.len()];
                loaded.buffer().copy_to_host(part.range.start, &mut bytes)?;
                require_same(&bytes, &expected(&part, &whole), part.info.name)?;
            }
            println!("rank {rank}: contents match");
        }
        memory = Some(loaded.into_buffer());
    }
    Ok(())
}
