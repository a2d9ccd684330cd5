//! The functions of newer versions, which an older libcufile does not export.
//!
//! The dynamic loader finds a function by the hash of its name, and then compares the name in memory, so a changed
//! first letter in the table of names hides a function.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::{env, ptr, slice};

use libc::{PF_R, PF_W, PF_X, PT_DYNAMIC, PT_LOAD, dl_phdr_info};

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_STRSZ: i64 = 10;

struct Name {
    at: usize,
    since: c_int,
}

struct Table {
    names: Vec<Name>,
    start: usize,
    len_bytes: usize,
    protection: c_int,
}

pub(crate) fn pose_as(version: c_int) {
    static TABLE: OnceLock<Option<Table>> = OnceLock::new();
    let Some(table) = TABLE.get_or_init(find) else { return };
    table.protect(libc::PROT_WRITE);
    for name in &table.names {
        let letter = if name.since > version { b'-' } else { b'c' };
        // SAFETY: the table was made writable, and the loader reads single bytes of it.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(name.at).write_volatile(letter) };
    }
    table.protect(0);
}

/// Poses as soon as the library is loaded, before a program looks functions up.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        let commands = env::var("CUFILE_EMULATOR").unwrap_or_default();
        let mut versions = commands.split(';').filter_map(|command| command.trim().strip_prefix("version "));
        if let Some(version) = versions.next_back().and_then(|version| version.trim().parse().ok()) {
            pose_as(version);
        }
    }
    at_load
};

impl Table {
    fn protect(&self, more: c_int) {
        // SAFETY: takes a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let start = self.start / page * page;
        let len_bytes = (self.start + self.len_bytes).next_multiple_of(page) - start;
        let pages = ptr::with_exposed_provenance_mut::<c_void>(start);
        // SAFETY: pages of this library, which stay readable and executable if they were.
        let changed = unsafe { libc::mprotect(pages, len_bytes, self.protection | more) };
        assert_eq!(changed, 0, "the table of names cannot be changed");
    }
}

/// Returns `None` if the names of this library were not exported.
fn find() -> Option<Table> {
    let mut table: Option<Table> = None;
    // SAFETY: `each` gets valid structures, and a pointer to `table`.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut table).cast()) };
    table.filter(|table| !table.names.is_empty())
}

unsafe extern "C" fn each(library: *mut dl_phdr_info, _: usize, table: *mut c_void) -> c_int {
    // SAFETY: the loader passes a library and its headers, and `find` its table.
    let (library, table) = unsafe { (&*library, &mut *table.cast::<Option<Table>>()) };
    // SAFETY: as above.
    let headers = unsafe { slice::from_raw_parts(library.dlpi_phdr, library.dlpi_phnum.into()) };
    let base = library.dlpi_addr as usize;
    let segment_of = |address: usize| {
        headers.iter().find(|header| {
            let start = base + header.p_vaddr as usize;
            header.p_type == PT_LOAD && (start..start + header.p_memsz as usize).contains(&address)
        })
    };
    if segment_of(find as *const () as usize).is_none() {
        return 0;
    }
    *table = headers.iter().find(|header| header.p_type == PT_DYNAMIC).and_then(|dynamic| {
        // SAFETY: the entries of a loaded library, as pairs of a tag and a value, up to the last tag.
        let entry = |tag| unsafe {
            let mut entry = ptr::with_exposed_provenance::<[i64; 2]>(base + dynamic.p_vaddr as usize);
            while (*entry)[0] != tag && (*entry)[0] != DT_NULL {
                entry = entry.add(1);
            }
            ((*entry)[0] == tag).then_some((*entry)[1] as usize)
        };
        let (start, len_bytes) = (entry(DT_STRTAB)?, entry(DT_STRSZ)?);
        let flags = segment_of(start)?.p_flags;
        let has = |flag, protection| if flags & flag != 0 { protection } else { 0 };
        let protection =
            has(PF_R, libc::PROT_READ) | has(PF_W, libc::PROT_WRITE) | has(PF_X, libc::PROT_EXEC);
        // SAFETY: the loaded table of names.
        let text = unsafe { slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(start), len_bytes) };
        let names =
            cufile_sys::Functions::SYMBOLS.iter().filter(|symbol| symbol.since > 0).filter_map(|symbol| {
                let name = [&[0], symbol.name.as_bytes(), &[0]].concat();
                let at = text.windows(name.len()).position(|window| window == name)?;
                Some(Name { at: start + at + 1, since: symbol.since })
            });
        Some(Table { names: names.collect(), start, len_bytes, protection })
    });
    1
}
