//! Loads of slots, each compared with the bytes that the caller asked for.

use super::plan::transfer::IoRange;
use super::relay::load::{Loads, SlotCopy};
use crate::open_file::outcome::{EntryStop, Stop};

fn range(file_offset: u64, buffer_offset: usize, len_bytes: usize) -> IoRange {
    IoRange { file_offset, buffer_offset, len_bytes }
}

fn copy(slot_offset: usize, buffer_offset: usize, len_bytes: usize) -> SlotCopy {
    SlotCopy { slot_offset, buffer_offset, len_bytes }
}

fn stop(entry: usize, done_bytes: usize) -> EntryStop {
    EntryStop { entry, stop: Stop::end_of_file(done_bytes) }
}

#[test]
fn short_ranges_share_a_slot_and_long_ones_continue() {
    let ranges = [range(500, 0, 30), range(0, 30, 0), range(900, 40, 250), range(7, 300, 20)];
    let Loads { pieces, loads } = Loads::cut(&ranges, 100);
    let found: Vec<(_, Vec<_>)> = loads
        .iter()
        .map(|load| (pieces[load.pieces.clone()].to_vec(), load.copies(&pieces, &ranges).collect()))
        .collect();
    let expected = [
        (
            vec![range(500, 0, 30), range(0, 30, 0), range(900, 30, 70)],
            vec![copy(0, 0, 30), copy(30, 40, 70)],
        ),
        (vec![range(970, 0, 100)], vec![copy(0, 110, 100)]),
        (vec![range(1070, 0, 80), range(7, 80, 20)], vec![copy(0, 210, 80), copy(80, 300, 20)]),
    ];
    assert_eq!(found, expected);
}

#[test]
fn stops_count_from_the_start_of_the_callers_range() {
    let ranges = [range(500, 0, 30), range(900, 40, 250), range(7, 300, 20)];
    let Loads { loads, .. } = Loads::cut(&ranges, 100);
    for (load, inside, expected) in
        [(0, (0, 3), (0, 3)), (0, (1, 5), (1, 5)), (1, (0, 5), (1, 75)), (2, (1, 4), (2, 4))]
    {
        let stop = loads[load].stop_of_caller(stop(inside.0, inside.1));
        assert_eq!((stop.entry, stop.stop.done_bytes), expected);
    }
    assert_eq!(loads[1].valid_bytes(None), 100);
    assert_eq!(loads[1].valid_bytes(Some(&stop(0, 5))), 5);
    assert_eq!(loads[2].valid_bytes(Some(&stop(1, 4))), 0, "either range may have been read");
}

#[test]
fn loads_have_each_byte_once_and_in_order() {
    let mut random = 1u64;
    let mut below = |most: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % most
    };
    for case in 0..2000 {
        let (slot_bytes, longest) = (1 + below(40), 1 + below(90));
        let ranges: Vec<_> =
            (0..1 + below(12)).map(|_| range(below(1000) as u64, below(1000), below(longest))).collect();
        let asked = ranges.iter().flat_map(|range| {
            (0..range.len_bytes).map(|at| (range.file_offset + at as u64, range.buffer_offset + at))
        });
        let Loads { pieces, loads } = Loads::cut(&ranges, slot_bytes);
        let mut found = Vec::new();
        for (number, load) in loads.iter().enumerate() {
            let is_last = number + 1 == loads.len();
            assert!(load.len_bytes == slot_bytes || is_last && load.len_bytes < slot_bytes, "{case}");
            assert!(load.len_bytes > 0 || loads.len() == 1, "{case}: an empty slot");
            let in_file = pieces[load.pieces.clone()]
                .iter()
                .flat_map(|piece| (0..piece.len_bytes).map(|at| piece.file_offset + at as u64));
            let copies: Vec<_> = load.copies(&pieces, &ranges).collect();
            let mut slot_end = 0;
            for copy in &copies {
                assert_eq!(copy.slot_offset, slot_end, "{case}");
                slot_end += copy.len_bytes;
            }
            let in_buffer =
                copies.iter().flat_map(|copy| copy.buffer_offset..copy.buffer_offset + copy.len_bytes);
            found.extend(in_file.zip(in_buffer));
        }
        assert!(asked.eq(found), "{case}: {ranges:?} in slots of {slot_bytes}");
    }
}
