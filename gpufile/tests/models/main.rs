//! Tests of models: which files are one, how they are loaded whole and in part, to the host, to GPUs and by ranks.

mod checkpoint;
mod damaged;
mod files;
mod gguf;
mod hashed;
mod open_files;
mod packed;
mod placed;
mod placements;
mod random_folders;
mod ranks;
mod reads;
mod zoo;
