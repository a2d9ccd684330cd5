//! Recognises codes, names and messages in a text.

use cufile::sys::CUfileOpError;

use super::code::Code;
use super::{Entry, causes, cuda_codes, cufile_codes, errnos, messages, phrases, troubles};

/// The subject of a text, with all that is known.
#[derive(Debug, PartialEq)]
pub struct Answer {
    /// The code with its names, the trouble, or the message.
    pub title: String,
    pub entry: &'static Entry,
}

/// Returns what is known about a number, a name or a line, the most specific first.
pub fn all(text: &str) -> Vec<Answer> {
    let text = without_prefix(text.trim());
    let lower = text.to_lowercase();
    let mut answers: Vec<Answer> = troubles::of(&lower)
        .map(|found| Answer { title: found.title.to_owned(), entry: &found.entry })
        .collect();
    answers.extend(
        causes::of(&lower)
            .map(|(word, entry)| Answer { title: format!("{word}, a cause of gpufile check"), entry }),
    );
    let codes = match text.parse::<i32>() {
        Ok(number) => alone(number),
        Err(_) => in_line(text).into_iter().chain(phrases::of(&lower)).collect(),
    };
    for answer in codes.into_iter().filter_map(about) {
        if !answers.contains(&answer) {
            answers.push(answer);
        }
    }
    if answers.is_empty()
        && let Some(entry) = messages::of(&lower)
    {
        answers.push(Answer { title: "A message of gpufile".to_owned(), entry });
    }
    if answers.is_empty() {
        answers.extend(errnos::in_words(&lower).map(Code::Errno).and_then(about));
    }
    answers
}

/// Returns what is known about a code.
pub fn about(code: Code) -> Option<Answer> {
    let (title, entry) = match code {
        Code::CuFile(code) => (cufile_codes::title(code), cufile_codes::of(code)?),
        Code::Cuda(code) => (cuda_codes::title(code), cuda_codes::of(code)?),
        Code::Errno(errno) => (errnos::title(errno), errnos::of(errno)?),
    };
    Some(Answer { title, entry })
}

/// Returns the codes that a number without any words can be.
fn alone(number: i32) -> Vec<Code> {
    let size = number.unsigned_abs();
    match number {
        _ if is_cufile(size) => vec![Code::CuFile(number)],
        0 => vec![Code::CuFile(0)],
        // Only cuFile and system calls return negative numbers.
        ..0 => vec![Code::Errno(size as i32)],
        _ => vec![Code::Cuda(size), Code::Errno(number)],
    }
}

fn is_cufile(number: u32) -> bool {
    (5000..6000).contains(&number)
}

/// Returns the codes in a line: names, and numbers that words before them show to be codes.
fn in_line(line: &str) -> Vec<Code> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut codes = Vec::new();
    let mut end = 0;
    while let Some(start) = line[end..].find(is_word).map(|at| end + at) {
        let before = &line[..start];
        end = line[start..].find(|c| !is_word(c)).map_or(line.len(), |at| start + at);
        let word = &line[start..end];
        codes.extend(match word.parse::<u32>() {
            Ok(number) => numbered(before, number, line),
            Err(_) => named(word),
        });
    }
    codes
}

/// Returns the code of a name.
fn named(word: &str) -> Option<Code> {
    let cufile = (5000..6000).map(CUfileOpError::from_raw).find(|code| {
        code.name().is_some_and(|name| {
            name.eq_ignore_ascii_case(word) || name.strip_prefix("CU_FILE_").is_some_and(|name| name == word)
        })
    });
    let cufile = cufile.map(|code| Code::CuFile(code.as_raw() as i32));
    cufile
        .or_else(|| cuda_codes::named(word).map(Code::Cuda))
        .or_else(|| errnos::number(word).map(Code::Errno))
}

/// Returns the code that a number in a line is, if the words before it say that it is one.
fn numbered(before: &str, number: u32, line: &str) -> Option<Code> {
    let (lower, size) = (before.to_lowercase(), number as i32);
    let words = lower.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    let ends = |names: &[&str]| names.iter().any(|name| words.ends_with(name));
    let is_cuda =
        || line.contains("cuda") || line.contains("CUDA") || line.contains(" cu") || line.starts_with("cu");
    if ends(&["os error", "errno"]) {
        return Some(Code::Errno(size));
    }
    let is_code = ends(&[
        "error", "code", "status", "ret", "return", "returned", "rc", "failed", "errornum", "bytes", "count",
    ]);
    match () {
        () if is_cufile(number) && (is_code || lower.ends_with(['(', '-'])) => Some(Code::CuFile(size)),
        () if is_code && lower.ends_with('-') => Some(Code::Errno(size)),
        () if is_code && is_cuda() => Some(Code::Cuda(number)),
        () => None,
    }
}

/// Removes what stands before the message in a line of cufile.log: the time, the process, the level and the place.
fn without_prefix(line: &str) -> &str {
    let Some((_, rest)) = line.split_once("[pid=").and_then(|(_, rest)| rest.split_once(']')) else {
        return line;
    };
    let mut words = rest.trim_start().splitn(2, char::is_whitespace);
    let level = words.next().unwrap_or_default();
    let is_level = level.chars().all(|c| c.is_ascii_uppercase()) && !level.is_empty();
    if is_level { words.next().unwrap_or_default().trim_start() } else { rest.trim_start() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles(text: &str) -> Vec<String> {
        all(text).into_iter().map(|answer| answer.title).collect()
    }

    #[test]
    fn numbers_and_names_are_found_in_any_form() {
        for text in [
            "5001",
            "-5001",
            "CU_FILE_DRIVER_NOT_INITIALIZED",
            "DRIVER_NOT_INITIALIZED",
            " 5001\n",
            "error=5001",
        ] {
            assert_eq!(titles(text), ["CU_FILE_DRIVER_NOT_INITIALIZED (5001)"], "{text}");
        }
        assert_eq!(titles("EINVAL"), ["EINVAL (errno 22, Invalid argument)"]);
        assert_eq!(titles("-22"), titles("EINVAL"));
        assert_eq!(titles("[Errno 22] Invalid argument: 'x'"), titles("EINVAL"));
        assert_eq!(titles("cudaErrorNoDevice"), titles("error CUDA_ERROR_NO_DEVICE"));
        let both = [
            "CUDA_ERROR_OUT_OF_MEMORY, cudaErrorMemoryAllocation (CUDA 2)",
            "ENOENT (errno 2, No such file or directory)",
        ];
        assert_eq!(titles("2"), both);
        assert_eq!(titles("cuDevicePrimaryCtxRetain failed with error 2"), both[..1]);
        assert!(titles("5999").is_empty() && titles("nothing known").is_empty() && titles("").is_empty());
    }

    #[test]
    fn words_without_a_number_name_a_code() {
        for (phrase, code) in phrases::PHRASES {
            let expected = about(*code).unwrap().title;
            assert!(titles(&format!("error: {phrase}")).contains(&expected), "{phrase}");
        }
        assert_eq!(titles("cp: cannot create 'x': No space left on device"), titles("ENOSPC"));
        assert_eq!(titles("counted bytes -12"), titles("ENOMEM"));
    }

    #[test]
    fn sizes_and_processes_are_no_codes() {
        let line = "25-11-2026 17:23:19:123 [pid=5027 tid=5030] ERROR  cufio-fs:5022 nothing known";
        assert!(titles(line).is_empty(), "{:?}", titles(line));
        // The place in libcufile's source is no code either.
        let line = "25-11-2026 17:23:19:123 [pid=1 tid=1] ERROR  2:140 a cuFile call";
        assert!(titles(line).is_empty(), "{:?}", titles(line));
        let line = "cannot read 5004 bytes at 5001 of \"x\": Invalid argument (os error 22); 0 bytes were transferred";
        assert_eq!(titles(line), ["EINVAL (errno 22, Invalid argument)"]);
    }

    #[test]
    fn a_line_with_two_codes_has_two_answers() {
        let line = "cuFileRead(\"x\"): CU_FILE_CUDA_DRIVER_ERROR (5011), a call to the CUDA driver failed, CUDA_ERROR_NO_DEVICE (100)";
        let expected =
            ["CU_FILE_CUDA_DRIVER_ERROR (5011)", "CUDA_ERROR_NO_DEVICE, cudaErrorNoDevice (CUDA 100)"];
        assert_eq!(titles(line), expected);
    }
}
