use crate::formats::clip::clip;

/// Returns a description of the file that starts with these bytes and is no safetensors file, with the usual cause.
/// Returns `None` if nothing tells.
pub(super) fn known_by(start: &[u8]) -> Option<String> {
    if !start.is_empty() && start.iter().all(|byte| *byte == 0) {
        return Some("zeros; an interrupted download or copy leaves such a file".to_owned());
    }
    if let Some((_, found)) = BINARY.iter().find(|(known, _)| start.starts_with(known)) {
        return Some((*found).to_owned());
    }
    if start.get(257..262) == Some(b"ustar") {
        return Some("a tar archive; unpack it".to_owned());
    }
    text_of(start).map(of_text)
}

const BINARY: [(&[u8], &str); 21] = [
    (b"PK\x03\x04", "a zip archive, such as a PyTorch or npz file"),
    (b"\x80\x02", PICKLE),
    (b"\x80\x03", PICKLE),
    (b"\x80\x04", PICKLE),
    (b"\x80\x05", PICKLE),
    (b"GGUF", "a GGUF file"),
    (b"lmgg", GGML),
    (b"tjgg", GGML),
    (b"fmgg", GGML),
    (b"\x93NUMPY", "an npy file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip archive; unpack it"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive; unpack it"),
    (b"\xfd7zXZ", "an xz archive; unpack it"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive; unpack it"),
    (b"BZh", "a bzip2 archive; unpack it"),
    (b"Rar!", "a RAR archive; unpack it"),
    (b"\x7fELF", "a program"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
];

const PICKLE: &str =
    "a Python pickle, such as an old PyTorch file; load it with torch.load and save it as safetensors";

const GGML: &str = "a GGML file";

/// Returns the text that the bytes start with, if they are text. A character at the end may be cut.
fn text_of(start: &[u8]) -> Option<&str> {
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&start[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let is_text = |c: char| !c.is_control() || c.is_ascii_whitespace();
    let text = text.trim_start_matches('\u{feff}');
    (!text.trim().is_empty() && text.chars().all(is_text)).then_some(text.trim())
}

fn of_text(text: &str) -> String {
    let lower = text.to_lowercase();
    let starts_with = |known: &str| lower.starts_with(known);
    if starts_with("version https://git-lfs") || lower == "version" {
        return "a Git LFS pointer; `git lfs pull` fetches the file".to_owned();
    }
    if starts_with("<!doctyp") || starts_with("<html") {
        return "an HTML page, as servers send for a login or an error; download the file again".to_owned();
    }
    if starts_with("<?xml") || starts_with("<error>") {
        return "an XML document, as object stores send for a missing key or denied access; download the file again"
            .to_owned();
    }
    if starts_with("{") || starts_with("[") {
        return match text.contains("\"weight_map\"") || text.contains("\"total_size\"") {
            true => "the index of a model; its name must end in .json to be opened as one".to_owned(),
            false => format!(
                "JSON that begins with {:?}: the answer of a server that failed, or the index of a model, whose name \
                 must end in .json",
                beginning(text)
            ),
        };
    }
    format!(
        "text that begins with {:?}, as servers send for an error; download the file again",
        beginning(text)
    )
}

fn beginning(text: &str) -> String {
    const MOST: usize = 48;
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => clip(line),
    }
}
