//! The declarations of a Rust file to C: read from bindgen's output for one header, and from our committed files.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use quote::{ToTokens, quote};
use syn::{Fields, File, ForeignItem, ImplItem, Item, ItemUse, Type, UseTree};

use crate::emit::pointer_type;

/// The declarations of one header, by name. Types are kept as text.
#[derive(Default)]
pub struct Surface {
    /// Structs and unions; an empty list of fields is a type that C only declares.
    records: BTreeMap<String, Vec<Field>>,
    /// Enumerations, with the integer that each of them is.
    pub codes: BTreeMap<String, String>,
    /// Constants and enumerators, with the Rust expression that gives their number.
    pub constants: BTreeMap<String, String>,
    pub aliases: BTreeMap<String, String>,
    pub functions: BTreeMap<String, String>,
}

struct Field {
    name: String,
    ty: String,
}

/// One field; its paths differ where C has no name or Rust has a keyword.
pub struct Leaf {
    pub c_path: String,
    pub rust_path: String,
    /// Empty for a struct or union that C nests without a name: its fields follow.
    pub ty: String,
}

impl Surface {
    pub fn read(&mut self, file: &File) -> Result<()> {
        for item in &file.items {
            match item {
                Item::Struct(item) => match &item.fields {
                    Fields::Unnamed(fields) => {
                        let integer = fields.unnamed.iter().next().context("an empty newtype")?;
                        self.codes.insert(item.ident.to_string(), text(&integer.ty));
                    }
                    fields => {
                        self.records.insert(item.ident.to_string(), named(fields));
                    }
                },
                Item::Union(item) => {
                    let fields = Fields::Named(item.fields.clone());
                    self.records.insert(item.ident.to_string(), named(&fields));
                }
                Item::Impl(item) if item.trait_.is_none() => {
                    let owner = text(&item.self_ty);
                    for item in &item.items {
                        if let ImplItem::Const(constant) = item {
                            let name = constant.ident.to_string();
                            let expression = format!("{owner}::{name}.0");
                            if self.constants.insert(name.clone(), expression).is_some() {
                                bail!("two constants are called {name}");
                            }
                        }
                    }
                }
                Item::Const(item) if item.ident != "_" => {
                    let name = item.ident.to_string();
                    let integer = matches!(&*text(&item.ty), "u8" | "i32" | "u32" | "i64" | "u64" | "usize");
                    let expression = if integer { name.clone() } else { format!("{name}.0") };
                    self.constants.insert(name, expression);
                }
                Item::Type(item) => {
                    self.aliases.insert(item.ident.to_string(), text(&item.ty));
                }
                Item::Use(item) => {
                    if let Some((name, target)) = renamed(item).filter(|(name, target)| name != target) {
                        self.aliases.insert(name, target);
                    }
                }
                Item::ForeignMod(module) => {
                    for item in &module.items {
                        let ForeignItem::Fn(function) = item else {
                            bail!("a foreign item that is no function")
                        };
                        let pointer = text(&pointer_type(function)?);
                        self.functions.insert(function.sig.ident.to_string(), pointer);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub fn records(&self) -> impl Iterator<Item = &str> {
        self.records
            .iter()
            .filter(|(name, fields)| !nested(name) && !declared_only(fields))
            .map(|(name, _)| &**name)
    }

    /// Returns the fields of a record, with those of nested unnamed ones.
    pub fn leaves(&self, record: &str) -> Vec<Leaf> {
        let mut leaves = Vec::new();
        self.collect(record, "", "", &mut leaves);
        leaves
    }

    fn collect(&self, record: &str, c_prefix: &str, rust_prefix: &str, leaves: &mut Vec<Leaf>) {
        for Field { name, ty } in &self.records[record] {
            let rust_path = format!("{rust_prefix}{name}");
            let c_path = format!("{c_prefix}{}", c_name(name));
            let inner = nested(ty) && self.records.contains_key(ty);
            if inner && name.starts_with("anon_") {
                self.collect(ty, c_prefix, &format!("{rust_path}."), leaves);
                continue;
            }
            leaves.push(Leaf {
                c_path: c_path.clone(),
                rust_path: rust_path.clone(),
                ty: if inner { String::new() } else { ty.clone() },
            });
            if inner {
                self.collect(ty, &format!("{c_path}."), &format!("{rust_path}."), leaves);
            }
        }
    }

    /// Returns the types of fields, enumerations, aliases and functions as text.
    pub fn types(&self) -> BTreeMap<String, String> {
        let mut types = BTreeMap::new();
        for record in self.records() {
            for leaf in self.leaves(record).into_iter().filter(|leaf| !leaf.ty.is_empty()) {
                types.insert(format!("type {record}.{}", leaf.c_path), leaf.ty);
            }
        }
        types.extend(self.codes.iter().map(|(name, integer)| (format!("integer {name}"), integer.clone())));
        types.extend(self.aliases.iter().map(|(name, target)| (format!("alias {name}"), target.clone())));
        types.extend(self.functions.iter().map(|(name, ty)| (format!("function {name}"), ty.clone())));
        types
    }
}

/// Returns the functions of a committed `functions.rs`: pointer type, and whether it is an `Option`.
pub fn table(file: &File) -> Result<BTreeMap<String, (String, bool)>> {
    let fields = file.items.iter().find_map(|item| match item {
        Item::Struct(item) if item.ident == "Functions" => Some(&item.fields),
        _ => None,
    });
    let fields = fields.context("functions.rs has no struct Functions")?;
    Ok(fields
        .iter()
        .filter_map(|field| {
            let name = field.ident.as_ref()?.to_string();
            let pointer = match &field.ty {
                Type::Path(path) => match &path.path.segments.last()?.arguments {
                    syn::PathArguments::AngleBracketed(inner) => (text(inner.args.first()?), true),
                    _ => return None,
                },
                ty => (text(ty), false),
            };
            Some((name, pointer))
        })
        .collect())
}

pub fn alias(file: &File, name: &str) -> Result<String> {
    let found = file.items.iter().find_map(|item| match item {
        Item::Type(item) if item.ident == name => Some(text(&item.ty)),
        _ => None,
    });
    found.with_context(|| format!("no type {name}"))
}

/// Returns one spelling for each type, without commas from formatting, and with one path to `core`.
fn text(tokens: &impl ToTokens) -> String {
    quote!(#tokens).to_string().replace(" ,)", ")").replace(" , >", " >").replace(":: core ::", "core ::")
}

fn named(fields: &Fields) -> Vec<Field> {
    let field =
        |field: &syn::Field| Some(Field { name: field.ident.as_ref()?.to_string(), ty: text(&field.ty) });
    fields.iter().filter_map(field).collect()
}

fn nested(name: &str) -> bool {
    name.contains("_anon_")
}

fn declared_only(fields: &[Field]) -> bool {
    fields.iter().all(|field| field.name == "_unused")
}

/// Removes the underscore that bindgen appends to names that are keywords of Rust.
fn c_name(field: &str) -> &str {
    match field.strip_suffix('_') {
        Some(name) if syn::parse_str::<syn::Ident>(name).is_err() => name,
        _ => field,
    }
}

/// Returns the new and the old name in `pub use self::Old as New;`.
fn renamed(item: &ItemUse) -> Option<(String, String)> {
    let UseTree::Path(path) = &item.tree else { return None };
    match &*path.tree {
        UseTree::Rename(rename) if path.ident == "self" => {
            Some((rename.rename.to_string(), rename.ident.to_string()))
        }
        _ => None,
    }
}
