//! Tests of file formats on the host: reading, writing, refusals, damage, and how files are saved.

mod corpus;
mod gguf;
mod gguf_python;
mod layout;
mod mutations;
mod no_space;
mod npy;
mod python;
mod safetensors;
mod save;
mod save_places;
