//! `cargo xtask conformance`: our bindings against every supported header and real library.

mod allowed;
mod by_hand;
mod layout;
mod libraries;
mod surface;
mod variables;

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use syn::File;

use crate::c_blocks;
use crate::c_names::bare;
use crate::functions::Functions;
use crate::header::{self, Header, crt_headers};
use crate::packages::{self, CUDA_HEADER, Package};
use crate::release::Release;
use crate::target::Target;
use crate::workspace::{target_folder, workspace};
use allowed::Ledger;
use layout::{CHeader, Facts, Module, measure_ours};
use surface::Surface;

struct Ours {
    name: &'static str,
    header: &'static Header,
    known: Functions,
    facts: Facts,
    /// Signatures of functions up to a version, in addition to the committed types.
    older: Vec<(&'static str, Release, String)>,
}

#[derive(Default, Clone, Copy)]
struct Tally {
    layouts: usize,
    fields: usize,
    constants: usize,
    functions: usize,
    checks: usize,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.layouts += other.layouts;
        self.fields += other.fields;
        self.constants += other.constants;
        self.functions += other.functions;
        self.checks += other.checks;
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layouts, fields, constants, functions, checks } = self;
        write!(
            f,
            "{layouts:>3} layouts, {fields:>3} fields, {constants:>3} constants, {functions:>2} functions; {checks:>3} checks"
        )
    }
}

struct Conformance {
    ledger: Ledger,
    failures: Vec<String>,
}

pub fn run() -> Result<()> {
    let mut conformance = Conformance { ledger: Ledger::new(), failures: Vec::new() };
    for target in Target::ALL {
        match target.missing() {
            Some(missing) => println!("not checked: the bindings for {}: no {missing} here", target.arch()),
            None => conformance.run(target)?,
        }
    }
    let stale = conformance.ledger.stale();
    conformance.failures.extend(stale);
    println!("{} allowed differences", conformance.ledger.used());
    match conformance.failures.len() {
        0 => Ok(()),
        count => bail!("surprises, {count} in all:\n  {}", conformance.failures.join("\n  ")),
    }
}

impl Conformance {
    /// Checks the real libraries too if the target is this host.
    fn run(&mut self, target: Target) -> Result<()> {
        let arch = target.arch();
        let scratch = target_folder().join("conformance").join(arch);
        let [cufile, runtime, driver] = self.ours(&scratch.join("ours"), target)?;
        let program = if target.is_host() { libraries::build().map(Some) } else { Ok(None) };
        let has_program = program.is_ok();
        let program = program.unwrap_or_else(|error| {
            // The comparison best explains bindings that do not compile.
            self.failures.push(format!("no real library was checked: {error:#}"));
            None
        });

        let cuda_include = CUDA_HEADER.folder_of("cuda.h", target)?;
        let crt_include = crt_headers(target)?;
        if target.is_host() {
            let newest = packages::CUFILE.last().expect("a release");
            let include_dirs =
                [newest.folder_of("cufile.h", target)?, cuda_include.clone(), crt_include.clone()];
            match c_blocks::check(&include_dirs, &scratch) {
                Ok(blocks) => println!("{arch}: {blocks} blocks of C in {} compile", c_blocks::PAGE),
                Err(error) => self.failures.push(format!("{error:#}")),
            }
        }
        let mut total = Tally::default();
        let mut passed = [0, 0];
        for package in packages::CUFILE {
            let before = self.failures.len();
            let release = Release::parse(package.release());
            let include_dirs =
                [package.folder_of("cufile.h", target)?, cuda_include.clone(), crt_include.clone()];
            let scratch = scratch.join(format!("cufile-{}", package.version));
            let mut tally = self.compare(&cufile, package, &include_dirs, &scratch, target)?;
            let library = package.folder_of("libcufile.so.0", target)?.join("libcufile.so.0");
            let real = libraries::cufile(program.as_deref(), &library, release, &scratch)?;
            tally.checks += real.checks;
            self.fail(&format!("libcufile {}", package.version), real.failures);
            self.fail(&format!("libcufile {}", package.version), variables::compare(&library, release)?);
            let open = real.open.map_or(String::new(), |took| format!("; open fails in {took:.0?}"));
            println!("{arch}: cuFile {:<10} {tally}{open}", package.version);
            total.add(tally);
            passed[0] += usize::from(has_program && self.failures.len() == before);
        }
        for package in packages::CUDA_RUNTIME {
            let before = self.failures.len();
            let include_dirs = [package.folder_of("cuda.h", target)?, crt_include.clone()];
            let scratch = scratch.join(format!("cuda-{}", package.version));
            let mut tally =
                self.compare(&runtime, package, &include_dirs, &scratch.join("runtime"), target)?;
            tally.add(self.compare(&driver, package, &include_dirs, &scratch.join("driver"), target)?);
            let real = libraries::cudart(program.as_deref(), package, &scratch)?;
            tally.checks += real.checks;
            self.fail(&format!("libcudart {}", package.version), real.failures);
            println!("{arch}: CUDA   {:<10} {tally}", package.version);
            total.add(tally);
            passed[1] += usize::from(has_program && self.failures.len() == before);
        }
        println!(
            "{arch}: {} of {} libcufile versions, {} of {} CUDA versions: {total}",
            passed[0],
            packages::CUFILE.len(),
            passed[1],
            packages::CUDA_RUNTIME.len(),
        );
        Ok(())
    }

    fn fail(&mut self, what: &str, failures: impl IntoIterator<Item = String>) {
        self.failures.extend(failures.into_iter().map(|failure| format!("{what}: {failure}")));
    }

    fn ours(&mut self, scratch: &Path, target: Target) -> Result<[Ours; 3]> {
        let mut modules = [
            Module {
                name: "cufile",
                files: &["cufile-sys/src/bindings.rs", "cufile-sys/src/macros.rs"],
                surface: Surface::default(),
            },
            Module {
                name: "runtime",
                files: &["cuda-rt-sys/src/runtime/bindings.rs"],
                surface: Surface::default(),
            },
            Module {
                name: "driver",
                files: &["cuda-rt-sys/src/driver/bindings.rs"],
                surface: Surface::default(),
            },
        ];
        for module in &mut modules {
            for file in module.files {
                module.surface.read(&parse(file)?)?;
            }
        }
        let mut measured = measure_ours(&modules, scratch, target)?;
        let batch =
            surface::alias(&parse("cuda-rt-sys/src/runtime/library.rs")?, "cudaMemcpyBatchAsync_v12080")?;
        let batch = ("cudaMemcpyBatchAsync", Release::parse("12.9"), batch);
        let [cufile, runtime, driver] = &modules;
        Ok([
            self.side(
                cufile,
                &header::CUFILE,
                Functions::cufile()?,
                "cufile-sys/src",
                Vec::new(),
                &mut measured,
            )?,
            self.side(
                runtime,
                &header::CUDA_RUNTIME,
                Functions::runtime(),
                "cuda-rt-sys/src/runtime",
                vec![batch],
                &mut measured,
            )?,
            self.side(
                driver,
                &header::CUDA_DRIVER,
                Functions::driver(),
                "cuda-rt-sys/src/driver",
                Vec::new(),
                &mut measured,
            )?,
        ])
    }

    fn side(
        &mut self,
        module: &Module,
        header: &'static Header,
        known: Functions,
        folder: &str,
        older: Vec<(&'static str, Release, String)>,
        measured: &mut BTreeMap<&'static str, Facts>,
    ) -> Result<Ours> {
        let mut facts = measured.remove(module.name).unwrap_or_default();
        facts.extend(module.surface.types());
        let table = format!("{folder}/functions.rs");
        for (name, (ty, optional)) in surface::table(&parse(&table)?)? {
            if optional != known.since(&name).is_some() {
                self.failures
                    .push(format!("{table}: {name} is an Option, or not one, against xtask/src/functions"));
            }
            facts.insert(format!("function {name}"), ty);
        }
        Ok(Ours { name: module.name, header, known, facts, older })
    }

    fn compare(
        &mut self,
        ours: &Ours,
        package: &Package,
        include_dirs: &[PathBuf],
        scratch: &Path,
        target: Target,
    ) -> Result<Tally> {
        let release = Release::parse(package.release());
        let what =
            format!("{} of {} {} for {}", ours.header.file, package.name, package.version, target.arch());
        let mut surface = Surface::default();
        let bound = ours.header.read(include_dirs, target).with_context(|| what.clone())?;
        surface.read(&syn::parse_str(&bound)?).with_context(|| what.clone())?;
        let c = CHeader::read(ours.header, include_dirs, target)?;
        let macros: Vec<&str> =
            c.bound_macros(ours.header).filter(|name| !self.ledger.explains(ours.name, name)).collect();
        let by_hand = by_hand::TYPES.iter().filter(|ty| ty.module == ours.name);
        let mut theirs = c.measure(&surface, by_hand, &macros, scratch).with_context(|| what.clone())?;
        theirs.extend(surface.types());

        let mut failures = Vec::new();
        let newest = [packages::CUFILE, packages::CUDA_RUNTIME]
            .iter()
            .any(|all| all.last().is_some_and(|last| std::ptr::eq(last, package)));
        // The modules `c` have the names of the newest header.
        for name in surface.functions.keys().filter(|name| newest && bare(name) != **name) {
            if !c.macro_definition(bare(name)).is_some_and(|definition| definition.contains(&**name)) {
                failures.push(format!("{} is no macro for {name}, as the module `c` has it", bare(name)));
            }
        }
        for name in surface.functions.keys() {
            if let Some(definition) = c.macro_definition(name).filter(|definition| definition != name) {
                failures.push(format!(
                    "{name} is a macro for {definition}, so that the symbol is an older function"
                ));
            }
        }
        for (item, theirs) in &theirs {
            let known = ours.facts.get(item).map(String::as_str);
            let signature = item.strip_prefix("function ");
            let older = signature
                .and_then(|name| ours.older.iter().find(|older| older.0 == name && release <= older.1));
            if let Some((name, _, older)) = older {
                if older != theirs {
                    failures.push(format!(
                        "function {name}: the header has {theirs}, ours of that version is {older}"
                    ));
                }
                continue;
            }
            if known != Some(theirs) && !self.ledger.allows(ours.name, release, item, known, Some(theirs)) {
                let known = known.unwrap_or("nothing");
                failures.push(format!("{item}: the header has {theirs}, ours is {known}"));
            }
            let too_new = signature.and_then(|name| ours.known.since(name));
            if let Some(first) = too_new.filter(|first| Release::parse(first) > release) {
                failures.push(format!("{item}: the header declares it, xtask/src/functions says {first}"));
            }
        }
        for (item, value) in &ours.facts {
            if theirs.contains_key(item) {
                continue;
            }
            let expected = match item.strip_prefix("function ") {
                Some(name) => ours.known.since(name).is_some_and(|first| Release::parse(first) > release),
                // Items of newer headers; only the newest header must have all of them.
                None => !newest,
            };
            if !expected && !self.ledger.allows(ours.name, release, item, Some(value), None) {
                failures.push(format!("{item}: ours is {value}, and the header does not have it"));
            }
        }
        self.fail(&what, failures);

        let count = |prefix: &str| theirs.keys().filter(|item| item.starts_with(prefix)).count();
        Ok(Tally {
            layouts: count("layout ") + count("enumeration "),
            fields: count("field "),
            constants: count("constant "),
            functions: surface.functions.len(),
            checks: 0,
        })
    }
}

fn parse(file: &str) -> Result<File> {
    let text = fs::read_to_string(workspace().join(file)).with_context(|| file.to_owned())?;
    syn::parse_str(&text).with_context(|| file.to_owned())
}
