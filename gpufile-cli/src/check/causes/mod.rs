//! Groups of causes. Each group has its conditions, effects and words in one file.

pub mod gpus;
pub mod modules;
pub mod network;
pub mod settings;
pub mod values;

use super::machine::Machine;
use super::storage::Storage;
use super::target::Target;

/// The facts from which the causes of a path follow.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    pub machine: &'a Machine,
    pub target: &'a Target,
    pub storage: &'a Storage,
}
