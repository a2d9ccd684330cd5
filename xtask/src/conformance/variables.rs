//! The environment variables in the strings of a libcufile, compared with the table of `gpufile check`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::release::Release;
use crate::workspace::workspace;

const TABLE: &str = "gpufile-cli/src/check/cufile_variables.txt";

pub fn compare(library: &Path, release: Release) -> Result<Vec<String>> {
    let table = fs::read_to_string(workspace().join(TABLE)).context(TABLE)?;
    Ok(differences(&fs::read(library)?, &table, release))
}

fn differences(library: &[u8], table: &str, release: Release) -> Vec<String> {
    let found = names(library);
    let listed: BTreeSet<_> = table
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (name, first, last) = (words.next()?, words.next()?, words.next()?);
            let range = Release::parse(first)..=Release::parse(last);
            range.contains(&release).then(|| name.to_owned())
        })
        .collect();
    let missing = found.difference(&listed).map(|name| format!("{name} is not in {TABLE}"));
    let gone = listed.difference(&found).map(|name| format!("{name} is in {TABLE}, and not in the library"));
    missing.chain(gone).collect()
}

/// Returns the names of variables in a library: strings that end with a NUL. `CUFILE_PARAM_` begins the name of a parameter.
fn names(library: &[u8]) -> BTreeSet<String> {
    const START: &[u8] = b"CUFILE_";
    let is_part = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
    let begins = (0..library.len()).filter(|at| library[*at..].starts_with(START));
    begins
        .filter(|at| at.checked_sub(1).is_none_or(|before| !is_part(&library[before])))
        .filter_map(|at| {
            let len = library[at..].iter().position(|byte| !is_part(byte))?;
            let name = String::from_utf8(library[at..at + len].to_vec()).ok()?;
            (library[at + len] == 0 && len > START.len() && !name.starts_with("CUFILE_PARAM_"))
                .then_some(name)
        })
        .collect()
}

#[test]
fn each_difference_between_library_and_table_is_named() {
    let library = b"\0CUFILE_A\0xCUFILE_B\0XCUFILE_C\0CUFILE_D is set\0CUFILE_PARAM_E\0CUFILE_\0";
    let table = "CUFILE_A 1.11 1.20\nCUFILE_B 1.17 1.20\nCUFILE_F 1.11 1.15\n";
    let of = |release| differences(library, table, Release::parse(release));
    assert_eq!(of("1.20"), Vec::<String>::new());
    assert_eq!(of("1.16"), [format!("CUFILE_B is not in {TABLE}")]);
    assert_eq!(
        of("1.15"),
        [format!("CUFILE_B is not in {TABLE}"), format!("CUFILE_F is in {TABLE}, and not in the library")]
    );
}
