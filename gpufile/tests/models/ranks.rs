//! Tests of models that several processes load together, each to its own GPU.
//!
//! Each rank is this program again. It runs the test of the same name, with variables that make it a rank.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{CString, c_char};
use std::fs;
use std::io::ErrorKind;
use std::mem;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use crate::placements::{check_alignment, expected, mixed};
use cufile::Driver;
use gpufile::formats::safetensors::{self, Checkpoint, PlacedTensors, Placement, Share, TensorData};
use gpufile::formats::{Dtype, Error, SaveOptions};
use gpufile::ranks::{RankError, RankGroup, UniqueId};
use gpufile::{Engine, IoBuf, OpenOptions, RoutePolicy};
use tempfile::TempDir;
use testkit::bed::pattern;
use testkit::in_flight::soon;
use testkit::{Emulator, this_test};

const MODEL: [(&str, Dtype, &[u64]); 12] = [
    ("norm", Dtype::F32, &[33]),
    ("packed", Dtype::F4, &[6, 2]),
    ("none", Dtype::F64, &[0, 4]),
    ("step", Dtype::I64, &[]),
    ("odd", Dtype::U8, &[2, 3]),
    ("column", Dtype::F16, &[1003, 1]),
    ("deep", Dtype::I16, &[7, 3, 11, 5]),
    ("wide", Dtype::BF16, &[301, 4003]),
    ("thin", Dtype::F32, &[301, 9]),
    ("embed", Dtype::BF16, &[501, 3001]),
    ("mask", Dtype::Bool, &[5]),
    ("bias", Dtype::F32, &[77]),
];

/// Longer than a slow machine needs to start a process, and shorter than a test may take.
const TIMEOUT: Duration = Duration::from_secs(20);

fn contents() -> BTreeMap<&'static str, Vec<u8>> {
    let one = |(number, (name, dtype, shape)): (usize, &(&'static str, Dtype, &[u64]))| {
        let bits = shape.iter().product::<u64>() * u64::from(dtype.size_bits());
        (*name, pattern(number * 64 + (bits / 8) as usize).split_off(number * 64))
    };
    MODEL.iter().enumerate().map(one).collect()
}

/// The emulator, and the folder that all ranks see.
struct Host {
    emulator: Emulator,
    folder: TempDir,
}

impl Host {
    fn new() -> Self {
        let root = Path::new("/dev/shm");
        let folder = if root.is_dir() { TempDir::new_in(root) } else { TempDir::new() }.unwrap();
        let contents = contents();
        let tensors: Vec<_> = MODEL
            .iter()
            .map(|(name, dtype, shape)| TensorData::new(name, *dtype, shape, &contents[name]))
            .collect();
        let options = SaveOptions::new().sync(false).shard_bytes(3 << 20);
        let path = folder.path().join("model.safetensors");
        safetensors::save(&path, &tensors, &options).unwrap();
        Self { emulator: Emulator::start(), folder }
    }

    /// Starts a rank of the calling test. `commands` are those of the emulator.
    fn start(&self, rank: usize, ranks: usize, commands: &str) -> Child {
        let mut command = this_test();
        for variable in ["CUFILE_LIBRARY", "CUDART_LIBRARY", "CUDA_LIBRARY", "NCCL_LIBRARY"] {
            command.env(variable, self.emulator.path());
        }
        command.env("CUFILE_EMULATOR", format!("gpus 8;{commands}"));
        command.env("CUFILE_TEST_RANK", rank.to_string()).env("CUFILE_TEST_RANKS", ranks.to_string());
        command.env("CUFILE_TEST_FOLDER", self.folder.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs all ranks of a test to their end. Returns what each printed, or the signal that killed it.
    fn run(&self, ranks: usize, commands: impl Fn(usize) -> &'static str) -> Vec<String> {
        fs::remove_file(self.folder.path().join("id")).ok();
        let mut children: Vec<_> = (0..ranks).map(|rank| self.start(rank, ranks, commands(rank))).collect();
        let start = Instant::now();
        let mut is_late = false;
        while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) && !is_late {
            thread::sleep(Duration::from_millis(2));
            is_late = start.elapsed() > 4 * TIMEOUT;
        }
        let end = |mut child: Child| {
            if is_late {
                child.kill().unwrap();
            }
            let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            format!("{status}\n{}{}", text(stdout), text(stderr))
        };
        let outputs: Vec<_> = children.into_iter().map(end).collect();
        assert!(!is_late, "ranks hang: {outputs:#?}");
        outputs
    }

    fn pass(&self, ranks: usize) {
        for output in self.run(ranks, |_| "") {
            assert!(output.starts_with("exit status: 0\n") && output.contains("1 passed"), "{output}");
        }
    }
}

struct Rank {
    rank: usize,
    ranks: usize,
    folder: PathBuf,
    options: OpenOptions,
    checkpoint: Checkpoint,
    driver: Driver,
}

fn number<T: FromStr>(name: &str) -> Option<T> {
    env::var(name).ok()?.parse().ok()
}

impl Rank {
    fn this() -> Option<Self> {
        let rank = number("CUFILE_TEST_RANK")?;
        let folder = PathBuf::from(env::var_os("CUFILE_TEST_FOLDER").unwrap());
        let driver = Driver::open().unwrap();
        let engine = Engine::builder().driver(driver.clone()).threads(2).bounce_buffer_bytes(1 << 20).build();
        let options = OpenOptions::new().engine(&engine).policy(RoutePolicy::PosixOnly);
        let checkpoint = Checkpoint::open_with([&folder], &options).unwrap();
        let ranks = number("CUFILE_TEST_RANKS").unwrap();
        Some(Self { rank, ranks, folder, options, checkpoint, driver })
    }

    /// Joins the group. Rank 0 makes the id, and a file hands it to the others.
    fn join(&self, timeout: Duration) -> Result<RankGroup, RankError> {
        let path = self.folder.join("id");
        if self.rank == 0 {
            fs::write(self.folder.join("new id"), UniqueId::new()?.to_bytes()).unwrap();
            fs::rename(self.folder.join("new id"), &path).unwrap();
        }
        let id = loop {
            match fs::read(&path) {
                Ok(bytes) => break UniqueId::from_bytes(bytes.try_into().unwrap()),
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        };
        let device = self.driver.cuda().device(self.rank as u32).unwrap();
        RankGroup::join_within(timeout, &device, &id, self.rank, self.ranks)
    }

    /// Loads everything in batches of at least 1 MiB, the shortest piece.
    fn load(&self, group: &mut RankGroup, placement: &Placement) -> Result<PlacedTensors, Box<Error>> {
        self.checkpoint.load().placed(placement).ahead_bytes(1 << 20).by_rank(group).map_err(Box::new)
    }

    /// Checks that the contents are those that one process loads to the GPU of this rank.
    fn check(&self, loaded: &PlacedTensors, placement: &Placement) {
        let devices: Vec<_> =
            (0..self.ranks as u32).map(|gpu| self.driver.cuda().device(gpu).unwrap()).collect();
        let alone = self.checkpoint.load().placed(placement).to_devices(&devices).unwrap();
        let alone = &alone[self.rank];
        assert_eq!(loaded.buffer().device().ordinal() as usize, self.rank);
        assert_eq!(loaded.iter().len(), alone.iter().len());
        let contents = contents();
        let bytes = loaded.buffer().to_vec().unwrap();
        for (part, expected_part) in loaded.iter().zip(alone.iter()) {
            let name = part.info.name;
            assert_eq!((name, part.slice), (expected_part.info.name, expected_part.slice));
            assert!(bytes[part.range.clone()] == expected(&part, &contents[name]), "{name}");
            check_alignment(&part);
        }
    }
}

#[test]
fn every_rank_gets_its_tensors_and_slices() {
    if let Some(rank) = Rank::this() {
        let mut group = rank.join(TIMEOUT).unwrap();
        assert_eq!((group.rank(), group.ranks()), (rank.rank, rank.ranks));
        for turn in 0..5 {
            let placement = mixed(&MODEL, rank.ranks, turn);
            rank.check(&rank.load(&mut group, &placement).unwrap(), &placement);
        }
        for placement in [Placement::all(), Placement::balanced()] {
            let (mut last, len_bytes) = (None, rank.checkpoint.len_bytes());
            let load = rank.checkpoint.load().placed(&placement).watch(|progress| {
                last = Some(progress);
                ControlFlow::Continue(())
            });
            let loaded = load.by_rank(&mut group).unwrap();
            rank.check(&loaded, &placement);
            // Each byte is read by one rank, and all read about as much.
            let last = last.unwrap();
            assert_eq!(last.done_bytes, last.total_bytes);
            assert!(last.done_bytes <= len_bytes / rank.ranks as u64 + (3 << 20), "{last:?}");

            let address = loaded.buffer().as_ptr();
            let mut memory = loaded.into_buffer();
            memory.fill(0x5a).unwrap();
            let load = rank.checkpoint.load().placed(&placement).reuse([memory]);
            let again = load.by_rank(&mut group).unwrap();
            assert_eq!(again.buffer().as_ptr(), address);
            rank.check(&again, &placement);
        }
        return;
    }
    let host = Host::new();
    for ranks in [1, 2, 4, 8] {
        host.pass(ranks);
    }
}

#[test]
fn a_failing_rank_ends_the_others_with_its_error() {
    if let Some(rank) = Rank::this() {
        let mut group = rank.join(TIMEOUT).unwrap();
        let shard = rank.checkpoint.files().last().unwrap().0.path().to_owned();
        let failing = rank.ranks / 2;
        let is_failed = |error: &Error| match error {
            Error::Ranks { error: RankError::Failed { rank, .. }, .. } => *rank == failing,
            _ => false,
        };
        for turn in 0..3 {
            // This rank alone sees a shorter file: an error of its reads.
            let placement = if turn == 0 { Placement::all() } else { mixed(&MODEL, rank.ranks, turn) };
            let own = rank.folder.join(format!("rank-{}-{turn}", rank.rank));
            let name = shard.file_name().unwrap();
            fs::create_dir(&own).unwrap();
            for (file, _) in rank.checkpoint.files() {
                fs::copy(file.path(), own.join(file.path().file_name().unwrap())).unwrap();
            }
            let paths = rank.checkpoint.files().map(|(file, _)| own.join(file.path().file_name().unwrap()));
            let copies = Checkpoint::open_with(paths, &rank.options).unwrap();
            if rank.rank == failing {
                fs::File::options().write(true).open(own.join(name)).unwrap().set_len(4096).unwrap();
            }
            let load = copies.load().placed(&placement).ahead_bytes(1 << 20);
            let error = load.by_rank(&mut group).unwrap_err();
            if rank.rank == failing {
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
            } else {
                assert!(is_failed(&error), "{error}");
                assert!(error.to_string().contains("the file ends at byte 4096"), "{error}");
            }
            assert!(error.to_string().contains(name.to_str().unwrap()), "{error}");
        }
        // A rank without room, or whose callback ends the load. The group works again after each.
        let everywhere = Placement::all();
        let load = || rank.checkpoint.load().placed(&everywhere).ahead_bytes(1 << 20);
        let mut calls = 0;
        let error = load()
            .watch(|_| {
                calls += 1;
                if rank.rank == failing && calls == 2 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .by_rank(&mut group)
            .unwrap_err();
        assert_eq!(matches!(error, Error::Cancelled { .. }), rank.rank == failing, "{error}");
        assert_eq!(is_failed(&error), rank.rank != failing, "{error}");
        // All memory that the engine's staging buffers leave of the emulated GPU's 16 GiB, but for 1 MiB at most.
        let fill = || (1..).find_map(|mib| group.device().alloc((16 << 30) - (mib << 20)).ok());
        let filled = (rank.rank == failing).then(fill);
        let error = load().by_rank(&mut group).unwrap_err();
        assert_eq!(matches!(error, Error::Memory { .. }), rank.rank == failing, "{error}");
        assert_eq!(is_failed(&error), rank.rank != failing, "{error}");
        drop(filled);
        rank.check(&rank.load(&mut group, &everywhere).unwrap(), &everywhere);
        return;
    }
    for ranks in [1, 2, 4] {
        Host::new().pass(ranks);
    }
}

#[test]
fn ranks_with_other_plans_are_refused() {
    if let Some(rank) = Rank::this() {
        let mut group = rank.join(TIMEOUT).unwrap();
        let placement = if rank.rank == 2 { Placement::balanced() } else { Placement::all() };
        let error = rank.load(&mut group, &placement).unwrap_err();
        assert!(
            error.to_string().contains("rank 2 asked for other tensors or another placement than rank 0"),
            "{error}"
        );
        let error = rank.checkpoint.load().placed(&Placement::by(|_| Share::On(9))).by_rank(&mut group);
        assert!(matches!(error.unwrap_err(), Error::Format { .. }));
        let placement = Placement::all();
        rank.check(&rank.load(&mut group, &placement).unwrap(), &placement);
        return;
    }
    Host::new().pass(3);
}

#[test]
fn others_end_in_time_after_a_killed_or_stopped_rank() {
    const SHORT: Duration = Duration::from_secs(3);
    if let Some(rank) = Rank::this() {
        let mut group = rank.join(TIMEOUT).unwrap();
        let placement = Placement::all();
        rank.check(&rank.load(&mut group, &placement).unwrap(), &placement);
        drop(group);
        fs::remove_file(rank.folder.join("id")).ok();
        // All have left the first group before rank 0 makes an id for the second.
        fs::write(rank.folder.join(format!("left-{}", rank.rank)), "").unwrap();
        while (0..rank.ranks).any(|other| !rank.folder.join(format!("left-{other}")).exists()) {
            thread::sleep(Duration::from_millis(1));
        }
        let mut group = rank.join(SHORT).unwrap();
        let is_last = rank.rank + 1 == rank.ranks;
        let mut calls = 0;
        let load = rank.checkpoint.load().placed(&placement).ahead_bytes(1 << 20).watch(|_| {
            calls += 1;
            if is_last && calls == 2 {
                if rank.folder.join("stops").exists() {
                    thread::sleep(3 * SHORT);
                } else {
                    // SAFETY: takes an integer; ends this process as a crash does.
                    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                }
            }
            ControlFlow::Continue(())
        });
        let start = Instant::now();
        let error = load.by_rank(&mut group).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        let waited = start.elapsed();
        assert!(is_last || (SHORT..TIMEOUT).contains(&waited), "{waited:?}");
        let error = rank.load(&mut group, &placement).unwrap_err();
        assert!(matches!(*error, Error::Ranks { error: RankError::Ended, .. }), "{error}");
        return;
    }
    for (ranks, stops) in [(2, false), (4, false), (2, true)] {
        let host = Host::new();
        if stops {
            fs::write(host.folder.path().join("stops"), "").unwrap();
        }
        let outputs = host.run(ranks, |_| "");
        for (rank, output) in outputs.iter().enumerate() {
            let is_killed = rank + 1 == ranks && !stops;
            let start = if is_killed { "signal: 9" } else { "exit status: 0" };
            assert!(output.starts_with(start), "rank {rank}: {output}");
        }
    }
}

#[test]
fn a_panic_ends_the_group_of_its_rank() {
    const SHORT: Duration = Duration::from_millis(500);
    if let Some(rank) = Rank::this() {
        let mut group = rank.join(SHORT).unwrap();
        let placement = Placement::all();
        let is_last = rank.rank + 1 == rank.ranks;
        let load = rank.checkpoint.load().placed(&placement).ahead_bytes(1 << 20).watch(|_| {
            assert!(!is_last, "a panic in a callback");
            ControlFlow::Continue(())
        });
        let loaded = catch_unwind(AssertUnwindSafe(|| load.by_rank(&mut group).is_ok()));
        assert_eq!(loaded.is_err(), is_last);
        assert!(!loaded.unwrap_or(false), "the others lack parts");
        let error = rank.load(&mut group, &placement).unwrap_err();
        assert!(matches!(*error, Error::Ranks { error: RankError::Ended, .. }), "{error}");
        return;
    }
    for output in Host::new().run(2, |_| "") {
        assert!(output.starts_with("exit status: 0"), "{output}");
    }
}

#[test]
fn a_rank_that_never_joins_is_an_error_for_others() {
    const SHORT: Duration = Duration::from_millis(300);
    if let Some(rank) = Rank::this() {
        if rank.rank < 2 {
            let error = rank.join(SHORT).unwrap_err();
            assert!(matches!(error, RankError::TimedOut { ranks: 3, .. }), "{error}");
        }
        return;
    }
    Host::new().pass(3);
}

#[test]
fn failures_of_nccl_and_cuda_end_the_group() {
    const SHORT: Duration = Duration::from_secs(3);
    if let Some(rank) = Rank::this() {
        let placement = Placement::all();
        let text = match rank.join(SHORT) {
            Err(error) => error.to_string(),
            Ok(mut group) => {
                let error = rank.load(&mut group, &placement).unwrap_err();
                let second = rank.load(&mut group, &placement).unwrap_err();
                assert!(matches!(*second, Error::Ranks { error: RankError::Ended, .. }), "{second}");
                error.to_string()
            }
        };
        // The ranks without a fault do not hear of it, because NCCL does not tell them.
        println!("\nerror: {text}");
        return;
    }
    let host = Host::new();
    let faults = [
        ("fault ncclBroadcast err=4", "ncclBroadcast: invalid argument"),
        ("fault ncclAllGather after=1 err=1", "ncclAllGather: unhandled cuda error"),
        ("fault ncclGroupEnd after=2 err=3", "ncclGroupEnd: "),
        ("fault ncclCommGetAsyncError after=3 status=6", "NCCL's work: remote process exited"),
        ("fault cudaMemcpy err=719", "rank 0: cudaMemcpy"),
    ];
    for (fault, expected) in faults {
        let _test = "failures_of_nccl_and_cuda_end_the_group";
        let outputs = host.run(2, |rank| if rank == 0 { fault } else { "" });
        for output in &outputs {
            assert!(output.starts_with("exit status: 0"), "{fault}: {outputs:#?}");
        }
        assert!(outputs[0].contains(expected), "{fault}: {}", outputs[0]);
        assert!(outputs[1].contains("waited 3s for the other ranks"), "{fault}: {}", outputs[1]);
    }
}

fn control(command: &str) -> i64 {
    let path = CString::new(env::var_os("NCCL_LIBRARY").unwrap().into_vec()).unwrap();
    let command = CString::new(command).unwrap();
    // SAFETY: the emulator is loaded, and its function has this type.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        let control = libc::dlsym(library, c"emulator_control".as_ptr());
        let control: extern "C" fn(*const c_char) -> i64 = mem::transmute(control);
        control(command.as_ptr())
    }
}

#[test]
fn groups_end_their_work_without_the_context_too() {
    if let Some(rank) = Rank::this() {
        let mut group = rank.join(TIMEOUT).unwrap();
        let ended = rank.folder.join("ended");
        if rank.rank == 1 {
            // What the other rank has submitted is in flight until it is aborted.
            soon("the other rank ends", || ended.exists());
            mem::forget(group);
            return;
        }
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                soon("the exchange begins", || control("calls ncclGroupEnd") > 0);
                control("fault cuCtxGetCurrent times=all err=201");
            });
            rank.load(&mut group, &Placement::all()).unwrap_err()
        });
        assert!(error.to_string().contains("cuCtxGetCurrent"), "{error}");
        assert_eq!(
            control("calls ncclCommAbort"),
            1,
            "the memory may be freed, so NCCL must not write to it"
        );
        fs::write(ended, "").unwrap();
        return;
    }
    for output in Host::new().run(2, |_| "") {
        assert!(output.starts_with("exit status: 0"), "{output}");
    }
}

#[test]
fn a_missing_libnccl_is_an_error_that_names_the_files() {
    if env::var_os("NCCL_LIBRARY").is_some() {
        let error = UniqueId::new().unwrap_err();
        assert!(matches!(error, RankError::Load(_)), "{error}");
        println!("\nerror: {error}");
        return;
    }
    for path in ["/no/such/libnccl.so.2", "/dev/null"] {
        let output = this_test().env("NCCL_LIBRARY", path).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains(path), "{text}");
        assert!(text.contains("install NCCL 2.14 or newer"), "{text}");
    }
}
