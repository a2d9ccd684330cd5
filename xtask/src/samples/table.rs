//! The samples: how each is called, and what must make it fail.

use Argument::{Gpu, Input, Large, LargeSize, Output, Word};
use Case::{Faults, Not, Survives};

/// An argument on a sample's command line.
#[derive(Clone, Copy)]
pub enum Argument {
    /// A file that is there before, of as many bytes as the sample needs.
    Input(u64),
    /// A file that the sample makes.
    Output,
    /// The index of a GPU.
    Gpu(u32),
    /// A file of [`LARGE`] bytes; of fewer on the emulator, where speed means nothing.
    Large,
    /// How many bytes that is.
    LargeSize,
    /// Anything else.
    Word(&'static str),
}

pub const LARGE: u64 = 1 << 30;
pub const LARGE_EMULATED: u64 = 16 << 20;

/// What must make a sample fail.
#[derive(Clone, Copy)]
pub enum Case {
    /// Each of these commands to the emulator, one in each run.
    Faults(&'static [&'static str]),
    /// None of these: the sample makes up for it, and succeeds.
    Survives(&'static [&'static str]),
    /// Nothing, because.
    Not(&'static str),
}

pub struct Sample {
    pub name: &'static str,
    /// Ways to call it; the failure cases take the first.
    pub calls: &'static [&'static [Argument]],
    /// No GPU at all, for samples that are not given a GPU's index.
    pub no_gpu: Case,
    pub registration: Case,
    pub transfer: Case,
    /// Beyond what holds for all samples.
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
const WRITE: Case = Faults(&["fault cuFileWrite short=100"]);
const COPY: Case = Faults(&["fault cuFileRead short=100", "fault cuFileWrite short=100"]);
const COPY_IN_PIECES: Case = Faults(&[
    "fault cuFileRead short=100",
    "fault cuFileRead after=300 short=100",
    "fault cuFileWrite short=100",
]);
const ENTRIES: Case = Faults(&["fault batch-entry bytes=100", "fault batch-entry after=3 bytes=100"]);
const ASYNC: Case = Faults(&["fault cuFileReadAsync bytes=100", "fault cuFileWriteAsync bytes=100"]);
const ASYNCS: Case = Faults(&[
    "fault cuFileReadAsync bytes=100",
    "fault cuFileReadAsync after=3 bytes=100",
    "fault cuFileWriteAsync after=3 bytes=100",
]);

const BATCH: &[&str] = &["fault cuFileBatchIOSetUp err=5022", "fault cuFileBatchIOSubmit err=5033"];

const COPIES: &[&[Argument]] = &[&[Output, Output, Gpu(0)]];

const CUFILE: Argument = Word("--cufile");
const POSIX: Argument = Word("--posix");

const PROGRAM: &[&[Argument]] = &[&[CUFILE, Output, Gpu(0)], &[Output, Gpu(0)], &[POSIX, Output, Gpu(0)]];
const KVIKIO_COPIES: &[&[Argument]] =
    &[&[CUFILE, Output, Output, Gpu(0)], &[Output, Output, Gpu(0)], &[POSIX, Output, Output, Gpu(0)]];

/// gpufile goes on where a transfer stopped.
const READ_ON: Case = Survives(&["fault cuFileRead short=100"]);
const COPY_ON: Case = Survives(&["fault cuFileRead short=100", "fault cuFileWrite short=100"]);
const COPY_FAILS: &[&str] = &["fault cuFileRead errno=5", "fault cuFileWrite errno=28"];

const PATTERN: &[&[Argument]] = &[&[Large, Gpu(0), LargeSize]];

/// One for each vector, or two.
const TWO_READS: Case = Faults(&["fault cuFileRead short=100", "fault cuFileRead after=1 short=100"]);

pub const SAMPLES: &[Sample] = &[
    sample("cufile_sample_001", &[&[Output, Gpu(0)]], ONE_FILE_AND_BUFFER, WRITE),
    sample("cufile_sample_002", &[&[Output, Gpu(0)]], ONE_FILE, WRITE),
    sample("cufile_sample_003", COPIES, TWO_FILES, COPY),
    sample("cufile_sample_004", COPIES, TWO_FILES, COPY)
        .other(&["fault cuMemAlloc_v2 err=2", "fault cuMemsetD8_v2 err=1"]),
    sample("cufile_sample_005", COPIES, TWO_FILES_AND_BUFFER, COPY),
    sample("cufile_sample_006", COPIES, TWO_FILES, COPY_IN_PIECES),
    sample("cufile_sample_007", &[&[]], Not("registers nothing"), Not("transfers nothing")).other(&[
        "fault cuFileDriverSetPollMode err=5022",
        "fault cuFileDriverSetMaxDirectIOSize err=5022",
        "fault cuFileDriverSetMaxCacheSize err=5022",
        "fault cuFileDriverSetMaxPinnedMemSize err=5022",
        "fault cuFileDriverOpen err=5030",
        "fault cuFileDriverGetProperties err=5011 cu=3",
        "fault cuFileDriverClose_v2 err=5001",
    ]),
    sample("cufile_sample_008", &[&[]], Not("registers nothing"), Not("transfers nothing"))
        .no_gpu(Not("needs none"))
        .other(&["fault cuGetErrorName err=1"]),
    sample("cufile_sample_009", &[&[Input(64 * MIB), Input(64 * MIB)]], TWO_FILES_AND_BUFFERS, READS),
    sample("cufile_sample_010", &[&[Input(64 * MIB), Gpu(0), Gpu(1)]], ONE_FILE_AND_BUFFERS, READS),
    sample(
        "cufile_sample_011",
        &[&[Input(1000 * MIB), Gpu(0), Gpu(1)]],
        ONE_FILE,
        // Once: each takes seconds.
        Faults(&["fault cuFileRead after=8 short=100"]),
    ),
    sample("cufile_sample_012", &[&[Input(64 * MIB), Input(64 * MIB)]], TWO_FILES_AND_BUFFERS, READS)
        .other(&["fault cuFileDriverSetMaxPinnedMemSize err=5022"]),
    sample("cufile_sample_013", &[&[Input(32 * MIB), Input(32 * MIB)]], TWO_FILES_AND_BUFFER, READS)
        .other(&["fault cuFileDriverSetMaxCacheSize err=5022"]),
    sample("cufile_sample_014", COPIES, TWO_FILES_AND_BUFFER, COPY_IN_PIECES),
    sample(
        "cufile_sample_015",
        &[
            &[Output, Output, Gpu(0), Word("1")],
            &[Output, Output, Gpu(0), Word("2")],
            &[Output, Output, Gpu(0), Word("3")],
        ],
        TWO_FILES,
        COPY,
    ),
    sample("cufile_sample_016", &[&[Input(100 * MIB)]], TWO_FILES_AND_BUFFERS, READS),
    sample("cufile_sample_017", &[&[Input(100 * MIB)]], ONE_FILE_AND_BUFFER, READS),
    sample(
        "cufile_sample_018",
        &[&[Output]],
        TWO_FILES,
        Faults(&["fault cuFileWrite short=100", "fault cuFileWrite after=8 short=100"]),
    ),
    sample(
        "cufile_sample_019",
        &[&[Output, Gpu(0), Word("32")], &[Output, Gpu(0), Word("32"), Word("1")]],
        ONE_FILE_AND_BUFFERS,
        ENTRIES,
    )
    .other(BATCH),
    sample(
        "cufile_sample_020",
        &[&[Input(32 * 4 * KIB), Gpu(0), Word("32")], &[Input(32 * 4 * KIB), Gpu(0), Word("32"), Word("1")]],
        ONE_FILE_AND_BUFFERS,
        ENTRIES,
    )
    .other(BATCH),
    sample(
        "cufile_sample_021",
        &[&[Input(32 * 128 * KIB), Gpu(0), Word("32")]],
        ONE_FILE_AND_BUFFERS,
        // Whatever the cancelled batch comes to, the second one must complete.
        Faults(&["fault batch-entry bytes=100 times=all"]),
    )
    .other(BATCH),
    sample(
        "cufile_sample_022",
        &[&[Input(128 * 64 * KIB), Gpu(0)], &[Input(128 * 64 * KIB), Gpu(0), Word("1")]],
        ONE_FILE_AND_BUFFERS,
        ENTRIES,
    )
    .other(BATCH),
    sample("cufile_sample_023", &[&[Output, Output]], TWO_FILES_AND_BUFFERS, TWO_READS)
        .other(&["fault cuMemMap err=1"]),
    sample("cufile_sample_024", &[&[Output]], ONE_FILE_AND_BUFFERS, TWO_READS)
        .other(&["fault cuMemMap err=1"]),
    sample("cufile_sample_025", &[&[Output, Output]], TWO_FILES_AND_BUFFERS, TWO_READS)
        .other(&["fault cuMemMap after=1 err=2"]),
    sample("cufile_sample_026", &[&[Output, Output]], TWO_FILES_AND_BUFFERS, TWO_READS)
        .other(&["fault cuMemMap after=1 err=2"]),
    sample(
        "cufile_sample_027",
        &[&[Output, Gpu(0), Word("32"), Word("0")], &[Output, Gpu(0), Word("32"), Word("1")]],
        ONE_FILE_AND_BUFFERS,
        ENTRIES,
    )
    .other(BATCH),
    sample("cufile_sample_028", &[&[Output, Gpu(0)]], ONE_FILE_AND_BUFFER, WRITE),
    sample(
        "cufile_sample_029",
        &[&[Output, Gpu(0), Word("32"), Word("0")], &[Output, Gpu(0), Word("32"), Word("1")]],
        TWO_FILES_AND_BUFFERS,
        ENTRIES,
    )
    .other(BATCH),
    sample(
        "cufile_sample_030",
        &[
            &[Output, Gpu(0), Word("32"), Word("1"), Word("0")],
            &[Output, Gpu(0), Word("32"), Word("0"), Word("0")],
            &[Output, Gpu(0), Word("32"), Word("1"), Word("1")],
        ],
        ONE_FILE_AND_BUFFERS,
        Faults(&["fault batch-entry bytes=100", "fault batch-entry after=40 bytes=100"]),
    )
    .other(BATCH),
    sample("cufile_sample_031", COPIES, STREAM, ASYNC),
    sample("cufile_sample_032", COPIES, STREAM, ASYNC),
    sample("cufile_sample_033", COPIES, STREAM, ASYNCS),
    sample("cufile_sample_034", COPIES, STREAM, ASYNCS),
    sample("io_pattern_1", PATTERN, ONE_FILE_AND_BUFFERS, READS),
    sample("io_pattern_2", PATTERN, ONE_FILE_AND_BUFFERS, READS),
    sample("io_pattern_3", PATTERN, ONE_FILE_AND_BUFFERS, READS),
    sample("io_pattern_4", PATTERN, ONE_FILE_AND_BUFFERS, READS),
    sample("io_pattern_5", PATTERN, ONE_FILE_AND_BUFFERS, READS),
    sample("io_pattern_6", PATTERN, ONE_FILE_AND_BUFFERS, READS),
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
            // The second chunk is what makes the file long enough.
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
    sample("kvikio_chunks", KVIKIO_COPIES, TWO_FILES, COPY_ON).other(COPY_FAILS),
    sample("kvikio_copy", KVIKIO_COPIES, TWO_FILES, COPY_ON).other(COPY_FAILS),
    sample("kvikio_futures", KVIKIO_COPIES, TWO_FILES, COPY_ON).other(COPY_FAILS),
    sample("kvikio_offsets", KVIKIO_COPIES, TWO_FILES, COPY_ON).other(COPY_FAILS),
    sample("kvikio_quickstart", PROGRAM, ONE_FILE, COPY_ON).other(COPY_FAILS),
    sample("kvikio_write", PROGRAM, ONE_FILE, Survives(&["fault cuFileWrite short=100"]))
        .other(&["fault cuFileWrite errno=28"]),
    sample("load_bench", PROGRAM, ONE_FILE, READ_ON).other(&["fault cuFileRead errno=5"]),
    sample("load_checkpoint", PROGRAM, ONE_FILE, READ_ON).other(&["fault cuFileRead errno=5"]),
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
    sample("zarr_bench", PROGRAM, ONE_FILE, COPY_ON).other(COPY_FAILS),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages::workspace;

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
    }
}
