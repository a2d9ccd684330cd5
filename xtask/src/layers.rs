//! Checks the layers that docs/architecture.md promises: no module names an item of a layer above its own, or of one that
//! names its items.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, UseTree};

use crate::workspace::workspace;

/// Folders of sources, and their layers from the top, each with its modules; `crate` is the file of the crate itself. A
/// module without a name here belongs to the layer of the module around it. After moving a module, change its name here; a
/// layer may also be split into several.
const LAYERS: [(&str, &str); 7] = [
    (
        "gpufile/src",
        "
        storage/conformance
        formats/safetensors
        formats/safetensors/load
        formats/safetensors/place
        formats/safetensors/save
        formats/safetensors/open
        formats/safetensors/packed
        formats/gguf
        formats/gguf/at_url
        formats/gguf/save_split formats/gguf/uploaded
        formats/gguf/save formats/gguf/model
        formats/gguf/load
        formats/gguf/loaded formats/gguf/files formats/gguf/layout
        formats/gguf/catalog formats/gguf/split
        formats/gguf/parse formats/gguf/write
        formats/gguf/header formats/gguf/values formats/gguf/cursor formats/gguf/metadata formats/gguf/value formats/gguf/strings formats/gguf/block_type
        formats formats/safetensors/headers
        formats/packed
        formats/packed/group
        formats/packed/layout formats/packed/vector
        formats/packed/fault formats/packed/sum
        kv_blocks
        kv_blocks/store
        kv_blocks/reader
        kv_blocks/calls
        kv_blocks/task
        kv_blocks/folders
        kv_blocks/held kv_blocks/pool kv_blocks/timer
        kv_blocks/call kv_blocks/files kv_blocks/index kv_blocks/region
        kv_blocks/slots kv_blocks/sums
        kv_blocks/entry kv_blocks/error kv_blocks/leases kv_blocks/sum
        remote remote/folder remote/options
        remote/http remote/upload
        remote/exchange/race
        remote/exchange
        remote/exchange/pool
        remote/exchange/facts
        remote/said
        remote/connection
        remote/source remote/stores/destination
        remote/stores remote/no_stores
        remote/stores/azure remote/stores/gcs remote/stores/s3
        remote/stores/signed
        remote/stores/connector
        remote/stores/stand_in
        remote/stores/signature
        remote/policy
        remote/connection/request remote/connection/server
        remote/proxy
        remote/connection/tls
        remote/connection/names remote/connection/socket
        remote/connection/answer remote/connection/chunks remote/connection/limit remote/exchange/times
        remote/address
        remote/location
        remote/batch remote/cache remote/environment remote/probe
        lists future file/options file/mapped file/registration
        file
        engine
        engine/relay
        engine/work
        engine/work/windows
        engine/work/in_flight
        engine/work/workers
        engine/work/lanes
        engine/work/lane
        engine/work/file_side
        engine/work/queue
        engine/work/job
        engine/work/hand_out
        engine/device
        engine/device/submitter
        engine/device/buffers
        engine/device/copies
        engine/device/staging
        engine/device/staging_memory engine/device/streams
        engine/device/unpacker
        engine/plan
        engine/plan/chunks
        engine/plan/write_plan
        engine/plan/refusals engine/plan/schedule
        engine/plan/overlap
        engine/plan/transfer
        engine/sync
        open_file
        ranks
        trusted
        settings memory host_bytes direction gpu local_path route error
        error/remote
        storage
        storage/spans
        ",
    ),
    (
        "gpufile-cli/src",
        "
        crate
        bench cache check compress cp load ls pages top usage verify
        check/json check/right_facts check/text
        check/outcome check/verdict check/words
        check/cause
        check/causes
        check/attempt check/features check/storages
        check/codes check/machine
        check/kernel check/target
        explain
        check/block check/gpus check/log_file check/network check/nvidia_fs
        check/container check/cufile_json check/libraries check/lustre check/metrics check/modules check/pci check/storage
        check/limit check/acs check/addresses check/effect check/keys check/mounts check/root check/unusable check/variables
        model object
        cpu failure files findings interrupt location nvidia_fs progress prometheus remote standard_streams stderr table target units values
        ",
    ),
    (
        "cufile/src",
        "
        crate
        values
        cudarc scope
        batch stream userspace_fs vectored
        handle buffer
        stats topology p2p
        builder
        driver
        params
        opened
        properties
        cuda
        library
        file_info slice owned_part
        memory
        context callback
        patience failed
        error fork
        version system
        ",
    ),
    (
        "cufile-sys/src",
        "
        crate
        c
        library
        functions macros
        text
        bindings
        ",
    ),
    (
        "cuda-rt-sys/src",
        "
        crate
        runtime
        runtime/c
        runtime/library
        runtime/functions
        runtime/bindings
        driver
        driver/c
        driver/library
        driver/functions
        driver/mem_op
        driver/bindings
        loader macros
        ",
    ),
    (
        "emulator/src",
        "
        crate
        emulator
        commands
        exports
        exports/batch exports/stream_io
        exports/io
        exports/handle exports/unaligned
        exports/driver exports/driver_streams exports/kernels exports/nccl
        exports/driver_api exports/params
        exports/runtime_copy exports/stats
        exports/runtime
        exports/nvtx exports/opened exports/system
        kernels ranks
        pack trace
        unpack
        virtual_memory
        memory
        space
        mapping
        event
        stream
        device queue status
        c
        control
        cubin newer
        ",
    ),
    (
        "xtask/src",
        "
        crate
        advice bundle coverage dist guide kernels layers mutants names numbers pages parity public_api samples scripts speed_chart
        conformance regen
        c_blocks
        c_names
        emit
        functions
        header
        packages
        artifacts limited release settings target
        tables
        workspace
        ",
    ),
];

/// Returns each named module with the number of its layer, from the top.
fn named(layers: &str) -> Vec<(usize, &str)> {
    let lines = layers.lines().filter(|line| !line.trim().is_empty()).enumerate();
    lines.flat_map(|(at, line)| line.split_whitespace().map(move |name| (at, name))).collect()
}

const ROOT: &str = "crate";

/// The modules of a crate by path, such as `engine/relay` or `crate`.
struct Modules(BTreeMap<String, Module>);

#[derive(Default)]
struct Module {
    file: String,
    /// The paths of imports and of what is named where it is used, as segments.
    imports: Vec<Vec<String>>,
    /// Names that others can import from here although they are defined elsewhere, with that path.
    again: BTreeMap<String, Vec<String>>,
}

impl Modules {
    fn read(folder: &str) -> Self {
        let mut modules = Self(BTreeMap::new());
        modules.read_folder(&workspace().join(folder), "");
        modules
    }

    fn read_folder(&mut self, folder: &Path, path: &str) {
        for entry in fs::read_dir(folder).unwrap() {
            let file = entry.unwrap().path();
            let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
            let inner = if path.is_empty() { stem.clone() } else { format!("{path}/{stem}") };
            match &*stem {
                _ if file.is_dir() => self.read_folder(&file, &inner),
                "tests" => {}
                _ if stem.ends_with("_tests") || file.extension().is_none_or(|ending| ending != "rs") => {}
                "lib" | "main" => self.read_file(&file, ROOT),
                "mod" => self.read_file(&file, path),
                _ => self.read_file(&file, &inner),
            }
        }
    }

    fn read_file(&mut self, file: &Path, path: &str) {
        let text = fs::read_to_string(file).unwrap();
        let parsed = syn::parse_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let name = file.strip_prefix(workspace()).unwrap().display().to_string();
        let module = Module { file: name, ..Module::of(&parsed) };
        self.0.insert(path.to_owned(), module);
    }

    /// Returns the module that an import in `from` is from; `None` for another crate's.
    fn target(&self, from: &str, import: &[String]) -> Option<String> {
        self.follow(from, import, true)
    }

    /// Returns the module that an import names. It may re-export items of another.
    fn named(&self, from: &str, import: &[String]) -> Option<String> {
        self.follow(from, import, false)
    }

    fn follow(&self, from: &str, import: &[String], to_its_source: bool) -> Option<String> {
        let mut at: Vec<&str> = from.split('/').filter(|segment| *segment != ROOT).collect();
        let mut rest = import;
        let is_relative = match rest.first()?.as_str() {
            "crate" => {
                at.clear();
                true
            }
            "self" => true,
            "super" => {
                at.pop();
                true
            }
            _ => false,
        };
        if is_relative {
            rest = &rest[1..];
        }
        let mut has_moved = is_relative;
        while let [segment, after @ ..] = rest {
            let inner = at.iter().copied().chain([&**segment]).collect::<Vec<_>>().join("/");
            let here = path_of(&at);
            if segment == "super" {
                at.pop();
            } else if self.0.contains_key(&inner) {
                at.push(segment);
            } else if let Some(again) =
                (has_moved && to_its_source).then(|| self.0.get(&here)?.again.get(segment)).flatten()
            {
                let path: Vec<String> = again.iter().chain(after).cloned().collect();
                return self.target(&here, &path);
            } else {
                break;
            }
            has_moved = true;
            rest = after;
        }
        has_moved.then(|| path_of(&at))
    }

    fn rising(&self, layers: &str) -> Vec<String> {
        let named = named(layers);
        let layer = |path: &str| {
            let is_around = |name: &str| {
                path == name || path.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'))
            };
            named.iter().filter(|(_, name)| is_around(name)).max_by_key(|(_, name)| name.len())
        };
        let mut rising = Vec::new();
        for (path, module) in &self.0 {
            let Some((from, from_name)) = layer(path) else { continue };
            for import in &module.imports {
                let Some((to, to_name)) = self.target(path, import).as_deref().and_then(layer) else {
                    continue;
                };
                if to < from {
                    let (file, import) = (&module.file, import.join("::"));
                    rising.push(format!(
                        "{file} imports {import}, but `{to_name}` is a layer above `{from_name}`"
                    ));
                }
            }
        }
        rising
    }

    fn imported(&self) -> BTreeMap<&str, BTreeSet<String>> {
        let of = |path: &str, module: &Module| {
            let is_outside = |to: &String| path != ROOT && to != path && !to.starts_with(&format!("{path}/"));
            let targets = module.imports.iter().filter_map(|import| self.named(path, import));
            targets.filter(is_outside).collect()
        };
        self.0.iter().map(|(path, module)| (path.as_str(), of(path, module))).collect()
    }

    fn circles(&self) -> Vec<String> {
        let mut left = self.imported();
        loop {
            // A module that imports no other, or that no other imports, is in no circle.
            let names: BTreeSet<_> = left.keys().map(|path| path.to_string()).collect();
            let imported: BTreeSet<_> = left.values().flatten().cloned().collect();
            left.retain(|path, targets| {
                targets.retain(|to| names.contains(to));
                imported.contains(*path) && !targets.is_empty()
            });
            if left.len() == names.len() {
                break;
            }
        }
        let sentence = |(path, targets)| format!("{} imports from {targets:?}", self.0[path].file);
        left.into_iter().map(sentence).collect()
    }
}

fn path_of(segments: &[&str]) -> String {
    if segments.is_empty() { ROOT.to_owned() } else { segments.join("/") }
}

impl Module {
    /// Reads the imports of a file and the paths in its code, without those of tests.
    fn of(file: &File) -> Self {
        let mut paths = Paths::default();
        paths.visit_file(file);
        let mut module = Self { imports: paths.found, ..Self::default() };
        for item in &file.items {
            match item {
                Item::Use(item)
                    if !is_test(&item.attrs) && !matches!(item.vis, syn::Visibility::Inherited) =>
                {
                    module.again.extend(imports(&item.tree));
                }
                _ => {}
            }
        }
        module
    }
}

fn imports(tree: &UseTree) -> Vec<(String, Vec<String>)> {
    let leaf = |name: String, alias: String| {
        let path = if name == "self" { Vec::new() } else { vec![name] };
        vec![(alias, path)]
    };
    match tree {
        UseTree::Path(inner) => {
            let mut names = imports(&inner.tree);
            names.iter_mut().for_each(|(_, path)| path.insert(0, inner.ident.to_string()));
            names
        }
        UseTree::Name(name) => leaf(name.ident.to_string(), name.ident.to_string()),
        UseTree::Rename(name) => leaf(name.ident.to_string(), name.rename.to_string()),
        UseTree::Glob(_) => leaf("*".to_owned(), "*".to_owned()),
        UseTree::Group(group) => group.items.iter().flat_map(imports).collect(),
    }
}

#[derive(Default)]
struct Paths {
    found: Vec<Vec<String>>,
    depth: usize,
}

impl Paths {
    fn add(&mut self, mut path: Vec<String>) {
        let inside = path.iter().take(self.depth).take_while(|segment| *segment == "super").count();
        path.drain(..inside);
        let is_inside = self.depth > inside && path.first().is_none_or(|first| first == "self");
        if !path.is_empty() && !is_inside {
            self.found.push(path);
        }
    }

    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(segment) => {
                    if colons != 2 {
                        self.add(std::mem::take(&mut path));
                    }
                    path.push(segment.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                other => {
                    self.add(std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.add(path);
    }
}

impl Visit<'_> for Paths {
    fn visit_item(&mut self, item: &Item) {
        let attributes: &[Attribute] = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &[],
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        imports(&item.tree).into_iter().for_each(|(_, path)| self.add(path));
    }

    fn visit_item_mod(&mut self, module: &syn::ItemMod) {
        self.depth += 1;
        visit::visit_item_mod(self, module);
        self.depth -= 1;
    }

    fn visit_visibility(&mut self, _: &syn::Visibility) {}

    fn visit_attribute(&mut self, _: &Attribute) {}

    fn visit_path(&mut self, path: &syn::Path) {
        self.add(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    /// Skips definitions: their code belongs to the callers of the macro.
    fn visit_item_macro(&mut self, item: &syn::ItemMacro) {
        if item.ident.is_none() {
            self.visit_macro(&item.mac);
        }
    }

    fn visit_macro(&mut self, called: &syn::Macro) {
        // Code for other files.
        if !called.path.is_ident("quote") && !called.path.is_ident("parse_quote") {
            self.visit_path(&called.path);
            self.add_tokens(called.tokens.clone());
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.to_token_stream().to_string().contains("test"))
}

#[test]
fn no_module_imports_from_a_layer_above() {
    let mut rising = Vec::new();
    for (folder, layers) in LAYERS {
        rising.extend(Modules::read(folder).rising(layers));
    }
    assert!(
        rising.is_empty(),
        "see docs/architecture.md, or change xtask/src/layers.rs:\n  {}",
        rising.join("\n  ")
    );
}

#[test]
fn no_modules_import_each_other_in_a_circle() {
    let folders = LAYERS.iter().map(|(folder, _)| *folder).chain(["emulator/src"]);
    let circles: Vec<_> = folders.flat_map(|folder| Modules::read(folder).circles()).collect();
    assert!(circles.is_empty(), "move what both need to a file of its own:\n  {}", circles.join("\n  "));
}

#[test]
fn each_module_of_a_crate_has_a_layer() {
    for (folder, layers) in LAYERS {
        let (modules, named) = (Modules::read(folder), named(layers));
        let gone: Vec<_> = named.iter().filter(|(_, name)| !modules.0.contains_key(*name)).collect();
        assert!(gone.is_empty(), "{folder} has no modules {gone:?}; change xtask/src/layers.rs");
        let is_named = |path: &str| named.iter().any(|(_, name)| *name == path);
        let missing: Vec<_> =
            modules.0.keys().filter(|path| *path != ROOT && !path.contains('/') && !is_named(path)).collect();
        assert!(
            missing.is_empty(),
            "{missing:?} of {folder} are in no layer; add them to xtask/src/layers.rs"
        );
    }
}

/// Refuses hidden items, which another package could use unseen.
#[test]
fn no_package_has_a_hidden_item() {
    let mut hidden = Vec::new();
    for manifest in fs::read_dir(workspace()).unwrap().map(|entry| entry.unwrap().path().join("Cargo.toml")) {
        let mut folders = vec![manifest.with_file_name("src")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|ending| ending == "rs") {
                    let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
                    hidden.extend(has_hidden(&file).then_some(path));
                }
            }
        }
    }
    assert!(hidden.is_empty(), "document these items, or move them to their only user: {hidden:#?}");
}

/// Finds hidden items, also those that macros make.
fn has_hidden(file: &File) -> bool {
    fn is_in(tokens: TokenStream) -> bool {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let is_hidden = |pair: &[TokenTree]| {
            let [TokenTree::Ident(doc), TokenTree::Group(what)] = pair else { return false };
            doc == "doc" && what.stream().to_string().contains("hidden")
        };
        let within = |token| matches!(token, TokenTree::Group(group) if is_in(group.stream()));
        tokens.windows(2).any(is_hidden) || tokens.into_iter().any(within)
    }
    is_in(file.to_token_stream())
}

#[test]
fn hidden_items_are_found_in_every_form() {
    for hidden in [
        "#[doc(hidden)] pub mod a {}",
        "impl A { #[doc( hidden )] pub fn a() {} }",
        "mod a { #![doc(hidden)] }",
        "macro_rules! a { () => { #[doc(hidden)] pub fn b() {} } }",
    ] {
        assert!(has_hidden(&syn::parse_str(hidden).unwrap()), "{hidden}");
    }
    let comment = "/// `#[doc(hidden)]` is in a text.\npub fn a() { \"#[doc(hidden)]\"; }";
    assert!(!has_hidden(&syn::parse_str(comment).unwrap()));
}

#[test]
fn imports_are_found_in_every_form() {
    let module = |file: &str, text: &str| Module {
        file: file.to_owned(),
        ..Module::of(&syn::parse_str(text).unwrap())
    };
    let low = "use super::super::{high as up, other}; use super::high::Thing; use std::fmt; use crate::Again; use cut::Cut;
               #[cfg(test)] use crate::high::OfTests;
               mod deep { fn own() { super::own(); } fn other() { super::super::super::high::other() } }
               fn named() -> crate::high::Named { log!(super::super::high::called()) }";
    let modules = Modules(BTreeMap::from([
        (ROOT.to_owned(), module("lib.rs", "mod high; mod low; pub use high::{Thing as Again};")),
        ("high".to_owned(), module("high.rs", "use crate::low::inner::{self, Item};")),
        ("low".to_owned(), module("low/mod.rs", "pub(crate) use inner::Item;")),
        ("low/inner".to_owned(), module("low/inner.rs", low)),
        ("low/inner/cut".to_owned(), module("low/inner/cut.rs", "use crate::low::Item;")),
    ]));
    let rising = modules.rising("high\nlow");
    let imports: Vec<_> = rising.iter().map(|line| line.split(' ').nth(2).unwrap()).collect();
    let expected = [
        "super::super::high,",
        "crate::Again,",
        "super::super::high::other,",
        "crate::high::Named,",
        "super::super::high::called,",
    ];
    assert_eq!(imports, expected, "{rising:#?}");
    assert_eq!(rising[0], "low/inner.rs imports super::super::high, but `high` is a layer above `low`");
    let circles = modules.circles();
    assert!(circles.len() == 2 && circles[1] == r#"low/inner.rs imports from {"high"}"#, "{circles:#?}");
    assert!(
        modules.rising("low\nhigh").iter().all(|line| line.starts_with("high.rs imports crate::low::inner"))
    );
}
