//! Memory of the GPU or the host, its comparison, and the choice of a way to move its bytes.

use gpufile::cuda::Device;
use testkit::memory::{Kind, Memory};
use testkit::ways::{ALIKE, Alike, WAYS, Way};

use super::Result;
use super::content::{Random, compare};

/// Makes memory of a kind, or of the host if there is no GPU.
pub fn new(device: Option<&Device>, kind: Kind, len: usize) -> Result<Memory> {
    Ok(match (device, kind) {
        (Some(device), Kind::Device) => Memory::Device(device.alloc(len)?),
        (Some(device), Kind::Pinned) => Memory::Pinned(device.alloc_pinned(len)?),
        _ => Memory::Host(vec![0; len]),
    })
}

/// Fails unless the memory has these bytes from `start` on. After a mismatch, it copies the memory to the host once more, to
/// tell wrong contents from a wrong copy.
pub fn compare_memory(memory: &Memory, start: usize, expected: &[u8], what: impl Fn() -> String) -> Result {
    let found = || memory.get(start..start + expected.len());
    let Err(difference) = compare(&found()?, expected, &what) else { return Ok(()) };
    let again = match compare(&found()?, expected, &what) {
        Ok(()) => "nothing differs".to_owned(),
        Err(same) if same == difference => "the same".to_owned(),
        Err(other) => other,
    };
    Err(format!("{difference}; copied to the host once more: {again}").into())
}

pub fn any_way(random: &mut Random, is_such: impl Fn(&Way) -> bool) -> &'static Way {
    let ways: Vec<_> = WAYS.iter().filter(|way| is_such(way)).collect();
    random.pick(&ways)
}

pub fn any_alike(random: &mut Random, writes: bool) -> &'static Alike {
    let alike: Vec<_> = ALIKE.iter().filter(|alike| alike.is_writable || !writes).collect();
    random.pick(&alike)
}
