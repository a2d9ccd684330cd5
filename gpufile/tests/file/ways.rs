//! Tests of every method that takes memory: on each route and kind of memory, and at the end of the file.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::Path;

use gpufile::{Cause, Engine, File, IoRange, RoutePolicy};
use testkit::bed::{Bed, pattern};
use testkit::memory::{Kind, Memory};
use testkit::ways::{ALIKE, AtEnd, EXCEPTIONS, Moves, WAYS};

/// A length of several chunks.
const LEN: usize = (1 << 20) + 321;

fn open(bed: &Bed, name: &str, policy: RoutePolicy) -> File {
    let engine = Engine::builder().driver(bed.driver.clone()).chunk_bytes(300_000).build();
    let options = File::options().read(true).write(true).create(true).engine(&engine);
    options.policy(policy).open(bed.path(name)).unwrap()
}

#[test]
fn every_way_moves_the_bytes_on_every_route() {
    Bed::each(|bed| {
        let bytes = pattern(LEN);
        let stream = bed.device.stream().unwrap();
        for policy in [RoutePolicy::RequireCufile, RoutePolicy::PosixOnly] {
            let file = open(bed, &format!("{policy:?}"), policy);
            file.write_all_at(&bytes, 0).unwrap();
            for alike in ALIKE {
                let file = (alike.of)(&file).unwrap();
                for way in WAYS.iter().filter(|way| alike.is_writable || !way.is_write()) {
                    for kind in Kind::ALL {
                        let memory = |bytes: &[u8]| Memory::new(kind, &bed.driver, &bed.device, bytes);
                        let moved = way.check::<Box<dyn Error>>(&file, Some(&stream), &bytes, memory);
                        moved.unwrap_or_else(|error| {
                            panic!("{}{}, {kind:?} memory, {policy:?}: {error}", alike.name, way.name)
                        });
                    }
                }
            }
        }
    });
}

#[test]
fn every_read_meets_the_end_as_its_row_says() {
    const LEFT: usize = 700;
    Bed::each(|bed| {
        let stream = bed.device.stream().unwrap();
        for policy in [RoutePolicy::RequireCufile, RoutePolicy::PosixOnly] {
            let name = format!("{policy:?}");
            bed.file(&name, &pattern(LEN));
            let file = open(bed, &name, policy);
            for (way, kind) in WAYS.iter().flat_map(|way| Kind::ALL.map(|kind| (way, kind))) {
                let Moves::Reads(at_end) = way.moves else { continue };
                let memory = Memory::new(kind, &bed.driver, &bed.device, &[0; 5000]).unwrap();
                let range = IoRange { file_offset: (LEN - LEFT) as u64, buffer_offset: 0, len_bytes: 5000 };
                let (result, memory) = way.run(&file, Some(&stream), memory, &[range]);
                let text = format!("{}, {kind:?} memory, {policy:?}: {result:?}", way.name);
                match at_end {
                    AtEnd::Short => assert!(matches!(result, Ok(LEFT)), "{text}"),
                    AtEnd::Fails => {
                        let error = result.expect_err(&text);
                        let at = LEN as u64;
                        assert!(
                            matches!(error.cause(), Cause::EndOfFile { at: end } if *end == at),
                            "{text}"
                        );
                    }
                }
                assert!(memory.get(0..LEFT).unwrap() == pattern(LEN)[LEN - LEFT..], "{text}");
            }
        }
    });
}

#[test]
fn every_method_that_takes_memory_has_a_row() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("public-api.txt");
    let list = fs::read_to_string(path).unwrap();
    let methods = list.lines().filter_map(|line| line.split_once("fn gpufile::File::"));
    let takes_memory = methods.filter(|(_, method)| method.contains("IoBuf") || method.contains("[u8]"));
    let name = |(_, method): (_, &str)| method.split(['<', '(']).next().unwrap().to_owned();
    let methods: BTreeSet<_> = takes_memory.map(name).collect();
    let rows: Vec<_> =
        WAYS.iter().map(|way| way.name).chain(EXCEPTIONS.iter().map(|(name, _)| *name)).collect();
    let listed: BTreeSet<_> = rows.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(rows.len(), listed.len(), "a method has two rows");
    assert_eq!(methods, listed, "the methods of public-api.txt, and the rows of testkit/src/ways.rs");
}
