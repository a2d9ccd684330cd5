use std::fmt;

/// The version of the format that this room writes, and the only one that it reads.
pub const VERSION: u8 = 1;

/// A fault of a packed tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The head or the index is wrong.
    Head(&'static str),
    /// Another version of the format.
    Version(u8),
    /// The checksum of a group, or of the head and the index, does not fit.
    Sum(Option<usize>),
    /// The entry of the index for a group is impossible.
    Index(usize),
    /// The block of a group contradicts its entry of the index.
    Block(usize),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(reason) => f.write_str(reason),
            Self::Version(version) => {
                write!(
                    f,
                    "it has version {version} of the packed format; this gpufile reads version {VERSION}"
                )
            }
            Self::Sum(Some(group)) => write!(f, "the bytes of group {group} do not have their checksum"),
            Self::Sum(None) => f.write_str("its head and index do not have their checksum"),
            Self::Index(group) => write!(f, "the index is wrong at group {group}"),
            Self::Block(group) => write!(f, "group {group} contradicts the index"),
        }
    }
}
