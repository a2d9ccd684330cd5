//! docs/troubleshooting.md: its entries, and the texts that lead to them.

use std::collections::HashMap;
use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

use super::code::Code;

/// The file is a link to the page: only files of the package can be embedded.
pub const TEXT: &str = include_str!("troubleshooting.txt");

pub static PAGE: LazyLock<Page> = LazyLock::new(|| Page::parse(TEXT));

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    Troubles,
    CuFile,
    Cuda,
    Errno,
    Causes,
    Messages,
}

impl Section {
    fn of(heading: &str) -> Option<Self> {
        Some(match heading {
            "By what you saw" => Self::Troubles,
            "Codes of cuFile" => Self::CuFile,
            "Codes of CUDA" => Self::Cuda,
            "Numbers of the operating system" => Self::Errno,
            "Causes of gpufile check" => Self::Causes,
            "Messages of gpufile" => Self::Messages,
            _ => return None,
        })
    }

    pub fn is_code(self) -> bool {
        self.code(0).is_some()
    }

    fn code(self, number: u32) -> Option<Code> {
        match self {
            Self::CuFile => Some(Code::CuFile(number)),
            Self::Cuda => Some(Code::Cuda(number)),
            Self::Errno => Some(Code::Errno(number as i32)),
            _ => None,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub section: Section,
    pub title: &'static str,
    /// Examples of what users see.
    pub seen: Vec<&'static str>,
    /// Texts in lower case that lead here.
    words: Vec<&'static str>,
    pub meaning: &'static str,
    pub cause: &'static str,
    pub remedy: &'static str,
    pub proof: &'static str,
}

impl Entry {
    fn new(section: Section, title: &'static str) -> Self {
        let (seen, words) = (Vec::new(), Vec::new());
        Self { section, title, seen, words, meaning: "", cause: "", remedy: "", proof: "" }
    }

    fn take(&mut self, item: &'static str) {
        let Some((name, text)) = item.split_once(": ") else { return };
        match name {
            "words" => self.words = text.split('`').skip(1).step_by(2).collect(),
            "meaning" => self.meaning = text,
            "cause" => self.cause = text,
            "what to do" => self.remedy = text,
            "proof" => self.proof = text,
            _ => {}
        }
    }

    /// Returns the codes in the title, as in `EINTR (4), EAGAIN (11)`.
    pub fn codes(&self) -> impl Iterator<Item = Code> {
        let numbers = self.title.split('(').skip(1).filter_map(|rest| rest.split_once(')')?.0.parse().ok());
        numbers.filter_map(|number| self.section.code(number))
    }
}

/// A text that leads to an entry: `*` stands for any text, `^` and `$` for the ends of the line.
struct Pattern {
    text: &'static str,
    at_start: bool,
    at_end: bool,
}

impl Pattern {
    fn new(word: &'static str) -> Self {
        let text = word.strip_prefix('^').unwrap_or(word);
        let (at_start, at_end) = (text.len() < word.len(), text.ends_with('$'));
        Self { text: text.strip_suffix('$').unwrap_or(text), at_start, at_end }
    }

    /// Returns the longest part without `*`, for a search of all patterns at once.
    fn key(&self) -> &'static str {
        self.text.split('*').max_by_key(|part| part.len()).unwrap_or_default()
    }

    fn is_in(&self, line: &str) -> bool {
        let mut rest = line;
        let parts = self.text.split('*').count();
        for (index, part) in self.text.split('*').enumerate() {
            let at = match index {
                0 if self.at_start => rest.starts_with(part).then_some(0),
                _ if self.at_end && index + 1 == parts => {
                    rest.ends_with(part).then(|| rest.len() - part.len())
                }
                _ => rest.find(part),
            };
            let Some(at) = at else { return false };
            rest = &rest[at + part.len()..];
        }
        !self.at_end || rest.is_empty()
    }
}

pub struct Page {
    pub entries: Vec<Entry>,
    /// Patterns with the place of the entry.
    patterns: Vec<(Pattern, usize)>,
    /// A search for the keys of the patterns, in their order.
    search: AhoCorasick,
    codes: HashMap<Code, usize>,
    causes: HashMap<&'static str, usize>,
}

impl Page {
    fn parse(text: &'static str) -> Self {
        let mut entries = Vec::new();
        // Items above the first entry of a section hold for all of it.
        let mut section: Option<Entry> = None;
        let mut is_example = false;
        for line in text.lines() {
            let entry = entries.last_mut().filter(|entry: &&mut Entry| {
                section.as_ref().is_some_and(|section| section.section == entry.section)
            });
            if line.starts_with("```") {
                is_example = !is_example && line == "```text";
            } else if is_example {
                entry.into_iter().for_each(|entry| entry.seen.push(line));
            } else if let Some(heading) = line.strip_prefix("## ") {
                section = Section::of(heading).map(|found| Entry::new(found, heading));
            } else if let Some(section) = &mut section {
                if let Some(title) = line.strip_prefix("### ") {
                    entries.push(Entry { title, ..section.clone() });
                } else if let Some(item) = line.strip_prefix("- ") {
                    entry.unwrap_or(section).take(item);
                } else if let Some((word, meaning)) = row(line) {
                    entries.push(Entry { title: word, meaning, ..section.clone() });
                }
            }
        }
        Self::index(entries)
    }

    fn index(entries: Vec<Entry>) -> Self {
        let of = |(place, entry): (usize, &Entry)| {
            entry.words.iter().map(move |word| (Pattern::new(word), place)).collect::<Vec<_>>()
        };
        let patterns: Vec<_> = entries.iter().enumerate().flat_map(of).collect();
        let search = AhoCorasick::new(patterns.iter().map(|(pattern, _)| pattern.key()));
        let places = || entries.iter().enumerate();
        Self {
            codes: places().flat_map(|(place, entry)| entry.codes().map(move |code| (code, place))).collect(),
            causes: places()
                .filter(|(_, entry)| entry.section == Section::Causes)
                .map(|(place, entry)| (entry.title, place))
                .collect(),
            // A test parses the page: its words are few and short.
            search: search.expect("the words of the page can be searched"),
            patterns,
            entries,
        }
    }

    /// Returns the places of the entries to which a line in lower case leads, in their order.
    pub fn lead(&self, line: &str) -> Vec<usize> {
        let found = self.search.find_overlapping_iter(line).map(|found| &self.patterns[found.pattern()]);
        let mut places: Vec<usize> =
            found.filter_map(|(pattern, place)| pattern.is_in(line).then_some(*place)).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    pub fn of_code(&self, code: Code) -> Option<&Entry> {
        self.codes.get(&code).map(|place| &self.entries[*place])
    }

    pub fn of_cause(&self, word: &str) -> Option<usize> {
        self.causes.get(word).copied()
    }

    /// Returns the places of the first entries with a word that begins like this one, titles first.
    pub fn about(&self, word: &str) -> Vec<usize> {
        const MOST: usize = 3;
        let word = word.to_ascii_lowercase();
        let has = |text: &str| {
            let text = text.to_ascii_lowercase();
            text.match_indices(&word)
                .any(|(at, _)| !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric()))
        };
        let places = || self.entries.iter().enumerate();
        let titled = places().filter(|(_, entry)| has(entry.title));
        let others = places().filter(|(_, entry)| {
            let Entry { meaning, cause, remedy, proof, .. } = entry;
            !has(entry.title)
                && ([meaning, cause, remedy, proof].into_iter().any(|text| has(text))
                    || entry.seen.iter().any(|text| has(text)))
        });
        titled.chain(others).map(|(place, _)| place).take(MOST).collect()
    }
}

fn row(line: &'static str) -> Option<(&'static str, &'static str)> {
    let (word, meaning) = line.strip_prefix("| `")?.split_once("` | ")?;
    Some((word, meaning.strip_suffix(" |")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_with_anchors_and_gaps() {
        for (word, line, expected) in [
            ("a*c", "xabc", true),
            ("a*c", "xcba", false),
            ("^a*c", "xabc", false),
            ("^-5$", "-5", true),
            ("^-5$", "-55", false),
            ("b$", "abab", true),
            ("^a*b$", "ab", true),
            ("^ab*b$", "ab", false),
            ("a$", "ab", false),
        ] {
            assert_eq!(Pattern::new(word).is_in(line), expected, "{word} {line}");
        }
    }

    #[test]
    fn entries_are_whole() {
        assert!(PAGE.entries.len() > 200);
        for entry in &PAGE.entries {
            let Entry { meaning, cause, remedy, proof, .. } = entry;
            assert!([meaning, cause, remedy, proof].iter().all(|text| !text.is_empty()), "{entry:?}");
            let needs_words = [Section::Troubles, Section::Messages].contains(&entry.section);
            assert!(!needs_words || !entry.words.is_empty(), "{entry:?}");
            assert_eq!(entry.codes().count() > 0, entry.section.is_code(), "{}", entry.title);
            assert!(entry.words.iter().all(|word| *word == word.to_ascii_lowercase()), "{entry:?}");
        }
    }
}
