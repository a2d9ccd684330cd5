//! Troubles of models and of files that change or end early.

use super::super::Entry;
use super::Trouble;

pub const TROUBLES: &[Trouble] = &[
    Trouble {
        title: "A model's file is damaged or incomplete",
        seen: &[
            "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
            "Error while deserializing header: InvalidHeaderDeserialization",
            "Error while deserializing header: MetadataIncompleteBuffer",
            "Error while deserializing header: incomplete metadata, file not fully covered",
        ],
        marks: &[
            "deserializing header",
            "headertoolarge",
            "header too large",
            "metadataincompletebuffer",
            "incomplete metadata, file not fully covered",
        ],
        entry: Entry {
            meaning: "the file is not a whole safetensors file",
            cause: "a download or a copy that ended early; a pointer of Git LFS, a page of an error or another format under \
                    the name of the model; or the file is still being written",
            remedy: "get the file again (with `git lfs pull` for a pointer), and compare its length and hash with the source",
            proof: "gpufile ls names the format or the missing bytes; gpufile verify compares hashes",
        },
    },
    Trouble {
        title: "A model lacks tensors or shards",
        seen: &[
            "FileNotFoundError: No such file or directory: \"model-00002-of-00003.safetensors\"",
            "ValueError: Following weights were not initialized from checkpoint: {'lm_head.weight'}",
        ],
        marks: &[
            "-of-0*.safetensors",
            "weights were not initialized from checkpoint",
            "model.safetensors.index.json",
        ],
        entry: Entry {
            meaning: "tensors that the program wants are in none of the files",
            cause: "shards are missing after an incomplete download, the index names other files than those that are there, or \
                    the model is of another architecture than the program expects; shared weights may be stored once",
            remedy: "get the missing shards or the index that belongs to them; docs/models.md has the rule that finds the files",
            proof: "gpufile ls, given the folder, lists the tensors, and names missing shards and stale indexes",
        },
    },
    Trouble {
        title: "A bus error",
        seen: &["Bus error (core dumped)", "exited with code 135"],
        marks: &["bus error", "sigbus", "code 135", "code: 135", "status 135"],
        entry: Entry {
            meaning: "the program read mapped memory that has no file or no memory behind it",
            cause: "a file was shortened or replaced in place while it was mapped, as most loaders of models map it; the storage \
                    failed a read; or /dev/shm is full, which is 64 MiB in a container",
            remedy: "replace files by renaming new ones, as gpufile's saves do; a larger --shm-size for the container; gpufile \
                     reads with calls, which return errors",
            proof: "`dmesg`; `df /dev/shm`; `ls -l FILE` before and after",
        },
    },
];
