//! Every code, every error of the crates, and every trouble as a user sees it has its heading in the page.

use std::fs;
use std::path::{Path, PathBuf};

use cufile::sys::CUfileOpError;

use super::code::{Code, numbers_of_cuda};
use super::find::{self, Subject};
use super::page::{PAGE, Section};

/// Returns a folder, which a host with only the test programs lacks.
fn workspace(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)
}

/// Collects each literal after `#[error(`. The file of `gpufile::Error` writes its texts itself.
fn templates(folder: &Path, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            templates(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            let is_written = path.ends_with("gpufile/src/error.rs");
            let written = source.split("write!(").skip(1).filter(|_| is_written);
            let written = written.filter_map(|rest| rest.trim_start().strip_prefix("f,"));
            for rest in source.split("\n    #[error(").skip(1).chain(written) {
                let Some(rest) = rest.trim_start().strip_prefix('"') else { continue };
                let literal = rest.split("\"\n").next().unwrap().split("\",").next().unwrap();
                let literal = literal.split("\")").next().unwrap();
                found.push(literal.split("\\\n").map(str::trim_start).collect());
            }
        }
    }
}

/// Replaces a placeholder by a call of C where one is named, and by a word elsewhere.
fn message(template: &str) -> String {
    let (mut message, mut rest) = (String::new(), template);
    while let Some((before, behind)) = rest.split_once('{') {
        let (name, behind) = behind.split_once('}').unwrap();
        let is_verb = before.ends_with("cannot ");
        message += before;
        message += match name {
            "operation" if !is_verb => "cuFileRead",
            "path:?" => "\"/data/x\"",
            _ => "some",
        };
        rest = behind;
    }
    message + rest
}

#[test]
fn every_error_of_the_crates_is_explained() {
    let mut found = Vec::new();
    for crate_folder in ["cuda-rt-sys", "cufile-sys", "cufile", "gpufile", "gpufile-cli"] {
        templates(&workspace(crate_folder).join("src"), &mut found);
    }
    if found.is_empty() {
        return eprintln!("skipped: there are no sources");
    }
    assert!(found.len() > 70, "{}", found.len());
    let is_text = |template: &&String| {
        // The others only pass on another error's text, with a name before it.
        let outside: String = template.split('{').map(|part| part.split('}').next_back().unwrap()).collect();
        outside.chars().any(char::is_alphabetic) || template.contains("{operation}")
    };
    let messages: Vec<String> = found.iter().filter(is_text).map(|template| message(template)).collect();
    assert!(messages.len() > 60, "{}", messages.len());
    let unknown: Vec<_> = messages.iter().filter(|message| find::in_text(message).is_empty()).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
}

#[test]
fn messages_made_of_parts_are_explained() {
    for text in [
        "\"/usr/lib/libcufile.so\" has no function cuFileRead: it is not libcufile, or is older than any supported version",
        "\"libcudart.so\" is from CUDA 13.5, but the display driver supports only 12.4: update the driver",
        "cuFileBatchIOSetUp: 512 entries; this driver allows 1 to 128 (its parameter io_batchsize)",
        "gpufile: cannot use --gpu: libcuda could not be loaded (to choose a file, set CUDA_LIBRARY to its path)",
        "cuFileReadv(\"x\"): CU_FILE_IO_ERROR (5044), the transfer failed",
    ] {
        assert!(!find::in_text(text).is_empty(), "{text}");
    }
}

#[test]
fn subjects_of_the_guide_lead_to_their_entries() {
    for (word, title) in [
        ("numa", "The GPU and the disk or card are on other NUMA nodes"),
        ("ConnectX", "A ConnectX card is in Ethernet mode"),
        ("lnet", "Lustre does not use RDMA (lnet)"),
        ("acs", "acs, a cause of gpufile check"),
        ("iommu", "iommu, a cause of gpufile check"),
        ("bar1", "BAR1 is too small"),
    ] {
        let first = find::in_text(word).first().map(|subject| subject.title());
        assert_eq!(first.as_deref(), Some(title), "{word}");
    }
}

fn leads(text: &str, title: &str) -> bool {
    find::in_text(text).into_iter().any(|subject| subject.title().starts_with(title))
}

#[test]
fn every_code_has_its_heading() {
    let cufile = (5000..5100).filter(|code| CUfileOpError::from_raw(*code).name().is_some());
    let cufile: Vec<_> = cufile.map(Code::CuFile).filter(|code| PAGE.of_code(*code).is_none()).collect();
    assert!(cufile.is_empty(), "{cufile:?}");
    let others = numbers_of_cuda().map(Code::Cuda).chain((1..134).map(Code::Errno));
    let nameless: Vec<_> = others
        .filter(|code| code.has_name())
        .filter(|code| code.words().is_empty() || code.title().to_lowercase().contains("unknown error"))
        .collect();
    assert!(nameless.is_empty(), "{nameless:?}");
    // The heading has the names that the libraries have.
    for entry in PAGE.entries.iter().filter(|entry| entry.section.is_code()) {
        for code in entry.codes() {
            let title = code.title();
            let name = title.split([',', ' ']).next().unwrap();
            assert!(code.has_name() && entry.title.contains(name), "{}: {name}", entry.title);
        }
    }
}

#[test]
fn each_message_that_a_user_sees_leads_to_its_trouble() {
    let mut seen = 0;
    for entry in PAGE.entries.iter().filter(|entry| entry.section == Section::Troubles) {
        for message in &entry.seen {
            assert!(leads(message, entry.title), "{message}: {:?}", find::in_text(message));
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen}");
}

/// Returns `None` on a host with only the test programs.
fn lines(name: &str) -> Option<String> {
    fs::read_to_string(workspace("gpufile-cli/tests/explain").join(name)).ok()
}

#[test]
fn lines_of_public_reports_lead_to_their_headings() {
    let Some(text) = lines("lines.tsv") else { return eprintln!("skipped: there are no sources") };
    let rows: Vec<Vec<&str>> =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect()).collect();
    assert!(rows.len() >= 80);
    let mut wrong = Vec::new();
    for row in rows {
        let [source, title, line] = row[..] else { panic!("{row:?}") };
        let found: Vec<_> = match source {
            "typed by a user" => find::in_text(line),
            _ => find::in_line(line),
        };
        let titles: Vec<_> = found.into_iter().map(Subject::title).collect();
        if !titles.iter().any(|found| found.starts_with(title)) || titles.len() > 3 {
            wrong.push(format!("{line}: {title}: {titles:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn ordinary_lines_lead_nowhere() {
    let Some(text) = lines("ordinary.txt") else { return eprintln!("skipped: there are no sources") };
    assert!(text.lines().count() >= 200);
    let found: Vec<_> = text
        .lines()
        .map(|line| (line, find::in_line(line).into_iter().map(Subject::title).collect::<Vec<_>>()))
        .filter(|(_, titles)| !titles.is_empty())
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn short_words_lead_nowhere() {
    for text in ["", "/", "e", "of"] {
        assert_eq!(find::in_text(text), [], "{text:?}");
    }
    assert!(!find::in_text("RDMA").is_empty());
}

/// The troubles that users ask about most, as they type them into a search.
#[test]
fn a_search_of_the_documents_finds_the_fourteen_troubles() {
    let documents = ["docs", "."].map(|folder| {
        let entries =
            fs::read_dir(workspace(folder)).into_iter().flatten().map(|entry| entry.unwrap().path());
        let pages = entries.filter(|path| path.extension().is_some_and(|kind| kind == "md"));
        pages.map(|path| fs::read_to_string(path).unwrap()).collect::<String>()
    });
    let documents = documents.concat();
    if documents.is_empty() {
        return eprintln!("skipped: there are no documents");
    }
    for (searched, title) in [
        ("using cuFile posix read/write with compat mode enabled", "Everything works"),
        ("NVMe Driver not registered with nvidia-fs", "The NVMe driver"),
        ("cuFileHandleRegister error: internal error", "Code 5030"),
        ("Unsupported block device: /dev/dm-0", "The file system is on LVM"),
        ("Unsupported block device: /dev/md0", "The file system is on a software RAID"),
        ("Inc-bar-usage failed", "BAR1 is too small"),
        ("bytes_written_p =-5", "A stream-ordered transfer"),
        ("CU_FILE_HANDLE_NOT_REGISTERED (5027)", "Code 5027"),
        ("CUDA_ERROR_INVALID_CONTEXT (201)", "No CUDA context"),
        ("Segmentation fault (core dumped)", "A crash when the process ends"),
        ("libcufile.so.0: cannot open shared object file", "A library is not found"),
        ("Driver/library version mismatch", "nvidia-fs, the driver and libcufile drift apart"),
        ("its parameter io_batchsize", "The batch is too large"),
        ("ibv_reg_mr failed: Cannot allocate memory", "The limit of locked memory"),
        ("udev property not found: ID_FS_USAGE", "udev does not describe the disk"),
    ] {
        assert!(documents.contains(searched), "no document has {searched:?}");
        assert!(leads(searched, title), "{searched:?}");
    }
}

#[test]
fn each_cause_of_the_schema_is_explained_alike() {
    let Ok(schema) = fs::read_to_string(workspace("docs/schema/check.json")) else {
        return eprintln!("skipped: there are no documents");
    };
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    let words = schema["$defs"]["cause"]["oneOf"].as_array().unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let words: Vec<_> = words.iter().map(|word| (text(&word["const"]), text(&word["description"]))).collect();
    let explained = PAGE.entries.iter().filter(|entry| entry.section == Section::Causes);
    let explained: Vec<_> =
        explained.map(|entry| (entry.title.to_owned(), entry.meaning.to_owned())).collect();
    assert_eq!(words, explained, "docs/schema/check.json and docs/troubleshooting.md differ");
    for text in [
        "no-udev-record",
        "gpufile_path_cause{path=\"/data\",cause=\"no-udev-record\",effect=\"stages\"} 1",
        "      \"cause\": \"no-udev-record\",",
    ] {
        let [subject] = find::in_text(text)[..] else { panic!("{text}") };
        assert_eq!(subject.title(), "no-udev-record, a cause of gpufile check");
    }
}
