//! Tests of arrangements against a model that places each byte alone.

use std::collections::BTreeMap;
use std::convert::Infallible;

use super::*;
use crate::formats::Dtype;
use crate::formats::safetensors::{Cut, Header, NewTensor, Placement};

const MIB: u64 = 1 << 20;

/// Returns a catalog of files with tensors of these types and shapes.
fn catalog(files: &[Vec<(Dtype, Vec<u64>)>]) -> Catalog {
    let header = |(file, tensors): (usize, &Vec<(Dtype, Vec<u64>)>)| {
        let names: Vec<_> = (0..tensors.len()).map(|tensor| format!("{file}.{tensor:03}")).collect();
        let new: Vec<_> = names
            .iter()
            .zip(tensors)
            .map(|(name, (dtype, shape))| NewTensor { name, dtype: *dtype, shape })
            .collect();
        Header::build(&new, BTreeMap::new()).unwrap().0
    };
    Catalog::new(files.iter().enumerate().map(header).collect()).unwrap()
}

/// A byte of a file: the number of the file, and the offset.
type Byte = Option<(u32, u64)>;

/// The number of reads of each byte.
type Reads = BTreeMap<(u32, u64), usize>;

/// Returns the contents of each buffer after all moves, and the number of reads of each byte of the files.
fn carried_out(
    arrangement: &Arrangement,
    catalog: &Catalog,
    groups: &[Vec<usize>],
) -> (Vec<Vec<Byte>>, Reads) {
    let mut buffers: Vec<Vec<Byte>> = arrangement.gpus.iter().map(|gpu| vec![None; gpu.len_bytes]).collect();
    let mut reads = BTreeMap::new();
    let mut ends = vec![0; buffers.len()];
    let done: Result<(), Infallible> = arrangement.moves(catalog, groups, |step| {
        match step {
            Move::Read { file, offset, gpu, at, len } => {
                assert!(at >= ends[gpu] && len > 0);
                ends[gpu] = at + len;
                for byte in 0..len {
                    let source = (file, offset + byte as u64);
                    assert_eq!(buffers[gpu][at + byte].replace(source), None);
                    *reads.entry(source).or_default() += 1;
                }
            }
            Move::Copy { from, to, len } => {
                assert!(groups.iter().any(|group| group.contains(&from.0) && group.contains(&to.0)));
                for byte in 0..len {
                    let source = buffers[from.0][from.1 + byte];
                    assert!(source.is_some());
                    assert_eq!(std::mem::replace(&mut buffers[to.0][to.1 + byte], source), None);
                }
            }
        }
        Ok(())
    });
    let Ok(()) = done;
    (buffers, reads)
}

/// Returns the bytes that a part must have, by looking at each element. Elements are whole bytes.
fn expected(catalog: &Catalog, part: &Part) -> Vec<Byte> {
    let header = catalog.header(part.id.file);
    let info = header.nth(part.id.tensor);
    let size = u64::from(info.dtype.size_bits() / 8);
    let start = header.in_file(info.offsets.clone()).start;
    let chosen = |byte: &u64| match &part.slice {
        None => true,
        Some(TensorSlice { axis, range }) => {
            let inner: u64 = info.shape[axis + 1..].iter().product();
            range.contains(&(byte / size / inner % info.shape[*axis]))
        }
    };
    (0..info.len_bytes()).filter(chosen).map(|byte| Some((part.id.file, start + byte))).collect()
}

fn share(number: usize, axes: usize, gpus: usize) -> Share {
    let cut = if number.is_multiple_of(2) { Cut::Chunks } else { Cut::Even };
    match number % 5 {
        0 => Share::On(number % gpus),
        1 => Share::All,
        2 if axes > 0 => Share::Slice { axis: number % axes, cut },
        3 if axes > 0 => Share::Slice { axis: axes - 1, cut },
        _ => Share::Balanced,
    }
}

#[test]
fn every_byte_reaches_its_places_once() {
    let shapes: [&[u64]; 10] =
        [&[], &[5], &[1, 7], &[3, 4, 5], &[0, 3], &[9, 2], &[2, 0], &[1], &[13, 3], &[1, 1, 1]];
    let dtypes = [Dtype::U8, Dtype::F32, Dtype::BF16, Dtype::F64, Dtype::I8];
    let file = |start: usize, count: usize| {
        let tensor = |at: usize| (dtypes[at * 7 % 5], shapes[at * 3 % 10].to_vec());
        (start..start + count).map(tensor).collect::<Vec<_>>()
    };
    let catalog = catalog(&[file(0, 21), file(5, 1), file(0, 0), file(11, 33)]);
    let ids: Vec<_> = catalog.ids().collect();
    for gpus in [1, 2, 3, 4, 8] {
        for group_len in [1, 2, 8] {
            for turn in 0..5 {
                let infos = || ids.iter().map(|id| catalog.info(*id));
                let placement = Placement::by(move |info| {
                    let number: usize = info.name[2..].parse().unwrap();
                    share(number + turn, info.shape.len(), gpus)
                });
                let shares = placement.shares(infos(), gpus).unwrap();
                let tensors: Vec<_> = ids.iter().copied().zip(shares.iter().copied()).collect();
                let arrangement = Arrangement::of(&catalog, &tensors, gpus).unwrap().unwrap();
                let groups = groups(gpus, |one, other| one / group_len == other / group_len);
                let (buffers, reads) = carried_out(&arrangement, &catalog, &groups);
                let total: usize = reads.values().sum();
                assert_eq!(read_bytes(&catalog, &tensors, groups.len()), total as u64);
                for (gpu, buffer) in arrangement.gpus.iter().zip(&buffers) {
                    for part in &gpu.parts {
                        assert_eq!(buffer[part.range.clone()], expected(&catalog, part));
                        let size = catalog.info(part.id).dtype.size_bits() as usize / 8;
                        assert_eq!(part.range.start % size, 0);
                    }
                    // Nothing else is in the buffer.
                    let filled = buffer.iter().filter(|byte| byte.is_some()).count();
                    assert_eq!(filled, gpu.parts.iter().map(|part| part.range.len()).sum::<usize>());
                }
                // Each byte is read once for each group that needs it, and that is every byte.
                for (id, share) in &tensors {
                    let header = catalog.header(id.file);
                    let expected = if *share == Share::All { groups.len() } else { 1 };
                    for byte in header.in_file(header.nth(id.tensor).offsets) {
                        assert_eq!(reads[&(id.file, byte)], expected);
                    }
                }
            }
        }
    }
}

#[test]
fn shared_bytes_are_read_over_all_links_equally() {
    let rows = 23 * MIB / 8 + 5;
    let catalog = catalog(&[vec![(Dtype::F64, vec![rows]), (Dtype::U8, vec![77])]]);
    let tensors: Vec<_> = catalog.ids().map(|id| (id, Share::All)).collect();
    for gpus in [1, 2, 4, 8] {
        let arrangement = Arrangement::of(&catalog, &tensors, gpus).unwrap().unwrap();
        let all = vec![(0..gpus).collect::<Vec<_>>()];
        let (mut loads, mut reads, mut copies) = (vec![0; gpus], 0, 0);
        let done: Result<(), Infallible> = arrangement.moves(&catalog, &all, |step| {
            match step {
                Move::Read { offset, gpu, len, .. } => {
                    loads[gpu] += len;
                    reads += 1;
                    assert!(offset % 4096 == 0 || offset == catalog.header(0).data_start());
                }
                Move::Copy { .. } => copies += 1,
            }
            Ok(())
        });
        let Ok(()) = done;
        let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
        assert!(most - least <= 1 << 20, "{loads:?}");
        // Both tensors are one stretch. The rounding of cuts may leave one more piece.
        assert!(reads == gpus || reads == gpus + 1, "{reads}");
        assert_eq!(copies, reads * (gpus - 1));
    }
}

#[test]
fn partial_bytes_are_refused_with_the_tensor() {
    let catalog = catalog(&[vec![(Dtype::F4, vec![3, 6]), (Dtype::F4, vec![2, 4])]]);
    let of = |tensor: u32, axis, cut, gpus| {
        let tensors = [(Id { file: 0, tensor }, Share::Slice { axis, cut })];
        Arrangement::of(&catalog, &tensors, gpus)
    };
    assert!(of(0, 0, Cut::Even, 3).is_ok());
    assert!(of(0, 1, Cut::Even, 3).is_ok());
    let error = of(0, 1, Cut::Even, 2).unwrap_err().to_string();
    assert_eq!(error, r#"tensor "0.000": bits 0 to 12 are not whole bytes"#);
    assert!(of(1, 1, Cut::Even, 4).is_err() && of(1, 1, Cut::Chunks, 2).is_ok());
}

#[test]
fn groups_have_only_mutual_peers() {
    assert_eq!(groups(5, |_, _| false), [[0], [1], [2], [3], [4]]);
    assert_eq!(groups(3, |_, _| true), [[0, 1, 2]]);
    assert_eq!(groups(6, |one, other| one / 4 == other / 4), [vec![0, 1, 2, 3], vec![4, 5]]);
    // A chain: neighbours are peers, others are not.
    assert_eq!(groups(4, |one, other| one.abs_diff(other) == 1), [[0, 1], [2, 3]]);
    assert!(groups(0, |_, _| true).is_empty());
}
