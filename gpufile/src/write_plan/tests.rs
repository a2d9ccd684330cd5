use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::*;
use crate::route::RoutePolicy;
use crate::settings::DirectIo;

const MIB: usize = 1 << 20;

fn open_with(storage: Storage, direct_write: DirectIo) -> OpenFile {
    let (file, engine) = (tempfile::tempfile().unwrap(), Engine::builder().threads(4).build());
    let direct = (DirectIo::Never, direct_write);
    let mut open = OpenFile::new(PathBuf::new(), file, engine, RoutePolicy::PosixOnly, direct).unwrap();
    open.storage = storage;
    open
}

fn open(storage: Storage, len_bytes: usize) -> OpenFile {
    let open = open_with(storage, DirectIo::Never);
    open.file.set_len(len_bytes as u64).unwrap();
    open
}

fn plan(open: &OpenFile, ranges: &[(usize, usize)], growth: Growth) -> WritePlan {
    let extent = Extent::of(ranges.iter().map(|(offset, len_bytes)| (*offset as u64, *len_bytes)));
    WritePlan::new((open, &open.engine), None, Place::Host, extent, growth)
}

fn metadata(open: &OpenFile) -> fs::Metadata {
    open.file.metadata().unwrap()
}

fn is_mapped(plan: &WritePlan) -> bool {
    // What watchers of the file wait for comes last, by a write call.
    assert_eq!(matches!(plan.side, Side::WriteMapping(_)), plan.cutting.last_bytes == 4096);
    assert!(matches!(plan.side, Side::WriteMapping(_) | Side::Write));
    assert!(!plan.cutting.is_graded);
    plan.cutting.last_bytes > 0
}

#[test]
fn extents_cover_their_ranges() {
    for (ranges, start, end, total, is_gapless) in [
        (vec![], 0, 0, 0, true),
        (vec![(7, 0)], 0, 0, 0, true),
        (vec![(7, 3)], 7, 10, 3, true),
        (vec![(7, 3), (10, 2)], 7, 12, 5, true),
        (vec![(7, 3), (u64::MAX, 0), (10, 2)], 7, 12, 5, true),
        (vec![(7, 3), (11, 2)], 7, 13, 5, false),
        (vec![(10, 2), (7, 3)], 7, 12, 5, false),
        (vec![(7, 3), (9, 2)], 7, 11, 5, false),
        (vec![(7, 3), (10, 2), (20, 1), (21, 1)], 7, 22, 7, false),
        (vec![(0, 3), (u64::MAX - 1, 7)], 0, u64::MAX, 10, false),
    ] {
        let extent = Extent::of(ranges.iter().copied());
        assert_eq!((extent.start, extent.end, extent.total_bytes), (start, end, total), "{ranges:?}");
        assert_eq!(extent.is_gapless, is_gapless, "{ranges:?}");
    }
}

#[test]
fn files_of_memory_are_written_through_a_mapping() {
    for (ranges, expected) in [
        (vec![(0, MIB)], true),
        (vec![(0, MIB - 1)], false),
        (vec![(3 * MIB, MIB)], true),
        // Gaps within the file are no matter.
        (vec![(0, MIB), (2 * MIB, 100)], true),
        (vec![(0, MIB / 2), (MIB, MIB / 2 - 1)], false),
    ] {
        for growth in [Growth::MayAllocate, Growth::AsWritten] {
            let open = open(Storage::Tmpfs, 4 * MIB);
            let plan = plan(&open, &ranges, growth);
            assert_eq!(is_mapped(&plan), expected, "{ranges:?}");
            assert!(!plan.cutting.serial);
            assert_eq!(metadata(&open).len(), 4 * MIB as u64);
        }
    }
}

#[test]
fn files_of_memory_that_grow_are_allocated_at_once() {
    for (ranges, growth, becomes) in [
        (vec![(4 * MIB, MIB)], Growth::MayAllocate, Some(5 * MIB)),
        (vec![(3 * MIB, MIB), (4 * MIB, 77)], Growth::MayAllocate, Some(4 * MIB + 77)),
        // What lies before the write stays a hole.
        (vec![(64 * MIB, MIB)], Growth::MayAllocate, Some(65 * MIB)),
        (vec![(4 * MIB, MIB)], Growth::AsWritten, None),
        (vec![(3 * MIB, MIB), (4 * MIB + 1, 77)], Growth::MayAllocate, None),
    ] {
        let open = open(Storage::Tmpfs, 4 * MIB);
        let plan = plan(&open, &ranges, growth);
        let found = metadata(&open);
        assert_eq!(found.len(), becomes.unwrap_or(4 * MIB) as u64, "{ranges:?}");
        assert!(found.blocks() * 512 <= 2 * MIB as u64, "{ranges:?}: {} blocks", found.blocks());
        assert_eq!(is_mapped(&plan), becomes.is_some(), "{ranges:?}");
        assert_eq!(plan.cutting.serial, becomes.is_none(), "{ranges:?}");
    }
}

#[test]
fn one_worker_writes_to_a_file_on_a_disk() {
    for (ranges, allocated) in [
        (vec![(0, 8 * MIB)], 0),
        (vec![(4 * MIB, 20 * MIB - 1)], 0),
        (vec![(4 * MIB, 20 * MIB)], 16 * MIB),
        (vec![(12 * MIB, 24 * MIB)], 24 * MIB),
        (vec![(12 * MIB, 8 * MIB), (24 * MIB, 8 * MIB)], 0),
    ] {
        let open = open(Storage::LocalDisk, 8 * MIB);
        let plan = plan(&open, &ranges, Growth::MayAllocate);
        assert!(plan.cutting.serial && !is_mapped(&plan), "{ranges:?}");
        let total = ranges.iter().map(|(_, len_bytes)| len_bytes).sum();
        let parallel = open.engine.cutting(total, Place::Host, None);
        assert_eq!(plan.cutting.chunk_bytes, parallel.chunk_bytes.min(MIB), "{ranges:?}");
        let found = metadata(&open);
        assert_eq!(found.len(), 8 * MIB as u64, "{ranges:?}");
        let stored = found.blocks() as usize * 512;
        assert!((allocated..allocated + MIB / 2).contains(&stored), "{ranges:?}: {stored} bytes");
    }
}

#[test]
fn all_workers_write_elsewhere() {
    let open = open(Storage::Other, 0);
    let plan = plan(&open, &[(0, 64 * MIB)], Growth::MayAllocate);
    assert!(!plan.cutting.serial && !is_mapped(&plan));
    assert!(plan.cutting.chunk_bytes > MIB);
    assert_eq!((metadata(&open).len(), metadata(&open).blocks()), (0, 0));
}

#[test]
fn lengths_of_chunks_that_were_asked_for_are_kept() {
    let extent = Extent::of([(0, 64 * MIB)].into_iter());
    for storage in [Storage::LocalDisk, Storage::Other, Storage::Tmpfs] {
        let open = open(storage, 64 * MIB);
        for chunk_bytes in [1000, 3 * MIB] {
            let asked = Some(chunk_bytes);
            let plan = WritePlan::new((&open, &open.engine), asked, Place::Host, extent, Growth::MayAllocate);
            assert_eq!(plan.cutting.chunk_bytes, chunk_bytes, "{storage:?}");
        }
    }
}

#[test]
fn direct_writes_are_cut_for_the_device() {
    let open = open_with(Storage::LocalDisk, DirectIo::Always);
    if open.direct_for_write(MIB).is_none() {
        return eprintln!("skipped: no O_DIRECT here");
    }
    let plan = plan(&open, &[(0, 64 * MIB)], Growth::MayAllocate);
    assert_eq!((plan.cutting.chunk_bytes, plan.cutting.serial), (MIB, false));
    assert!(!is_mapped(&plan));
    let asked = Some(3 * MIB);
    let extent = Extent::of([(0, 64 * MIB)].into_iter());
    let plan = WritePlan::new((&open, &open.engine), asked, Place::Host, extent, Growth::MayAllocate);
    assert_eq!(plan.cutting.chunk_bytes, 3 * MIB);
}

#[test]
fn long_files_are_pieces_and_short_ones_share_them() {
    let files: Vec<_> = (0..4).map(|_| open(Storage::Other, 0)).collect();
    let entry = |file: usize, len_bytes: usize| Entry {
        file: &files[file],
        offset: 0,
        memory: Memory::on_host(ptr::without_provenance_mut(1 << 32), len_bytes),
    };
    for (entries, expected) in [
        (vec![], vec![]),
        (vec![(0, 0)], vec![1]),
        (vec![(0, MIB)], vec![1]),
        (vec![(0, MIB / 2), (0, MIB / 2), (1, 5), (2, MIB - 1), (3, MIB)], vec![2, 2, 1]),
        (vec![(0, 5), (1, 5), (2, MIB), (2, 5), (3, 5), (0, 5), (1, MIB)], vec![2, 2, 2, 1]),
        (vec![(0, MIB), (1, MIB), (0, MIB), (0, MIB)], vec![1, 1, 2]),
    ] {
        let list: Vec<_> = entries.iter().map(|(file, len_bytes)| entry(*file, *len_bytes)).collect();
        let found: Vec<_> = pieces(&list).map(<[Entry<'_>]>::len).collect();
        assert_eq!(found, expected, "{entries:?}");
    }
}

#[test]
fn pieces_of_several_files_are_written_by_all_workers() {
    let files = [open(Storage::LocalDisk, 8 * MIB), open(Storage::LocalDisk, 8 * MIB)];
    let entry = |file: usize, offset: u64| Entry {
        file: &files[file],
        offset,
        memory: Memory::on_host(ptr::without_provenance_mut(1 << 32), MIB),
    };
    let engine = &files[0].engine;
    let mixed = WritePlan::of_piece(engine, &[entry(0, 0), entry(1, 0)], true);
    assert!(!mixed.cutting.serial && !is_mapped(&mixed));
    let one_file = WritePlan::of_piece(engine, &[entry(0, 0), entry(0, MIB as u64)], true);
    assert!(one_file.cutting.serial);
}

#[test]
fn several_new_files_of_memory_grow_as_they_are_written() {
    for is_alone in [true, false] {
        let file = open(Storage::Tmpfs, 0);
        let memory = Memory::on_host(ptr::without_provenance_mut(1 << 32), 2 * MIB);
        let plan = WritePlan::of_piece(&file.engine, &[Entry { file: &file, offset: 0, memory }], is_alone);
        assert_eq!((is_mapped(&plan), plan.cutting.serial), (is_alone, !is_alone));
    }
}
