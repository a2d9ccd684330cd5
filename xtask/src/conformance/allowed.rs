//! The differences between a supported version and our bindings, each with the reason why it is safe. Every other
//! difference is a failure, and so is an entry that no version needs.

use std::cell::Cell;

use crate::release::Release;

pub enum Theirs {
    /// The header has exactly this text.
    Is(&'static str),
    /// The same type, except for pointers not yet `const`.
    NotConst,
    /// The field lies that many bytes before ours and has our size.
    Earlier(usize),
    Unbound,
}

pub struct Allowed {
    /// `cufile`, `runtime` or `driver`.
    pub module: &'static str,
    /// The compared item, or with a `*` at the end everything that begins so.
    pub item: &'static str,
    /// The first and the last version.
    pub versions: (&'static str, &'static str),
    pub theirs: Theirs,
    pub reason: &'static str,
}

use Theirs::{Earlier, Is, NotConst, Unbound};

const fn allowed(
    module: &'static str,
    item: &'static str,
    versions: (&'static str, &'static str),
    theirs: Theirs,
    reason: &'static str,
) -> Allowed {
    Allowed { module, item, versions, theirs, reason }
}

pub const DIFFERENCES: &[Allowed] = &[
    allowed(
        "cufile",
        "constant CU_FILE_IO_MAX_ERROR",
        ("1.11", "1.14"),
        Is("5039"),
        "the end of the codes; 5039 has a name from 1.15 on",
    ),
    allowed(
        "cufile",
        "constant CU_FILE_MAX_TARGET_TYPES",
        ("1.16", "1.18"),
        Is("14"),
        "the end of the bit positions grows",
    ),
    allowed(
        "cufile",
        "type CUfileFSOps.*",
        ("1.11", "1.15"),
        NotConst,
        "callbacks take const pointers from 1.16 on; a callback of ours only reads through them",
    ),
    allowed(
        "cufile",
        "layout CUfileStatsLevel1",
        ("1.15", "1.18"),
        Is("size 512, alignment 8"),
        "112 bytes were appended in 1.19; an older library fills the first 512 of ours",
    ),
    allowed(
        "cufile",
        "layout CUfileStatsLevel2",
        ("1.15", "1.18"),
        Is("size 1024, alignment 8"),
        "begins with CUfileStatsLevel1",
    ),
    allowed(
        "cufile",
        "layout CUfileStatsLevel3",
        ("1.15", "1.18"),
        Is("size 5000, alignment 8"),
        "begins with CUfileStatsLevel2",
    ),
    allowed(
        "cufile",
        "field CUfileStatsLevel2.basic",
        ("1.15", "1.18"),
        Is("offset 0, size 512"),
        "is CUfileStatsLevel1",
    ),
    allowed(
        "cufile",
        "field CUfileStatsLevel3.detailed",
        ("1.15", "1.18"),
        Is("offset 0, size 1024"),
        "is CUfileStatsLevel2",
    ),
    allowed(
        "cufile",
        "field CUfileStatsLevel2.*",
        ("1.15", "1.18"),
        Earlier(112),
        "follows CUfileStatsLevel1; the version says where",
    ),
    allowed(
        "cufile",
        "field CUfileStatsLevel3.*",
        ("1.15", "1.18"),
        Earlier(112),
        "follows CUfileStatsLevel2; the version says where",
    ),
    allowed(
        "runtime",
        "layout cudaPointerAttributes",
        ("11.8", "12.9"),
        Is("size 24, alignment 8"),
        "13.0 appended reserved bytes; an older library fills the first 24 of ours",
    ),
    allowed(
        "runtime",
        "constant cudaDevAttrMax",
        ("11.8", "11.8"),
        Is("122"),
        "the end of the attributes grows",
    ),
    allowed(
        "runtime",
        "constant cudaDevAttrMax",
        ("12.9", "12.9"),
        Is("144"),
        "the end of the attributes grows",
    ),
    allowed(
        "runtime",
        "constant cudaDevAttrCooperativeMultiDeviceLaunch",
        ("11.8", "12.9"),
        Unbound,
        "an attribute that 13.0 withdrew",
    ),
    allowed(
        "runtime",
        "constant cudaDevAttrMaxTimelineSemaphoreInteropSupported",
        ("11.8", "12.9"),
        Unbound,
        "another name of cudaDevAttrTimelineSemaphoreInteropSupported that 13.0 withdrew",
    ),
    allowed(
        "driver",
        "constant CU_DEVICE_ATTRIBUTE_MAX",
        ("11.8", "11.8"),
        Is("125"),
        "the end of the attributes grows",
    ),
    allowed(
        "driver",
        "constant CU_DEVICE_ATTRIBUTE_MAX",
        ("12.9", "12.9"),
        Is("144"),
        "the end of the attributes grows",
    ),
    allowed(
        "driver",
        "constant CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS",
        ("11.8", "11.8"),
        Is("93"),
        "from 12.0 on the name means the calls with _v2, which are those bound; 11.8 knows the number under another name",
    ),
    allowed(
        "driver",
        "constant CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR",
        ("11.8", "11.8"),
        Is("94"),
        "from 12.0 on the name means the calls with _v2, which are those bound; 11.8 knows the number under another name",
    ),
    allowed(
        "driver",
        "constant CU_DEVICE_ATTRIBUTE_CAN_USE_*",
        ("11.8", "11.8"),
        Unbound,
        "names of the stream memory operations that 12.0 withdrew",
    ),
];

/// Macros that are not constants, and their equivalents on our side.
pub const MACROS: &[(&str, &str, &str)] = &[
    ("cufile", "__CUFILE_H_", "the include guard"),
    (
        "cufile",
        "CUFILEOP_STATUS_ENTRIES",
        "makes the enumerators of CUfileOpError, which are compared one by one",
    ),
    (
        "cufile",
        "cuFileDriverClose",
        "names the symbol that is bound, cuFileDriverClose_v2; a method and a function of ours have this name",
    ),
    ("cufile", "IS_CUFILE_ERR", "a function-like macro, a function of ours"),
    ("cufile", "CUFILE_ERRSTR", "a function-like macro, a function of ours"),
    ("cufile", "IS_CUDA_ERR", "a function-like macro, a const fn of ours"),
    ("cufile", "CU_FILE_CUDA_ERR", "a function-like macro, a const fn of ours"),
    ("runtime", "cudaStreamLegacy", "a pointer, not a number; not bound"),
    ("runtime", "cudaStreamPerThread", "a pointer, not a number; not bound"),
    ("runtime", "cudaStreamGetCaptureInfo", "another name of a function; not bound"),
    ("runtime", "cudaStreamAttr*", "other names of launch attributes; not bound"),
];

pub struct Ledger {
    differences: Vec<Cell<usize>>,
    macros: Vec<Cell<usize>>,
}

impl Ledger {
    pub fn new() -> Self {
        Self { differences: vec![Cell::new(0); DIFFERENCES.len()], macros: vec![Cell::new(0); MACROS.len()] }
    }

    /// Allows a difference, and notes that the entry was needed; `None` stands for an item that a side lacks.
    pub fn allows(
        &self,
        module: &str,
        release: Release,
        item: &str,
        ours: Option<&str>,
        theirs: Option<&str>,
    ) -> bool {
        let entry = DIFFERENCES.iter().position(|entry| {
            let (first, last) = entry.versions;
            entry.module == module
                && matches(entry.item, item)
                && (Release::parse(first)..=Release::parse(last)).contains(&release)
                && entry.theirs.fits(ours, theirs)
        });
        entry.inspect(|at| count(&self.differences[*at])).is_some()
    }

    /// Returns whether there is a reason not to compare this macro as a number, and notes that the entry was
    /// needed.
    pub fn explains(&self, module: &str, name: &str) -> bool {
        let entry = MACROS.iter().position(|(of, pattern, _)| *of == module && matches(pattern, name));
        entry.inspect(|at| count(&self.macros[*at])).is_some()
    }

    pub fn used(&self) -> usize {
        self.differences.iter().map(Cell::get).sum()
    }

    pub fn stale(&self) -> Vec<String> {
        let differences = DIFFERENCES.iter().zip(&self.differences).filter(|(_, used)| used.get() == 0).map(
            |(entry, _)| {
                let (first, last) = entry.versions;
                format!(
                    "allowed.rs: nothing needs {} {} {first} to {last}: {}",
                    entry.module, entry.item, entry.reason
                )
            },
        );
        let macros = MACROS.iter().zip(&self.macros).filter(|(_, used)| used.get() == 0).map(
            |((module, name, reason), _)| format!("allowed.rs: nothing needs {module} {name}: {reason}"),
        );
        differences.chain(macros).collect()
    }
}

impl Theirs {
    fn fits(&self, ours: Option<&str>, theirs: Option<&str>) -> bool {
        match (self, ours, theirs) {
            (Is(text), _, Some(theirs)) => theirs == *text,
            (Earlier(bytes), Some(ours), Some(theirs)) => {
                let field = |text: &str| {
                    let (offset, size) = text.strip_prefix("offset ")?.split_once(", size ")?;
                    Some((offset.parse::<usize>().ok()?, size.parse::<usize>().ok()?))
                };
                match (field(ours), field(theirs)) {
                    (Some(ours), Some(theirs)) => ours == (theirs.0 + bytes, theirs.1),
                    _ => false,
                }
            }
            (NotConst, Some(ours), Some(theirs)) => {
                ours.replace("* const", "* mut") == theirs.replace("* const", "* mut")
            }
            (Unbound, None, Some(_)) => true,
            _ => false,
        }
    }
}

fn matches(pattern: &str, item: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => item.starts_with(prefix),
        None => item == pattern,
    }
}

fn count(cell: &Cell<usize>) {
    cell.set(cell.get() + 1);
}
