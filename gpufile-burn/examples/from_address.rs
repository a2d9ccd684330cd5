//! Loads a network from an address, with a bar, and compares its weights with those of the file.
//!
//! `from_address [ADDRESS]`. Without ADDRESS, a server of this program has the model, with packed weights. Addresses such as
//! `s3://bucket/model/` need the feature `s3`, and the model must have the names and shapes of this network.

use std::io::Write;
use std::ops::ControlFlow;

// The derive of `Module` names the crate so.
use burn_core as burn;
use burn_core::module::{Module, Param};
use burn_core::tensor::{Device, Distribution, Tensor, TensorData};
use burn_store::ModuleSnapshot;
use gpufile::formats::SaveOptions;
use gpufile::formats::safetensors::Checkpoint;
use gpufile_burn::{Error, GpufileStore};
use testkit::web::Server;

#[derive(Module, Debug)]
struct Block {
    up: Param<Tensor<2>>,
    down: Param<Tensor<2>>,
}

#[derive(Module, Debug)]
struct Network {
    blocks: Vec<Block>,
    head: Param<Tensor<2>>,
}

impl Network {
    fn new(make: impl Fn([usize; 2]) -> Tensor<2>) -> Self {
        let param = |shape| Param::from_tensor(make(shape));
        let block = |_| Block { up: param([128, 512]), down: param([512, 128]) };
        Self { blocks: (0..4).map(block).collect(), head: param([128, 1000]) }
    }

    fn weights(&self) -> Vec<TensorData> {
        let of_blocks = self.blocks.iter().flat_map(|block| [block.up.val(), block.down.val()]);
        of_blocks.chain([self.head.val()]).map(|weight| weight.into_data()).collect()
    }
}

fn draw(read_bytes: u64, all_bytes: u64) -> ControlFlow<()> {
    const WIDTH: u64 = 40;
    let full = (WIDTH * read_bytes).checked_div(all_bytes).unwrap_or(WIDTH) as usize;
    eprint!("\r[{:<40}] {read_bytes} of {all_bytes} bytes", "#".repeat(full));
    std::io::stderr().flush().ok();
    ControlFlow::Continue(()) // or `Break(())`, to cancel
}

fn load(address: &str) -> Result<Network, Error> {
    let mut network = Network::new(|shape| Tensor::zeros(shape, &Device::default()));
    let store = GpufileStore::from_checkpoint(Checkpoint::open_url(address)?)?;
    // Small reads, so that the bar moves.
    network.load_from(&mut store.budget_bytes(1 << 20).watch(draw))?;
    eprintln!();
    Ok(network)
}

fn main() -> Result<(), Error> {
    if let Some(address) = std::env::args().nth(1) {
        println!("{} tensors", load(&address)?.weights().len());
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let (plain, packed) = (folder.path().join("plain.safetensors"), folder.path().join("packed.safetensors"));
    let spread = Distribution::Normal(0., 0.02);
    let network = Network::new(|shape| Tensor::random(shape, spread, &Device::default()));
    network.save_into(&mut GpufileStore::create(&plain))?;
    let saved = Checkpoint::open(&plain)?.compress(&packed, &SaveOptions::new())?;
    let server = Server::new(std::fs::read(&packed)?);
    let address = server.url("/model.safetensors");
    assert!(load(&address)?.weights() == network.weights());
    println!("{} bytes from {address}: the weights are those of the file", saved.len_bytes);
    Ok(())
}
