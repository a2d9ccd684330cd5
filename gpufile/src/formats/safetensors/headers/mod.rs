//! Headers and indexes: the JSON of the files of a model, parsed, checked and built. Only indexes are read from files
//! here.

pub(super) mod header;
pub(super) mod index;
pub(super) mod index_file;
mod json;
mod known;
pub(super) mod parse;
pub(super) mod write;
