//! `dependent FROM TO` copies a file.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [from, to] = arguments.as_slice() else { return Err("usage: dependent FROM TO".into()) };
    println!("{} bytes", dependent::copy(Path::new(from), Path::new(to))?);
    Ok(())
}
