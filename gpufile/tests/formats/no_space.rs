//! Tests that a file that cannot be written to its end does not replace the old one.

use std::fs;

use gpufile::formats::safetensors::{self, TensorData};
use gpufile::formats::{Dtype, Error, SaveOptions, npy};
use testkit::alone;

/// Limits the length of files that this process writes, which stands in for a full file system.
fn limit_files(len_bytes: u64) {
    let limit = libc::rlimit { rlim_cur: len_bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: this installs no handler. A write beyond the limit becomes an error.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    // SAFETY: `limit` outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
}

#[test]
fn saves_without_space_keep_only_the_old_file() {
    alone(|| {
        let folders = [tempfile::tempdir().ok(), tempfile::tempdir_in("/dev/shm").ok()];
        for folder in folders.iter().flatten() {
            fs::write(folder.path().join("model.safetensors"), "old").unwrap();
        }
        limit_files(3 << 20);
        let bytes = vec![1; 1 << 20];
        let names = ["a", "b", "c", "d", "e"];
        let tensors = names.map(|name| TensorData::new(name, Dtype::U8, &[1 << 20], &bytes));
        let large = vec![1; 40 << 20];
        for folder in folders.iter().flatten() {
            let path = folder.path().join("model.safetensors");
            for error in [
                safetensors::save(&path, &tensors, &SaveOptions::new()).unwrap_err(),
                npy::write(&path, "|u1", &[40 << 20], &large, &SaveOptions::new()).unwrap_err(),
            ] {
                let Error::Save { error, .. } = error else { panic!("{error}") };
                assert_eq!(error.raw_os_error(), Some(libc::EFBIG), "{error}");
            }
            assert_eq!(fs::read(&path).unwrap(), b"old");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
            safetensors::save(&path, &tensors[..2], &SaveOptions::new()).unwrap();
        }
    });
}
