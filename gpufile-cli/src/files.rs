//! Reading small files that a user or a folder names, and that may be anything.

use std::io::{self, Read};
use std::path::Path;

use gpufile::trusted::open_unblocked;

/// Refuses all but regular files of at most `most_bytes`: reading a pipe might never end.
pub fn read(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open_unblocked(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(most_bytes + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most_bytes {
        true => Err(io::Error::other(format!("it is longer than {most_bytes} bytes"))),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"four");
        assert!(read(&path, 3).unwrap_err().to_string().contains("longer than 3 bytes"));
        for other in [folder.path(), Path::new("/dev/zero")] {
            assert!(read(other, 4).unwrap_err().to_string().contains("not a regular file"), "{other:?}");
        }
    }
}
