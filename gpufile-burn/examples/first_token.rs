//! Times a program from its start to the first token of a network, whose weights come by this crate or by burn's own store.
//!
//! `first_token [--layers 4] MODEL`. A MODEL that does not exist is made, with random weights. Each run is a process of its own,
//! and the two take turns. The backend is the one that burn's features choose, here one on the processor.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

// The derive of `Module` names the crate so.
use burn_core as burn;
use burn_core::module::{Module, Param};
use burn_core::tensor::{Device, Distribution, Tensor};
use burn_store::{ModuleSnapshot, SafetensorsStore};
use gpufile_burn::{Error, GpufileStore};

const ROUNDS: usize = 5;
const LOADERS: [&str; 2] = ["burn", "gpufile"];

const WIDTH: usize = 2048;
const HIDDEN: usize = 8192;
const WORDS: usize = 32_000;

#[derive(Module, Debug)]
struct Block {
    up: Param<Tensor<2>>,
    down: Param<Tensor<2>>,
}

#[derive(Module, Debug)]
struct Network {
    words: Param<Tensor<2>>,
    blocks: Vec<Block>,
    head: Param<Tensor<2>>,
}

impl Network {
    fn new(layers: usize, make: impl Fn([usize; 2]) -> Tensor<2>) -> Self {
        let param = |shape| Param::from_tensor(make(shape));
        let block = |_| Block { up: param([WIDTH, HIDDEN]), down: param([HIDDEN, WIDTH]) };
        Self {
            words: param([WORDS, WIDTH]),
            blocks: (0..layers).map(block).collect(),
            head: param([WIDTH, WORDS]),
        }
    }

    fn after(&self, token: usize) -> Result<i64, Error> {
        let mut state = self.words.val().slice([token..token + 1, 0..WIDTH]);
        for block in &self.blocks {
            state = state.clone() + state.matmul(block.up.val()).tanh().matmul(block.down.val());
        }
        let next = state.matmul(self.head.val()).argmax(1).into_data().convert::<i64>();
        Ok(next.try_to_vec::<i64>().map_err(|error| format!("{error:?}"))?[0])
    }
}

fn first_token(loader: &str, path: &Path, layers: usize) -> Result<i64, Error> {
    let mut network = Network::new(layers, |shape| Tensor::empty(shape, &Device::default()));
    match loader {
        "gpufile" => drop(network.load_from(&mut GpufileStore::open(path)?)?),
        _ => drop(network.load_from(&mut SafetensorsStore::from_file(path))?),
    }
    network.after(3)
}

/// Runs one process of each kind in turn, and prints the medians of their seconds.
fn compare(arguments: &[String]) -> Result<(), Error> {
    let mut seconds = [const { Vec::new() }; 2];
    let mut tokens = Vec::new();
    for _ in 0..ROUNDS {
        for (loader, seconds) in LOADERS.iter().zip(&mut seconds) {
            let start = Instant::now();
            let mut program = Command::new(std::env::current_exe()?);
            let output =
                program.args(arguments).args(["--loader", loader]).stderr(Stdio::inherit()).output()?;
            seconds.push(start.elapsed().as_secs_f64());
            assert!(output.status.success(), "{loader} failed");
            tokens.push(output.stdout);
        }
    }
    assert!(tokens.iter().all(|token| *token == tokens[0]), "the tokens differ");
    for (loader, mut seconds) in LOADERS.iter().zip(seconds) {
        seconds.sort_by(f64::total_cmp);
        let [least, median, most] = [0, ROUNDS / 2, ROUNDS - 1].map(|at| seconds[at]);
        println!("{loader}, start to first token: {median:.2} s ({least:.2} to {most:.2})");
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let all: Vec<String> = std::env::args().skip(1).collect();
    let (mut layers, mut loader, mut path) = (4, None, None);
    let mut arguments = all.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().cloned().ok_or_else(|| format!("{argument} what?"));
        match &**argument {
            "--layers" => layers = value()?.parse()?,
            "--loader" => loader = Some(value()?),
            _ => path = Some(PathBuf::from(argument)),
        }
    }
    let path = path.ok_or("which MODEL?")?;
    if let Some(loader) = loader {
        println!("{}", first_token(&loader, &path, layers)?);
        return Ok(());
    }
    if !path.exists() {
        let spread = Distribution::Normal(0., 0.02);
        let network = Network::new(layers, |shape| Tensor::random(shape, spread, &Device::default()));
        network.save_into(&mut GpufileStore::create(&path))?;
    }
    compare(&all)
}
