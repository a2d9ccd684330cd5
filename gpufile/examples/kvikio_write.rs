//! Writes a buffer twice, leaving a gap in the file: NVIDIA's Python samples 001 and 002 (`write` and `raw_write`).
//!
//! usage: kvikio_write [--cufile|--posix] FILE [GPU]
//!
//! FILE then has 128 KiB of the byte `ab`, 4 KiB of zeros that nothing wrote, and again 128 KiB of `ab`. The example
//! checks this with plain reads; `hexdump -C FILE` shows it.
//!
//! KvikIO's `write`, which threads share, is [`write_all_at`](gpufile::File::write_all_at) here. Its `raw_write`, which
//! stays in the calling thread, is the same call of the file that [`inline`](gpufile::File::inline) returns. Sample 001 closes the
//! file by a call, and sample 002 by leaving a `with` block. Here both are a drop. The example needs a GPU.

mod common;

use std::process::ExitCode;

use common::{KIB, require_file};

const LEN: usize = 128 * KIB;
const GAP: usize = 4 * KIB;

fn main() -> ExitCode {
    common::run("[--cufile|--posix] FILE [GPU]", |arguments| {
        let path = arguments.path(0)?;
        let mut buffer = arguments.device(1)?.alloc(LEN)?;
        buffer.fill(0xab)?;
        {
            let file = arguments.create(path)?;
            println!("route: {}", file.route());
            file.write_all_at(&buffer, 0)?;
            println!("wrote {LEN} bytes at 0");
            file.inline().write_all_at(&buffer, (LEN + GAP) as u64)?;
            println!("wrote {LEN} bytes at {} in this thread", LEN + GAP);
        }
        let block = [0xab; LEN];
        require_file(path, &[&block[..], &[0; GAP], &block].concat())?;
        println!("contents match");
        Ok(())
    })
}
