//! `cargo xtask public-api` writes or checks the public API of the crates for users, one item a line.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::{target_folder, workspace};

const CRATES: [&str; 2] = ["cufile", "gpufile"];

/// Writes `public-api.txt` of each crate, or compares it with the sources.
pub fn run(check: bool) -> Result<()> {
    let mut drifted = Vec::new();
    for name in CRATES {
        let found = items(name)?;
        let path = workspace().join(name).join("public-api.txt");
        let written = fs::read_to_string(&path).unwrap_or_default();
        if found == written {
            continue;
        }
        drifted.push(name);
        print_difference(name, &written, &found);
        if !check {
            fs::write(&path, found).with_context(|| path.display().to_string())?;
        }
    }
    match (drifted.as_slice(), check) {
        ([], _) => println!("the public API of {} is as written", CRATES.join(" and ")),
        (drifted, false) => println!("written: {}", drifted.join(", ")),
        (drifted, true) => {
            bail!("the public API of {} has changed; run `cargo xtask public-api`", drifted.join(" and "))
        }
    }
    Ok(())
}

/// Returns the public items of a crate with all its features. Of the auto traits, it lists only those about threads.
fn items(name: &str) -> Result<String> {
    let target = target_folder().join("public-api");
    let mut cargo = Command::new("cargo");
    cargo
        .args(["rustdoc", "--quiet", "--lib", "--all-features", "--package", name, "--target-dir"])
        .arg(&target);
    cargo.args(["--", "-Zunstable-options", "--output-format", "json"]);
    // The format is not stable; the code below checks that this toolchain writes a known one.
    let status = cargo.env("RUSTC_BOOTSTRAP", "1").current_dir(workspace()).status()?;
    ensure!(status.success(), "rustdoc failed for {name}");
    let json = target.join("doc").join(format!("{name}.json"));
    let api = public_api::Builder::from_rustdoc_json(&json)
        .sorted(true)
        .omit_blanket_impls(true)
        .build()
        .with_context(|| {
            format!("another version of public-api may read what this toolchain wrote: {}", json.display())
        })?;
    let lines = api.items().map(|item| format!("{item}\n"));
    Ok(lines.filter(|line| !is_implemented_by_itself(line)).collect())
}

fn is_implemented_by_itself(line: &str) -> bool {
    const TRAITS: [&str; 5] = [
        "core::marker::Freeze",
        "core::marker::Unpin",
        "core::marker::UnsafeUnpin",
        "core::panic::unwind_safe::RefUnwindSafe",
        "core::panic::unwind_safe::UnwindSafe",
    ];
    line.starts_with("impl") && TRAITS.iter().any(|name| line.contains(&format!("{name} for ")))
}

fn print_difference(name: &str, written: &str, found: &str) {
    let [written, found] = [written, found].map(|text| text.lines().collect::<BTreeSet<_>>());
    for gone in written.difference(&found) {
        println!("{name}: - {gone}");
    }
    for new in found.difference(&written) {
        println!("{name}: + {new}");
    }
}
