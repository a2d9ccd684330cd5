//! Tests of files over storages: a memory's, objects of a server and of the crate object_store, and storages that break the
//! contract.

mod broken;
mod conforming;
mod destinations;
mod errors;
mod formats;
mod objects;
mod reads;
mod support;
