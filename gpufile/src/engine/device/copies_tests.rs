//! The choice between a kernel and single copies, and the tables for kernels.

use std::ptr::without_provenance_mut as at;

use super::copies::{Copies, FEW, LONG_BYTES};
use super::staging::{OneCopy, Packed};
use crate::gpu::bounce::Bounce;
use crate::gpu::kernels::TableEntry;
use crate::memory::Memory;

#[test]
fn kernels_copy_many_short_ranges_of_reachable_memory() {
    let mut bounce = Bounce::new(8 << 20);
    let start = bounce.ptr();
    let mut is_packed = |lens: &[usize], is_in_primary_context| {
        let mut copies = Copies::default();
        let memory = Memory { is_in_primary_context, ..Memory::on_host(at(4096), 64 << 20) };
        let mut done = 0;
        for (number, len_bytes) in lens.iter().enumerate() {
            copies.push(&memory, at(4096 + 2 * done + number), start.wrapping_add(done), *len_bytes);
            done += len_bytes;
        }
        copies.pack(&mut bounce).is_some()
    };
    assert!(is_packed(&[1; FEW + 1], true));
    assert!(is_packed(&[LONG_BYTES, LONG_BYTES, LONG_BYTES, LONG_BYTES, LONG_BYTES - 5], true));
    assert!(!is_packed(&[LONG_BYTES; 5], true), "long copies");
    assert!(!is_packed(&[7; FEW], true), "few copies");
    assert!(!is_packed(&[7; FEW + 1], false), "memory of another context");
}

#[test]
fn one_unreachable_range_keeps_kernels_from_all() {
    let mut bounce = Bounce::new(4096);
    let start = bounce.ptr();
    let mut copies = Copies::default();
    for (number, is_in_primary_context) in [true, false, true, true, true].into_iter().enumerate() {
        let memory = Memory { is_in_primary_context, ..Memory::on_host(at(4096), 4096) };
        copies.push(&memory, at(4096 + 20 * number), start.wrapping_add(10 * number), 10);
    }
    assert!(copies.pack(&mut bounce).is_none());
    // The next chunk of the lane has other memory.
    copies.clear();
    let memory = Memory { is_in_primary_context: true, ..Memory::on_host(at(4096), 4096) };
    for number in 0..=FEW {
        copies.push(&memory, at(4096 + 20 * number), start.wrapping_add(10 * number), 10);
    }
    assert!(copies.pack(&mut bounce).is_some());
}

fn table(bounce: &mut Bounce, packed: Packed) -> Vec<TableEntry> {
    let table = packed.table(bounce.ptr());
    assert!(table.entries.addr().is_multiple_of(align_of::<TableEntry>()));
    let end = table.entries.addr() + table.count as usize * size_of::<TableEntry>();
    assert!(end <= bounce.ptr().addr() + bounce.len_bytes(), "the table lies in the bounce buffer");
    // SAFETY: `write` wrote so many entries there.
    (0..table.count as usize)
        .map(|number| unsafe { table.entries.cast::<TableEntry>().add(number).read() })
        .collect()
}

#[test]
fn tables_name_each_byte_once_in_short_entries() {
    let mut bounce = Bounce::new(1 << 20);
    let start = bounce.ptr();
    for lens in
        [&[1usize, 2, 3][..], &[32 << 10, (32 << 10) + 1, 5], &[700; 1000], &[100_000, 7, 65_536, 300_001]]
    {
        let (mut offset, mut copies) = (13, Vec::new());
        for (number, len_bytes) in lens.iter().enumerate() {
            let device = at((1 << 40) + 1_000_003 * number);
            copies.push(OneCopy { device, host: start.wrapping_add(offset), len_bytes: *len_bytes });
            offset += len_bytes + number % 3;
        }
        let packed = Packed::write(&copies, &mut bounce).unwrap();
        let mut entries = table(&mut bounce, packed).into_iter();
        for copy in copies {
            let mut done = 0;
            while done < copy.len_bytes {
                let entry = entries.next().unwrap();
                assert!((1..=32 << 10).contains(&entry.len_bytes));
                assert_eq!(entry.address, (copy.device.addr() + done) as u64);
                assert_eq!(start.addr() + entry.offset as usize, copy.host.addr() + done);
                done += entry.len_bytes as usize;
            }
            assert_eq!(done, copy.len_bytes);
        }
        assert!(entries.next().is_none());
    }
}

#[test]
fn tables_without_room_are_refused() {
    let mut bounce = Bounce::new(4096);
    let (start, len_bytes) = (bounce.ptr(), bounce.len_bytes());
    let copies = |offset: usize| {
        [0, 8].map(|more| OneCopy {
            device: at(4096 + 2 * more),
            host: start.wrapping_add(offset + more),
            len_bytes: 8,
        })
    };
    assert!(Packed::write(&copies(len_bytes - 48), &mut bounce).is_some());
    assert!(Packed::write(&copies(len_bytes - 47), &mut bounce).is_none());
    assert!(Packed::write(&copies(len_bytes - 16), &mut bounce).is_none());
}
