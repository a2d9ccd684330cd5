//! Saves the storages of two tensors in one file and loads them back, as the example of PyTorch's `GdsFile` does.
//!
//! usage: storage [--cufile|--posix] FILE [GPU]
//!
//! | `torch.cuda.gds` | here |
//! |---|---|
//! | `GdsFile(f, os.O_CREAT \| os.O_RDWR)`, `register_handle` | [`gpufile::OpenOptions`]: registered when first needed |
//! | `save_storage(s, offset)` | [`gpufile::File::write_all_at`] |
//! | `load_storage(s, offset)` | [`gpufile::File::read_exact_at`] |
//! | `gds_register_buffer(s)` | [`cufile::RegisteredBuffer`], as the example `basic_io` uses it |
//!
//! FILE has the same contents as with PyTorch: 1024 normally distributed floats (32 bits, little-endian, no header),
//! and 2 × 1024 more right after them, at byte 4096. To read them with PyTorch and compare them with the printed ones:
//!
//! ```python
//! both = torch.from_file(FILE, size=3 * 1024, dtype=torch.float32)
//! src1, src2 = both[:1024], both[1024:].view(2, 1024)
//! ```
//!
//! or load them by `GdsFile(FILE, os.O_RDONLY)` and `load_storage` at the same offsets. The rest of a longer FILE
//! stays, because the example, like PyTorch, does not empty the file. Without a GPU, and with none named, host memory
//! takes its place. `--cufile` requires cuFile, and `--posix` never uses it.

mod common;

use std::fs;
use std::io::Read;
use std::process::ExitCode;

use common::{Result, require_same};
use gpufile::{File, IoBufMut};

fn main() -> ExitCode {
    common::run("[--cufile|--posix] FILE [GPU]", |arguments| {
        let options = arguments.options().read(true).write(true).create(true);
        let file = options.open(arguments.path(0)?)?;
        let (src1, src2) = (randn(1024)?, randn(2 * 1024)?);
        println!("src1 begins with {:?}, src2 with {:?}", &src1[..3], &src2[..3]);
        let (src1, src2) = (bytes(&src1), bytes(&src2));

        let (dest1, dest2) = match arguments.device_if_any(1)? {
            Some(device) => {
                println!("route: {}", file.route());
                let tensor = |bytes: &[u8]| -> Result<_> {
                    let mut memory = device.alloc(bytes.len())?;
                    memory.copy_from_host(0, bytes)?;
                    Ok(memory)
                };
                let (mut dest1, mut dest2) = (device.alloc(src1.len())?, device.alloc(src2.len())?);
                save_and_load(&file, &tensor(&src1)?, &tensor(&src2)?, &mut dest1, &mut dest2)?;
                (dest1.to_vec()?, dest2.to_vec()?)
            }
            None => {
                let (mut dest1, mut dest2) = (vec![0; src1.len()], vec![0; src2.len()]);
                save_and_load(&file, &src1, &src2, &mut dest1, &mut dest2)?;
                (dest1, dest2)
            }
        };
        require_same(&dest1, &src1, "dest1 and src1")?;
        require_same(&dest2, &src2, "dest2 and src2")?;

        // The comparison above misses bytes that both transfers moved to the same wrong place.
        let contents = fs::read(file.path())?;
        require_same(
            contents.get(..src1.len() + src2.len()).unwrap_or(&contents),
            &[src1, src2].concat(),
            "FILE",
        )?;
        println!("src1 and dest1 are equal, src2 and dest2 are equal");
        Ok(())
    })
}

fn save_and_load<B: IoBufMut>(file: &File, src1: &B, src2: &B, dest1: &mut B, dest2: &mut B) -> Result {
    let nbytes = src1.len_bytes() as u64;
    file.write_all_at(src1, 0)?;
    file.write_all_at(src2, nbytes)?;
    file.read_exact_at(dest1, 0)?;
    file.read_exact_at(dest2, nbytes)?;
    Ok(())
}

/// Returns normally distributed numbers, by the method of Box and Muller.
fn randn(count: usize) -> Result<Vec<f32>> {
    let mut random = vec![0; count * 8];
    fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    // Above 0, where the logarithm is finite, and up to 1.
    let uniform = |bytes: &[u8]| {
        let number = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        (f64::from(number) + 1.0) / 4_294_967_296.0
    };
    let normal = |bytes: &[u8]| {
        let (radius, angle) = (uniform(&bytes[..4]), uniform(&bytes[4..]));
        ((-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()) as f32
    };
    Ok(random.chunks_exact(8).map(normal).collect())
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}
