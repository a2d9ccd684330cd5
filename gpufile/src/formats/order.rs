/// The order of an array's elements in memory and in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The last axis is the fastest.
    #[default]
    C,
    /// The first axis is the fastest.
    Fortran,
}
