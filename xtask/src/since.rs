//! The library version that brought each function. A new function needs a line in this table.
//!
//! A function not listed is in every supported version, so its symbol is required; a listed one is an `Option`.
//! `cargo xtask conformance` compares these versions with the headers and the real libraries.

/// Functions newer than cuFile 1.11, with the release that brought them.
pub const CUFILE: &[(&str, &[&str])] = &[
    (
        "1.14",
        &[
            "cuFileGetParameterSizeT",
            "cuFileGetParameterBool",
            "cuFileGetParameterString",
            "cuFileSetParameterSizeT",
            "cuFileSetParameterBool",
            "cuFileSetParameterString",
        ],
    ),
    (
        "1.15",
        &[
            "cuFileGetParameterMinMaxValue",
            "cuFileSetParameterPosixPoolSlabArray",
            "cuFileGetParameterPosixPoolSlabArray",
            "cuFileSetStatsLevel",
            "cuFileGetStatsLevel",
            "cuFileStatsStart",
            "cuFileStatsStop",
            "cuFileStatsReset",
            "cuFileGetStatsL1",
            "cuFileGetStatsL2",
            "cuFileGetStatsL3",
            "cuFileGetBARSizeInKB",
        ],
    ),
    ("1.16", &["cuFileDriverGetP2PFlags", "cuFileDriverSetP2PFlags"]),
    (
        "1.17",
        &[
            "cuFileExportPCIeTopology",
            "cuFileSetParameterGpuBounceBufferSlabArray",
            "cuFileGetParameterGpuBounceBufferSlabArray",
        ],
    ),
    ("1.19", &["cuFileReadv", "cuFileWritev"]),
];

/// Functions newer than CUDA 11.8. cudaMemcpyBatchAsync came with 12.8 under another signature, which `cuda-rt-sys`
/// declares by hand. The table has the signature of 13.0.
pub const CUDA_RUNTIME: &[(&str, &[&str])] = &[("13.0", &["cudaMemcpyBatchAsync"])];

pub const CUDA_DRIVER: &[(&str, &[&str])] = &[];

/// Returns the release that brought `function`, or `None` if every supported version has it.
pub fn since(table: &'static [(&str, &[&str])], function: &str) -> Option<&'static str> {
    table.iter().find(|(_, functions)| functions.contains(&function)).map(|(release, _)| *release)
}
