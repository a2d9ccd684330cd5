//! Recognises codes, names and messages in a text.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

use super::code::{self, Code};
use super::page::{Entry, PAGE, Section};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A trouble, a word of `gpufile check` or a message: the place of its entry.
    Entry(usize),
    Code(Code),
}

impl Subject {
    /// Returns the entry, which a code with a name may lack.
    pub fn entry(self) -> Option<&'static Entry> {
        match self {
            Self::Entry(place) => PAGE.entries.get(place),
            Self::Code(code) => PAGE.of_code(code),
        }
    }

    pub fn title(self) -> String {
        match (self, self.entry()) {
            (Self::Code(code), _) => code.title(),
            (_, Some(Entry { section: Section::Causes, title, .. })) => {
                format!("{title}, a cause of gpufile check")
            }
            (_, Some(Entry { section: Section::Messages, .. })) => "A message of gpufile".to_owned(),
            (_, entry) => entry.map(|entry| entry.title.to_owned()).unwrap_or_default(),
        }
    }

    /// Returns the system's meaning for a code without an entry.
    pub fn meaning(self) -> String {
        match (self, self.entry()) {
            (Self::Code(code), None) => code.words(),
            (_, entry) => entry.map(|entry| entry.meaning.to_owned()).unwrap_or_default(),
        }
    }
}

/// Returns the subjects of a number, a name or a message, the most specific first.
pub fn in_text(text: &str) -> Vec<Subject> {
    let text = text.trim();
    if let Some(code) = Code::named(&format!("CU_FILE_{text}")) {
        return vec![Subject::Code(code)];
    }
    let found = match text.parse::<i32>() {
        Ok(number) => {
            let entries = PAGE.lead(text).into_iter().map(Subject::Entry);
            let codes = alone(number).into_iter().filter(|code| code.has_name()).map(Subject::Code);
            entries.chain(codes).collect()
        }
        Err(_) => in_message(text, true),
    };
    // Shorter words begin others on half of the page.
    match found.is_empty() && text.len() > 2 && !text.contains(char::is_whitespace) {
        true => PAGE.about(text).into_iter().map(Subject::Entry).collect(),
        false => found,
    }
}

/// Returns the subjects of a line of a log, the most specific first.
pub fn in_line(line: &str) -> Vec<Subject> {
    in_message(line, false)
}

fn in_message(line: &str, is_ours: bool) -> Vec<Subject> {
    let line = without_prefix(line.trim());
    let lower = line.to_ascii_lowercase();
    let lead = PAGE.lead(&lower);
    let of = |is_it: fn(Section) -> bool| {
        lead.iter().copied().filter(move |place| is_it(PAGE.entries[*place].section))
    };
    let mut found: Vec<Subject> = of(|section| section == Section::Troubles).map(Subject::Entry).collect();
    let mut add = |subject| {
        if !found.contains(&subject) {
            found.push(subject);
        }
    };
    causes(&lower).map(Subject::Entry).for_each(&mut add);
    let named = of(|section| section.is_code()).filter_map(|place| PAGE.entries[place].codes().next());
    codes(line, &lower).into_iter().chain(named).map(Subject::Code).for_each(&mut add);
    if found.is_empty() && (is_ours || lower.contains("gpufile") || lower.contains("cufile")) {
        found.extend(of(|section| section == Section::Messages).map(Subject::Entry).take(1));
    }
    if found.is_empty() {
        found.extend(errno_in_words(&lower).map(|errno| Subject::Code(Code::Errno(errno))));
    }
    found
}

/// Returns the words of `gpufile check` in a line: alone, or quoted as in JSON and metrics.
fn causes(line: &str) -> impl Iterator<Item = usize> {
    let quoted = line.split('"').filter(|_| line.contains("cause"));
    [line].into_iter().chain(quoted).filter_map(|word| PAGE.of_cause(word))
}

fn alone(number: i32) -> Vec<Code> {
    let size = number.unsigned_abs();
    match (Code::cufile(size), number) {
        (Some(code), _) => vec![code],
        (_, 0) => vec![Code::CuFile(0)],
        // The entry of the number says why it is no EPERM.
        (_, -1) => vec![],
        // Only cuFile and system calls return negative numbers.
        (_, ..0) => vec![Code::Errno(size as i32)],
        _ => vec![Code::Cuda(size), Code::Errno(number)],
    }
}

/// Finds names, and numbers that words before them show to be codes.
fn codes(line: &str, lower: &str) -> Vec<Code> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut codes = Vec::new();
    let mut end = 0;
    while let Some(start) = line[end..].find(is_word).map(|at| end + at) {
        end = line[start..].find(|c| !is_word(c)).map_or(line.len(), |at| start + at);
        let word = &line[start..end];
        codes.extend(match word.parse::<u32>() {
            Ok(number) => numbered(&lower[..start], number, lower),
            Err(_) => Code::named(word),
        });
    }
    codes
}

fn numbered(before: &str, number: u32, line: &str) -> Option<Code> {
    let words = before.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    let ends = |names: &[&str]| names.iter().any(|name| words.ends_with(name));
    let minus = before.strip_suffix('-').is_some_and(|before| !before.ends_with(char::is_alphanumeric));
    let is_code = ends(&[
        "error", "err", "errno", "code", "status", "ret", "return", "returned", "rc", "failed", "failure",
        "errornum",
    ]);
    let is_count = minus && ends(&["bytes", "count"]);
    let is_cufile_line = || ["cufile", "cu_file", "gds", "nvfs"].iter().any(|word| line.contains(word));
    if let Some(code) = Code::cufile(number)
        && (is_code || is_count || (before.ends_with('(') && is_cufile_line()))
    {
        return Some(code);
    }
    let code = match () {
        () if ends(&["os error", "errno"]) && !minus => Code::Errno(number as i32),
        () if minus && (is_code || is_count) && number != 1 => Code::Errno(number as i32),
        () if is_code
            && number != 0
            && (line.contains("cuda") || line.contains(" cu") || line.starts_with("cu")) =>
        {
            Code::Cuda(number)
        }
        () => return None,
    };
    code.has_name().then_some(code)
}

/// Returns the errno whose words are in a line, which is in lower case.
fn errno_in_words(line: &str) -> Option<i32> {
    static WORDS: LazyLock<(Vec<i32>, AhoCorasick)> = LazyLock::new(|| {
        let (numbers, words): (Vec<_>, Vec<_>) = code::words_of_errnos().unzip();
        (numbers, AhoCorasick::new(words).expect("the words can be searched"))
    });
    let (numbers, search) = &*WORDS;
    search.find(line).map(|found| numbers[found.pattern()])
}

/// Removes time, process, level and place of a line of cufile.log.
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
        in_text(text).into_iter().map(Subject::title).collect()
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
            "(err=5001)",
            "ret=-1 errno=5001",
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
    fn codes_without_an_entry_have_their_names() {
        for (text, title, meaning) in [
            ("EL3HLT", "EL3HLT (errno 46, Level 3 halted)", "Level 3 halted"),
            ("cudaErrorLossyQuery", "CUDA_ERROR_LOSSY_QUERY, cudaErrorLossyQuery (CUDA 402)", ""),
        ] {
            let [found] = in_text(text)[..] else { panic!("{text}: {:?}", titles(text)) };
            assert_eq!(found.title(), title);
            assert!(found.meaning().contains(meaning) && !found.meaning().is_empty());
        }
    }

    #[test]
    fn minus_one_is_no_eperm() {
        let none = ["-1", "cuFileRead returned ret=-1", "error -1", "status -1"];
        assert!(none.iter().all(|text| !titles(text).iter().any(|title| title.contains("EPERM"))));
        assert_eq!(titles("-1"), ["A return value of -1"]);
        assert_eq!(titles("open: Operation not permitted (os error 1)"), titles("EPERM"));
    }

    #[test]
    fn words_without_a_number_name_a_code() {
        assert_eq!(titles("error: pointer lookup failure"), titles("5024"));
        assert_eq!(titles("RuntimeError: CUDA out of memory."), titles("CUDA_ERROR_OUT_OF_MEMORY"));
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
