//! A store of [burn](https://docs.rs/burn) modules in safetensors models, on the engine of
//! [gpufile](https://docs.rs/gpufile). It takes the place of burn's `SafetensorsStore`.
//!
//! ```
//! use burn_core as burn;
//! use burn_core::module::{Module, Param};
//! use burn_core::tensor::{Device, Tensor};
//! use burn_store::ModuleSnapshot;
//! use gpufile_burn::GpufileStore;
//!
//! #[derive(Module, Debug)]
//! struct Layer {
//!     weight: Param<Tensor<2>>,
//! }
//!
//! # fn main() -> Result<(), gpufile_burn::Error> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.safetensors");
//! let device = Device::default();
//! let layer = Layer { weight: Param::from_tensor(Tensor::ones([3, 2], &device)) };
//! layer.save_into(&mut GpufileStore::create(&path))?;
//!
//! let mut other = Layer { weight: Param::from_tensor(Tensor::zeros([3, 2], &device)) };
//! other.load_from(&mut GpufileStore::open(&path)?)?;
//! assert_eq!(other.weight.val().to_data(), layer.weight.val().to_data());
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod dtype;
mod memory;
mod model;
mod pinned;
mod save;
mod store;

pub use store::GpufileStore;

/// An error of a store.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
