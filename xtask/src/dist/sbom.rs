//! A bill of materials: the crates that are linked into a binary, as CycloneDX.
//!
//! `cargo tree` tells these apart from crates that only other packages or other systems use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::target::Target;
use crate::workspace::workspace;

#[derive(Default)]
struct Component {
    name: String,
    version: String,
    license: String,
    uses: BTreeSet<String>,
}

pub fn write(package: &str, file: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut tree = Command::new(cargo);
    tree.current_dir(workspace()).args(["tree", "--locked", "--edges", "normal,no-proc-macro"]);
    tree.args(["--package", package, "--prefix", "depth", "--format", "|{p}|{l}|"]);
    for target in Target::ALL {
        tree.args(["--target", &target.triple()]);
    }
    let output = tree.output()?;
    ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let bill = bill(&String::from_utf8(output.stdout)?)?;
    fs::write(file, serde_json::to_vec_pretty(&bill)?).with_context(|| file.display().to_string())
}

/// Returns the bill for the lines `DEPTH|NAME vVERSION …|LICENSE|`. The binary comes first, and again after an empty line,
/// with what it uses on another target.
fn bill(tree: &str) -> Result<Value> {
    let mut components = BTreeMap::<String, Component>::new();
    let mut ancestors = Vec::<String>::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let fields: Vec<_> = line.split('|').collect();
        let [depth, package, license, ..] = fields[..] else { anyhow::bail!("cargo tree printed {line:?}") };
        let mut words = package.split(' ');
        let name = words.next().context("a name")?;
        let version = words.next().and_then(|word| word.strip_prefix('v')).context("a version")?;
        let reference = format!("pkg:cargo/{name}@{version}");
        ancestors.truncate(depth.parse()?);
        if let Some(parent) = ancestors.last() {
            components.entry(parent.clone()).or_default().uses.insert(reference.clone());
        }
        let component = components.entry(reference.clone()).or_default();
        (component.name, component.version) = (name.to_owned(), version.to_owned());
        // The form with a slash is older than expressions.
        component.license = license.replace('/', " OR ");
        ancestors.push(reference);
    }
    let root = ancestors.first().context("cargo tree printed nothing")?.clone();
    let describe = |reference: &str, component: &Component, kind: &str| {
        json!({
            "type": kind, "bom-ref": reference, "purl": reference,
            "name": component.name, "version": component.version,
            "licenses": [{ "expression": component.license }],
        })
    };
    let libraries = components.iter().filter(|(reference, _)| **reference != root);
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": describe(&root, &components[&root], "application") },
        "components": libraries.map(|(reference, library)| describe(reference, library, "library")).collect::<Vec<_>>(),
        "dependencies": components.iter()
            .map(|(reference, component)| json!({ "ref": reference, "dependsOn": component.uses }))
            .collect::<Vec<_>>(),
    }))
}

#[test]
fn bills_name_each_crate_with_what_it_uses() {
    let tree = "0|a v1.0.0 (/a)|MIT|\n1|b v2.0.0|MIT/Apache-2.0|\n2|c v3.0.0|ISC|\n1|c v3.0.0|ISC| (*)\n\n0|a v1.0.0|MIT|\n";
    let bill = bill(tree).unwrap();
    assert_eq!(bill["metadata"]["component"]["name"], "a");
    let names: Vec<_> = bill["components"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(names, ["b", "c"]);
    assert_eq!(bill["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
    assert_eq!(bill["dependencies"][0]["dependsOn"], json!(["pkg:cargo/b@2.0.0", "pkg:cargo/c@3.0.0"]));
    assert_eq!(bill["dependencies"][1]["dependsOn"], json!(["pkg:cargo/c@3.0.0"]));
}

#[test]
fn the_programs_bill_leaves_out_what_is_not_linked() {
    let file = tempfile::NamedTempFile::new().unwrap();
    write("gpufile-cli", file.path()).unwrap();
    let bill = fs::read_to_string(file.path()).unwrap();
    for (name, is_linked) in [("gpufile", true), ("clap", true), ("zarrs", false), ("cufile-emulator", false)]
    {
        assert_eq!(bill.contains(&format!("pkg:cargo/{name}@")), is_linked, "{name}");
    }
}
