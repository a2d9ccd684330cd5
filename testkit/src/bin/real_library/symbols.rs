//! Checks of a loaded libcufile: its version, and its exported functions.

use std::ffi::CString;
use std::path::Path;

use cufile_sys::{Functions, Library};

use crate::checks::{Checks, expect};

pub fn run(checks: &mut Checks, path: &Path, version: i32) {
    // SAFETY: the file is one of NVIDIA's packages.
    let library = match unsafe { Library::load_from(path) } {
        Ok(library) => library,
        Err(error) => return checks.check("the library loads", || Err(error.to_string())),
    };
    checks.check("the library loads", || expect(library.path(), Some(path)));
    checks.check("cuFileGetVersion gives the package's version", || {
        let mut found = 0;
        // SAFETY: `found` outlives the call.
        let status = unsafe { (library.cuFileGetVersion)(&mut found) };
        expect((status.err.as_raw(), found), (0, version))
    });
    checks.check("the library is known as NVIDIA's", || expect(library.is_from_nvidia(), true));
    for symbol in Functions::SYMBOLS {
        checks.check(format!("{} is exported from its first version on", symbol.name), || {
            expect(exports(path, symbol.name)?, symbol.since <= version)
        });
    }
    let found = optional(&library);
    checks.check("the table knows which functions are optional", || {
        let mut listed: Vec<_> = found.iter().map(|(name, _)| name.clone()).collect();
        let mut expected: Vec<_> = Functions::SYMBOLS
            .iter()
            .filter(|symbol| symbol.since > 0)
            .map(|symbol| symbol.name.to_owned())
            .collect();
        listed.sort();
        expected.sort();
        expect(listed, expected)
    });
    for (name, some) in found {
        checks.check(format!("the table has {name} exactly if the version does"), || {
            let symbol = Functions::SYMBOLS.iter().find(|symbol| symbol.name == name);
            expect(Some(some), symbol.map(|symbol| symbol.since <= version))
        });
    }
}

/// Returns functions that some version lacks, and whether this one has them.
fn optional(library: &Library) -> Vec<(String, bool)> {
    let fields = format!("{:?}", library.functions());
    let fields = fields.split(['{', '}', ',']).filter_map(|field| field.trim().split_once(": "));
    let optional = fields.filter(|(_, value)| *value == "None" || value.starts_with("Some("));
    optional.map(|(name, value)| (name.to_owned(), value != "None")).collect()
}

/// Returns whether the dynamic loader, rather than our table, finds the function.
pub fn exports(library: &Path, symbol: &str) -> Result<bool, String> {
    let path = CString::new(library.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
    let symbol = CString::new(symbol).map_err(|error| error.to_string())?;
    // SAFETY: the library is loaded already; the strings outlive the calls.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        match handle.is_null() {
            true => Err("the library is not loaded".to_owned()),
            false => Ok(!libc::dlsym(handle, symbol.as_ptr()).is_null()),
        }
    }
}
