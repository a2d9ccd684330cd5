//! Tests of the places of tensors in memory: those of a load, and those of the groups that the Python package fills.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use gpufile::formats::safetensors::{Checkpoint, Cut, Header, NewTensor, Share, TensorInfo, planning};
use gpufile::formats::{Dtype, Error};
use tempfile::tempdir;

const TYPES: &str = "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 \
                     I32 U32 F32 C64 F64 I64 U64";

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn write(random: &mut Random, path: &Path, prefix: u64) {
    let dtypes: Vec<_> = TYPES.split(' ').map(|name| Dtype::from_safetensors(name).unwrap()).collect();
    let count = 1 + random.below(14);
    let names: Vec<_> = (0..count).map(|number| format!("{prefix}.{number:02}")).collect();
    let mut tensor = || {
        let dtype = dtypes[random.below(dtypes.len() as u64) as usize];
        let mut shape: Vec<_> = (0..random.below(4)).map(|_| random.below(9)).collect();
        if dtype.size_bits() < 8 {
            shape.push(4 * random.below(5));
        }
        (dtype, shape)
    };
    let tensors: Vec<_> = names.iter().map(|_| tensor()).collect();
    let new: Vec<_> = names
        .iter()
        .zip(&tensors)
        .map(|(name, (dtype, shape))| NewTensor { name, dtype: *dtype, shape })
        .collect();
    let (header, mut file) = Header::build(&new, BTreeMap::new()).unwrap();
    file.resize_with(header.file_len_bytes() as usize, || random.below(256) as u8);
    fs::write(path, file).unwrap();
}

fn alignment(info: &TensorInfo<'_>, len_bytes: usize) -> usize {
    if len_bytes < 16 { info.dtype.size_bits().div_ceil(8) as usize } else { 16 }
}

/// Returns the names and places in the groups, with a check of their order and alignment.
fn places(groups: &[planning::Group], limit_bytes: usize) -> BTreeMap<String, (usize, usize)> {
    let mut found = BTreeMap::new();
    for (number, group) in groups.iter().enumerate() {
        let mut end = 0;
        for (info, slice, start) in group.places() {
            assert!(slice.is_none());
            let len_bytes = info.len_bytes() as usize;
            assert_eq!(start % alignment(&info, len_bytes), 0);
            if len_bytes > 0 {
                assert_eq!(start, usize::next_multiple_of(end, alignment(&info, len_bytes)));
                end = start + len_bytes;
            }
            found.insert(info.name.to_owned(), (number, start));
        }
        assert_eq!(end, group.len_bytes());
        let filled = group.places().filter(|(info, ..)| info.len_bytes() > 0).count();
        assert!(end <= limit_bytes || filled == 1, "{end} bytes");
    }
    found
}

#[test]
fn groups_have_the_places_of_a_load() {
    let folder = tempdir().unwrap();
    let mut random = Random(11);
    for case in 0..60 {
        let paths: Vec<_> =
            (0..1 + random.below(3)).map(|number| folder.path().join(number.to_string())).collect();
        for (number, path) in (0..).zip(&paths) {
            write(&mut random, path, number);
        }
        let checkpoint = Checkpoint::open_with(&paths, &gpufile::OpenOptions::new()).unwrap();
        let all = |_: &TensorInfo<'_>| Ok::<_, Error>(Share::All);
        let plan = checkpoint.plan(None, 1, all).unwrap();
        let limit_bytes = [usize::MAX, 1 + random.below(2000) as usize][case % 2];
        let places = places(&plan.shared(limit_bytes).unwrap(), limit_bytes);
        let loaded = checkpoint.load().to_host().unwrap();
        assert_eq!(places.len(), loaded.iter().len());
        let ranges = loaded.iter().filter(|view| !view.range.is_empty()).map(|view| view.range.start);
        let first = ranges.min().unwrap_or(0);
        // The start of each file in the buffer of the load.
        let mut starts = BTreeMap::new();
        for view in loaded.iter().filter(|view| !view.range.is_empty()) {
            let start = view.range.start - first;
            assert_eq!(start % alignment(&view.info, view.range.len()), 0, "{}", view.info.name);
            let of_file = *starts.entry(view.info.name.split('.').next().unwrap()).or_insert(start);
            assert_eq!(of_file % 256, 0);
            if limit_bytes == usize::MAX {
                assert_eq!(places[view.info.name].1, start - of_file);
            }
            let mut alone = vec![0; view.range.len()];
            checkpoint.read_tensor_into(view.info.name, &mut alone).unwrap();
            assert!(loaded.bytes(view.info.name) == Some(&alone[..]));
        }
    }
}

#[test]
fn slices_of_all_devices_are_the_whole_tensor() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let tensors = [
        NewTensor { name: "a", dtype: Dtype::F32, shape: &[5, 7] },
        NewTensor { name: "b", dtype: Dtype::U8, shape: &[3, 2, 11] },
        NewTensor { name: "c", dtype: Dtype::F16, shape: &[1001] },
        NewTensor { name: "d", dtype: Dtype::F4, shape: &[9, 4] },
    ];
    let (header, mut file) = Header::build(&tensors, BTreeMap::new()).unwrap();
    let mut random = Random(3);
    file.resize_with(header.file_len_bytes() as usize, || random.below(256) as u8);
    fs::write(&path, &file).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    for devices in [1, 2, 3, 8] {
        for cut in [Cut::Even, Cut::Chunks] {
            let rule = |info: &TensorInfo<'_>| {
                let axis = if info.dtype == Dtype::F4 { 0 } else { info.shape.len() - 1 };
                Ok::<_, Error>(Share::Slice { axis, cut })
            };
            let plan = checkpoint.plan(None, devices, rule).unwrap();
            assert!(plan.shared(usize::MAX).unwrap().is_empty());
            let mut sources: Vec<Range<u64>> = Vec::new();
            for device in 0..devices {
                for group in plan.own(device, usize::MAX).unwrap() {
                    for stretch in group.within(0..group.len_bytes()) {
                        sources.push(stretch.file_offset..stretch.file_offset + stretch.len_bytes as u64);
                    }
                    for (info, bounds, start) in group.places() {
                        let elements =
                            bounds.unwrap().iter().map(|range| range.end - range.start).product::<u64>();
                        let len_bytes = elements as usize * info.dtype.size_bits() as usize / 8;
                        assert_eq!(start % alignment(&info, len_bytes), 0);
                    }
                }
            }
            sources.sort_by_key(|range| range.start);
            assert_eq!(
                sources.iter().map(|range| range.end - range.start).sum::<u64>(),
                header.data_len_bytes()
            );
            assert!(sources.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }
}

#[test]
fn parts_of_tensors_have_their_bytes_and_order() {
    let folder = tempdir().unwrap();
    let (path, other) = (folder.path().join("a.safetensors"), folder.path().join("b.safetensors"));
    let mut random = Random(11);
    for (path, name) in [(&path, "x"), (&other, "y")] {
        let tensors = [NewTensor { name, dtype: Dtype::U8, shape: &[6, 5, 4] }];
        let (header, mut file) = Header::build(&tensors, BTreeMap::new()).unwrap();
        file.resize_with(header.file_len_bytes() as usize, || random.below(256) as u8);
        fs::write(path, file).unwrap();
    }
    let files = [fs::read(&path).unwrap(), fs::read(&other).unwrap()];
    let checkpoint = Checkpoint::open_with([&path, &other], &gpufile::OpenOptions::new()).unwrap();
    let boxes =
        [vec![4..6, 0..5, 0..4], vec![0..2, 1..3, 3..4], vec![5..5, 0..5, 0..4], vec![0..1, 0..1, 0..4]];
    let mut parts = vec![("y".to_owned(), Some(boxes[1].clone())), ("y".to_owned(), None)];
    parts.extend(boxes.iter().map(|bounds| ("x".to_owned(), Some(bounds.clone()))));
    for limit_bytes in [0, 1, 17, 40, 100, usize::MAX] {
        let groups = checkpoint.parts(parts.clone(), limit_bytes).unwrap();
        let places: Vec<_> =
            groups.iter().flat_map(|group| group.places().map(move |place| (group, place))).collect();
        let order: Vec<_> = places.iter().map(|(_, (info, bounds, _))| (info.name, *bounds)).collect();
        let mut expected: Vec<_> = boxes.iter().map(|bounds| ("x", Some(&bounds[..]))).collect();
        expected.extend([("y", Some(&boxes[1][..])), ("y", None)]);
        assert_eq!(order, expected);
        assert_eq!(groups.len() == 2, limit_bytes == usize::MAX, "{limit_bytes}");
        for (group, (info, bounds, start)) in places {
            assert!(group.len_bytes() <= limit_bytes.max(120));
            let file = &files[group.file()];
            let data = &file[group.header().in_file(info.offsets.clone()).start as usize..];
            let whole = [0..6, 0..5, 0..4];
            let [rows, columns, elements] = bounds.unwrap_or(&whole) else { panic!("there are three axes") };
            let indices = |row: u64| columns.clone().map(move |column| (row * 5 + column) * 4);
            let bytes: Vec<_> = rows.clone().flat_map(indices).collect();
            let bytes =
                bytes.iter().flat_map(|at| elements.clone().map(move |element| (at + element) as usize));
            let expected: Vec<_> = bytes.map(|at| data[at]).collect();
            let found: Vec<_> = group
                .within(start..start + expected.len())
                .flat_map(|stretch| &file[stretch.file_offset as usize..][..stretch.len_bytes])
                .copied()
                .collect();
            assert_eq!(found, expected, "{} {bounds:?} in groups of {limit_bytes}", info.name);
        }
    }
    let missing = checkpoint.parts(vec![("z".to_owned(), None)], 1).unwrap_err();
    assert!(matches!(missing, Error::NoSuchTensor { .. }));
    let outside = checkpoint.parts(vec![("x".to_owned(), Some(vec![0..7, 0..5, 0..4]))], 1).unwrap_err();
    assert!(matches!(outside, Error::Format { .. }));
}

#[test]
fn plans_differ_by_share_and_by_number_of_devices() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&mut Random(5), &path, 0);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let number = |devices, share| checkpoint.plan(None, devices, |_| Ok::<_, Error>(share)).unwrap().number();
    let numbers =
        [number(2, Share::All), number(3, Share::All), number(2, Share::On(0)), number(2, Share::On(1))];
    assert_eq!(number(2, Share::All), numbers[0]);
    for (at, one) in numbers.iter().enumerate() {
        assert!(!numbers[at + 1..].contains(one));
    }
}

#[test]
fn errors_of_the_rule_end_the_plan() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&mut Random(5), &path, 0);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let error = || Error::from(gpufile::File::open(path.join("none")).unwrap_err());
    assert!(matches!(checkpoint.plan(None, 1, |_| Err(error())), Err(Error::File(_))));
    let refused = checkpoint.plan(None, 2, |_| Ok::<_, Error>(Share::On(2))).unwrap_err();
    assert!(
        refused.to_string().ends_with("cannot place it on GPU 2, because the list has 2 GPUs"),
        "{refused}"
    );
}
