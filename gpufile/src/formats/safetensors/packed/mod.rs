//! Safetensors files with packed tensors: how their headers name them, and the files with plain tensors that they stand for.
//!
//! A packed tensor has the type `U8` and one axis, so that no other loader takes it for the tensor itself. Entries of
//! `__metadata__` say what it is. The page `docs/packed.md` of the repository specifies both.

pub(super) mod names;
pub(super) mod view;
