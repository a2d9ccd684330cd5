//! The samples: their command lines, and the faults that must make them fail.

use Argument::{Gpu, Input, Large, LargeSize, Output, Word};
use Case::{Faults, Not, Survives};

#[derive(Clone, Copy)]
pub enum Argument {
    /// An existing file of this length.
    Input(u64),
    Output,
    Gpu(u32),
    /// A file of [`LARGE`] bytes; of fewer on the emulator, which measures no speed.
    Large,
    /// The number of bytes of that file.
    LargeSize,
    Word(&'static str),
}

pub const LARGE: u64 = 1 << 30;
pub const LARGE_EMULATED: u64 = 16 << 20;

/// The faults for a sample, and whether they must make it fail.
#[derive(Clone, Copy)]
pub enum Case {
    /// Commands of which each, in its own run, must make the sample fail.
    Faults(&'static [&'static str]),
    /// Commands with which the sample succeeds.
    Survives(&'static [&'static str]),
    /// No fault, for this reason.
    Not(&'static str),
}

pub struct Sample {
    pub name: &'static str,
    /// Command lines, of which the failure cases use the first.
    pub calls: &'static [&'static [Argument]],
    /// The case without a GPU, for samples without a GPU's index.
    pub no_gpu: Case,
    pub registration: Case,
    pub transfer: Case,
    pub other: &'static [&'static str],
}

impl Sample {
    const fn no_gpu(self, no_gpu: Case) -> Self {
        Self { no_gpu, ..self }
    }

    const fn other(self, other: &'static [&'static str]) -> Self {
        Self { other, ..self }
    }
}

const fn sample(
    name: &'static str,
    calls: &'static [&'static [Argument]],
    registration: Case,
    transfer: Case,
) -> Sample {
    Sample { name, calls, no_gpu: Faults(&["gpus 0"]), registration, transfer, other: &[] }
}

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

const ONE_FILE: Case = Faults(&["fault cuFileHandleRegister err=5027"]);
const ONE_FILE_AND_BUFFER: Case =
    Faults(&["fault cuFileHandleRegister err=5027", "fault cuFileBufRegister err=5011 cu=2"]);
const TWO_FILES: Case =
    Faults(&["fault cuFileHandleRegister err=5027", "fault cuFileHandleRegister after=1 err=5027"]);
const TWO_FILES_AND_BUFFER: Case = Faults(&[
    "fault cuFileHandleRegister err=5027",
    "fault cuFileHandleRegister after=1 err=5027",
    "fault cuFileBufRegister err=5011 cu=2",
]);
const TWO_FILES_AND_BUFFERS: Case = Faults(&[
    "fault cuFileHandleRegister err=5027",
    "fault cuFileHandleRegister after=1 err=5027",
    "fault cuFileBufRegister err=5011 cu=2",
    "fault cuFileBufRegister after=1 err=5011 cu=2",
]);
const ONE_FILE_AND_BUFFERS: Case = Faults(&[
    "fault cuFileHandleRegister err=5027",
    "fault cuFileBufRegister err=5011 cu=2",
    "fault cuFileBufRegister after=1 err=5011 cu=2",
]);
const STREAM: Case = Faults(&[
    "fault cuFileHandleRegister err=5027",
    "fault cuFileHandleRegister after=1 err=5027",
    "fault cuFileBufRegister err=5011 cu=2",
    "fault cuFileStreamRegister err=5030",
]);

const READS: Case = Faults(&["fault cuFileRead short=100", "fault cuFileRead after=8 short=100"]);
/// A read behind the end of a file cannot end short.
const READS_BEHIND_THE_END: Case =
    Faults(&["fault cuFileRead short=100", "fault cuFileRead after=8 errno=5"]);
const WRITE: Case = Faults(&["fault cuFileWrite short=100"]);
const COPY: Case = Faults(&["fault cuFileRead short=100", "fault cuFileWrite short=100"]);
const COPY_IN_PIECES: Case = Faults(&[
    "fault cuFileRead short=100",
    "fault cuFileRead after=12 short=100",
    "fault cuFileWrite short=100",
]);
const ENTRIES: Case = Faults(&["fault batch-entry bytes=100", "fault batch-entry after=3 bytes=100"]);
const ASYNC: Case = Faults(&["fault cuFileReadAsync bytes=100", "fault cuFileWriteAsync bytes=100"]);
const ASYNCS: Case = Faults(&[
    "fault cuFileReadAsync bytes=100",
    "fault cuFileReadAsync after=3 bytes=0",
    "fault cuFileWriteAsync after=3 bytes=0",
]);

const BATCH: &[&str] = &["fault cuFileBatchIOSetUp err=5022", "fault cuFileBatchIOSubmit err=5033"];

const COPIES: &[&[Argument]] = &[&[Output, Output, Gpu(0)]];

const CUFILE: Argument = Word("--cufile");
const POSIX: Argument = Word("--posix");

const PROGRAM: &[&[Argument]] = &[&[CUFILE, Output, Gpu(0)], &[Output, Gpu(0)], &[POSIX, Output, Gpu(0)]];
const KVIKIO_COPIES: &[&[Argument]] =
    &[&[CUFILE, Output, Output, Gpu(0)], &[Output, Output, Gpu(0)], &[POSIX, Output, Output, Gpu(0)]];

/// gpufile continues a short transfer.
const READ_ON: Case = Survives(&["fault cuFileRead short=100"]);
const COPY_ON: Case = Survives(&["fault cuFileRead short=100", "fault cuFileWrite short=100"]);
const COPY_FAILS: &[&str] = &["fault cuFileRead errno=5", "fault cuFileWrite errno=28"];

/// Sizes that are not powers of two; the last job has more blocks than the others.
const FIO: &[&[Argument]] = &[
    &[Output, Gpu(0), Word("cufile"), Word("randread"), Word("100000"), Word("10MiB"), Word("3")],
    &[Output, Gpu(0), Word("cufile"), Word("randwrite"), Word("128KiB"), Word("5000000"), Word("4")],
    &[Output, Gpu(0), Word("cufile"), Word("write"), Word("100000"), Word("1MiB"), Word("1")],
    &[Output, Gpu(0), Word("cufile"), Word("read"), Word("64KiB"), Word("8MiB"), Word("8")],
    &[Output, Gpu(0), Word("posix"), Word("randread"), Word("128KiB"), Word("5000000"), Word("4")],
    &[Output, Gpu(0), Word("posix"), Word("randwrite"), Word("100000"), Word("10MiB"), Word("3")],
];

const PATTERN: &[&[Argument]] = &[&[Large, Gpu(0), LargeSize]];

/// Of each vector.
const MAPPED: Case = Faults(&[
    "fault cuFileWrite short=100",
    "fault cuFileWrite after=1 short=100",
    "fault cuFileRead short=100",
    "fault cuFileRead after=1 short=100",
]);

pub const SAMPLES: &[Sample] = &[
    sample("sample_001_write_registered", &[&[Output, Gpu(0)]], ONE_FILE_AND_BUFFER, WRITE),
    sample("sample_002_write_unregistered", &[&[Output, Gpu(0)]], ONE_FILE, WRITE),
    sample("sample_003_copy_unregistered", COPIES, TWO_FILES, COPY),
    sample("sample_004_copy_driver_api_memory", COPIES, TWO_FILES, COPY)
        .other(&["fault cuMemAlloc_v2 err=2", "fault cuMemsetD8_v2 err=1"]),
    sample("sample_005_copy_through_buffer_middle", COPIES, TWO_FILES_AND_BUFFER, COPY),
    sample("sample_006_read_in_pieces", COPIES, TWO_FILES, COPY_IN_PIECES),
    sample("sample_007_driver_settings", &[&[]], Not("registers nothing"), Not("transfers nothing")).other(
        &[
            "fault cuFileDriverSetPollMode err=5022",
            "fault cuFileDriverSetMaxPinnedMemSize err=5022",
            "fault cuFileDriverSetMaxDirectIOSize err=5022",
            "fault cuFileDriverSetMaxCacheSize err=5022",
            "fault cuFileDriverOpen err=5030",
            "fault cuFileDriverGetProperties err=5011 cu=3",
            "fault cuFileDriverClose_v2 err=5001",
        ],
    ),
    sample("sample_008_error_names", &[&[]], Not("registers nothing"), Not("transfers nothing"))
        .no_gpu(Not("needs none"))
        .other(&["fault cuGetErrorName err=1"]),
    sample(
        "sample_009_two_threads_two_files",
        &[&[Input(128 * MIB), Input(128 * MIB)]],
        TWO_FILES_AND_BUFFERS,
        READS,
    ),
    sample(
        "sample_010_two_gpus_share_handle",
        &[&[Input(128 * MIB), Gpu(0), Gpu(1)]],
        ONE_FILE_AND_BUFFERS,
        READS,
    ),
    sample(
        "sample_011_two_gpus_unregistered",
        &[&[Input(1000 * MIB), Gpu(0), Gpu(1)]],
        ONE_FILE,
        // Once: each takes seconds.
        Faults(&["fault cuFileRead after=8 short=100"]),
    ),
    sample(
        "sample_012_pinned_memory_limit",
        &[&[Input(MIB), Input(MIB)]],
        TWO_FILES_AND_BUFFERS,
        READS_BEHIND_THE_END,
    )
    .other(&["fault cuFileDriverSetMaxPinnedMemSize err=5022"]),
    sample(
        "sample_013_many_threads",
        &[&[Input(4 * KIB), Input(4 * KIB), Word("4")]],
        TWO_FILES_AND_BUFFER,
        READS_BEHIND_THE_END,
    )
    .other(&["fault cuFileDriverSetMaxCacheSize err=5022"]),
    sample("sample_014_read_at_buffer_offsets", COPIES, TWO_FILES_AND_BUFFER, COPY_IN_PIECES),
    sample(
        "sample_015_copy_kinds_of_memory",
        &[
            &[Output, Output, Gpu(0), Word("1")],
            &[Output, Output, Gpu(0), Word("2")],
            &[Output, Output, Gpu(0), Word("3")],
        ],
        TWO_FILES,
        COPY,
    ),
    sample("sample_016_register_parts_by_thread", &[&[Input(100 * MIB)]], TWO_FILES_AND_BUFFERS, READS),
    sample("sample_017_share_registration", &[&[Input(100 * MIB)]], ONE_FILE_AND_BUFFER, READS),
    sample(
        "sample_018_unaligned_writes_locked",
        &[&[Input(4 * KIB)]],
        ONE_FILE,
        Faults(&[
            "fault cuFileWrite short=50",
            "fault cuFileWrite after=1 short=50",
            "fault cuFileRead short=50",
        ]),
    ),
    sample(
        "sample_019_batch_write",
        &[&[Output, Gpu(0), Word("32")], &[Output, Gpu(0), Word("32"), Word("1")]],
        ONE_FILE_AND_BUFFERS,
        ENTRIES,
    )
    .other(BATCH),
    sample(
        "sample_020_batch_read",
        &[&[Input(32 * 4 * KIB), Gpu(0), Word("32")], &[Input(32 * 4 * KIB), Gpu(0), Word("32"), Word("1")]],
        ONE_FILE_AND_BUFFERS,
        ENTRIES,
    )
    .other(BATCH),
    sample(
        "sample_021_batch_cancel",
        &[&[Input(32 * 4 * KIB), Gpu(0), Word("32")]],
        ONE_FILE_AND_BUFFERS,
        Not("cancelled entries move nothing"),
    )
    .other(BATCH),
    sample(
        "sample_022_batch_reap_in_rounds",
        &[&[Input(128 * 4 * KIB), Gpu(0)], &[Input(128 * 4 * KIB), Gpu(0), Word("1")]],
        ONE_FILE_AND_BUFFERS,
        ENTRIES,
    )
    .other(BATCH),
    sample("sample_023_mapped_memory", &[&[Output, Output]], TWO_FILES_AND_BUFFERS, MAPPED)
        .other(&["fault cuMemMap err=1", "fault cuFileBufDeregister err=5030"]),
    sample("sample_024_mapped_memory_one_file", &[&[Output]], TWO_FILES_AND_BUFFERS, COPY)
        .other(&["fault cuMemMap err=1"]),
    sample("sample_025_mapped_memory_reserved", &[&[Output, Output]], TWO_FILES_AND_BUFFERS, MAPPED)
        .other(&["fault cuMemMap after=1 err=2"]),
    sample("sample_026_mapped_memory_grown", &[&[Output, Output]], TWO_FILES_AND_BUFFERS, MAPPED)
        .other(&["fault cuMemMap after=1 err=2"]),
    sample(
        "sample_027_batch_unaligned",
        &[&[Output, Gpu(0), Word("32"), Word("0")], &[Output, Gpu(0), Word("32"), Word("1")]],
        ONE_FILE_AND_BUFFERS,
        ENTRIES,
    )
    .other(BATCH),
    sample("sample_028_write_without_o_direct", &[&[Output, Gpu(0)]], ONE_FILE_AND_BUFFER, WRITE),
    sample(
        "sample_029_batch_two_handles",
        &[&[Output, Gpu(0), Word("32"), Word("0")], &[Output, Gpu(0), Word("32"), Word("1")]],
        TWO_FILES_AND_BUFFERS,
        Faults(&["fault batch-entry bytes=2", "fault batch-entry after=3 bytes=2"]),
    )
    .other(BATCH),
    sample(
        "sample_030_batch_kinds_of_memory",
        &[
            &[Output, Gpu(0), Word("32"), Word("1"), Word("0")],
            &[Output, Gpu(0), Word("32"), Word("0"), Word("0")],
            &[Output, Gpu(0), Word("32"), Word("1"), Word("1")],
        ],
        TWO_FILES_AND_BUFFERS,
        Faults(&["fault batch-entry bytes=100", "fault batch-entry after=40 bytes=100"]),
    )
    .other(BATCH),
    sample("sample_031_default_stream", COPIES, STREAM, ASYNC),
    sample("sample_032_own_stream", COPIES, STREAM, ASYNC),
    sample("sample_033_four_streams", COPIES, STREAM, ASYNCS),
    sample("sample_034_four_streams_fixed_arguments", COPIES, STREAM, ASYNCS),
    sample("pattern_1_register_each_part", PATTERN, ONE_FILE_AND_BUFFERS, READS),
    sample("pattern_2_register_whole", PATTERN, ONE_FILE_AND_BUFFERS, READS),
    sample("pattern_3_unregistered", PATTERN, ONE_FILE_AND_BUFFERS, READS),
    sample("pattern_4_unaligned_file_offset", PATTERN, ONE_FILE_AND_BUFFERS, READS),
    sample("pattern_5_unaligned_buffer_offset", PATTERN, ONE_FILE_AND_BUFFERS, READS),
    sample("pattern_6_threads_share_buffer", PATTERN, ONE_FILE_AND_BUFFERS, READS),
    sample(
        "basic_io",
        &[
            &[CUFILE, Large, Gpu(0), LargeSize],
            &[Large, Gpu(0), LargeSize],
            &[POSIX, Large, Gpu(0), LargeSize],
        ],
        ONE_FILE_AND_BUFFER,
        READ_ON,
    )
    .other(&["fault cuFileRead errno=5"]),
    sample(
        "double_buffering",
        &[
            // The second chunk makes the file long enough.
            &[Input(8 * MIB + 1), Output, Gpu(0), Word("8MiB")],
            &[Input(100 * MIB), Output, Gpu(0)],
        ],
        Faults(&[
            "fault cuFileHandleRegister err=5027",
            "fault cuFileHandleRegister after=1 err=5027",
            "fault cuFileBufRegister err=5011 cu=2",
            "fault cuFileBufRegister after=1 err=5011 cu=2",
            "fault cuFileStreamRegister err=5030",
            "fault cuFileStreamRegister after=1 err=5030",
        ]),
        ASYNCS,
    ),
    sample("cudarc_checkpoint", PROGRAM, ONE_FILE, READ_ON).other(&["fault cuFileRead errno=5"]),
    sample("fio_engine", FIO, ONE_FILE_AND_BUFFER, Survives(&["fault cuFileRead short=100"]))
        .other(&["fault cuFileRead errno=5", "fault cuFileRead after=7 errno=5"]),
    // One failure is over when the block is tried again.
    sample("kv_blocks", PROGRAM, ONE_FILE, COPY_ON)
        .other(&["fault cuFileRead times=all errno=5", "fault cuFileWrite times=all errno=28"]),
    sample("kvikio_chunks", KVIKIO_COPIES, TWO_FILES, COPY_ON).other(COPY_FAILS),
    sample("kvikio_copy", KVIKIO_COPIES, TWO_FILES, COPY_ON).other(COPY_FAILS),
    sample("kvikio_futures", KVIKIO_COPIES, TWO_FILES, COPY_ON).other(COPY_FAILS),
    sample("kvikio_offsets", KVIKIO_COPIES, TWO_FILES, COPY_ON).other(COPY_FAILS),
    sample("kvikio_quickstart", PROGRAM, ONE_FILE, COPY_ON).other(COPY_FAILS),
    sample("kvikio_write", PROGRAM, ONE_FILE, Survives(&["fault cuFileWrite short=100"]))
        .other(&["fault cuFileWrite errno=28"]),
    sample("load_bench", PROGRAM, ONE_FILE, READ_ON).other(&["fault cuFileRead errno=5"]),
    sample("load_checkpoint", PROGRAM, ONE_FILE, READ_ON).other(&["fault cuFileRead errno=5"]),
    sample("load_placed", PROGRAM, ONE_FILE, READ_ON).other(&["fault cuFileRead errno=5"]),
    sample("load_ranks", &[&[CUFILE, Output], &[Output], &[POSIX, Output]], ONE_FILE, READ_ON).other(&[
        "fault cuFileRead errno=5",
        "fault ncclCommInitRankConfig err=2",
        "fault ncclAllGather err=4",
    ]),
    sample("save_checkpoint", PROGRAM, TWO_FILES, COPY_ON).other(COPY_FAILS),
    sample("profiling", &[&[Input(5 * 64 * MIB), Gpu(0)]], ONE_FILE_AND_BUFFERS, READS)
        .other(&["fault cuFileStatsStart err=5030"]),
    sample(
        "roundtrip",
        &[
            &[Word("--size"), Word("32MiB"), Word("--cufile"), Output],
            &[Word("--size"), Word("32MiB"), Output],
            &[Word("--size"), Word("32MiB"), Word("--posix"), Output],
        ],
        Not("does without cuFile then"),
        COPY_ON,
    )
    .no_gpu(Not("takes host memory then"))
    .other(COPY_FAILS),
    sample("storage", PROGRAM, ONE_FILE, COPY_ON).other(COPY_FAILS),
    sample(
        "stress",
        &[&[Word("--seconds"), Word("2"), Word("--seed"), Word("1"), Output, Gpu(0)]],
        Not("does without cuFile then"),
        Faults(&["fault cuFileRead errno=5 times=all", "fault cuFileWrite errno=28 times=all"]),
    )
    .other(&["fault cudaMemcpyAsync err=700 times=all"]),
    sample(
        "vector_io",
        &[&[Input(101 * MIB), Output, Gpu(0)]],
        TWO_FILES_AND_BUFFERS,
        Faults(&[
            "fault batch-entry bytes=100",
            "fault batch-entry after=3 bytes=100",
            "fault cuFileWritev short=100",
            "fault cuFileReadv short=100",
        ]),
    )
    .other(BATCH),
    // After ENOSPC, a save tries once more if it found files that no process had locked yet: those of its other threads, too.
    sample("zarr_bench", PROGRAM, ONE_FILE, COPY_ON)
        .other(&["fault cuFileRead errno=5", "fault cuFileWrite errno=5"]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::workspace;

    #[test]
    fn every_example_has_one_row() {
        let mut examples = Vec::new();
        for package in ["cufile", "gpufile"] {
            let folder = workspace().join(package).join("examples");
            for entry in std::fs::read_dir(folder).expect("a folder of examples") {
                let path = entry.expect("an entry").path();
                if path.extension().is_some_and(|extension| extension == "rs") {
                    let name = path.file_stem().expect("a name").to_str().expect("in UTF-8");
                    examples.push(name.to_owned());
                }
            }
        }
        let mut rows: Vec<_> = SAMPLES.iter().map(|sample| sample.name).collect();
        examples.sort();
        rows.sort();
        assert_eq!(examples, rows);
        let index = workspace().join("cufile/examples/README.md");
        let index = std::fs::read_to_string(index).expect("the list of examples");
        for name in rows.iter().filter(|name| workspace().join(format!("cufile/examples/{name}.rs")).exists())
        {
            assert!(index.contains(&format!("| [{name}]({name}.rs) |")), "{name} is not in the list");
        }
    }
}
