//! Functions that the program `gpufile` calls beyond the public API. Nothing here is promised to stay.

#[cfg(feature = "formats")]
pub use crate::formats::regular::open_unblocked;
#[cfg(feature = "formats")]
pub use crate::formats::save::{kind as kind_of_file, save_copy};
pub use crate::settings::variable_names;
