//! Turns bindgen's output into the two files of a sys module: types and constants, and the function table.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use proc_macro2::TokenStream;
use quote::quote;
use syn::{
    File, FnArg, ForeignItem, ForeignItemFn, Ident, ImplItem, ImplItemConst, Item, ItemStruct, ItemUse, Type,
};

use crate::functions::Functions;
use crate::packages::Package;

pub struct Bound {
    /// Structs, unions, aliases and plain constants, in bindgen's order; enumerations are newtypes.
    pub types: Vec<Item>,
    pub codes: BTreeMap<String, Vec<ImplItemConst>>,
    pub functions: Vec<ForeignItemFn>,
}

impl Bound {
    pub fn parse(text: &str) -> Result<Self> {
        let file: File = syn::parse_str(text).context("bindgen's output")?;
        let enums: BTreeSet<String> = file
            .items
            .iter()
            .filter_map(|item| match item {
                Item::Struct(item) if is_code(item) => Some(item.ident.to_string()),
                _ => None,
            })
            .collect();
        let mut bound = Bound { types: Vec::new(), codes: BTreeMap::new(), functions: Vec::new() };
        for item in file.items {
            match item {
                Item::ForeignMod(module) => {
                    for item in module.items {
                        let ForeignItem::Fn(function) = item else {
                            bail!("a foreign item that is no function")
                        };
                        bound.functions.push(function);
                    }
                }
                Item::Impl(item) if enums.contains(&type_name(&item.self_ty)) => {
                    let consts = bound.codes.entry(type_name(&item.self_ty)).or_default();
                    for item in item.items {
                        let ImplItem::Const(constant) = item else { bail!("an enumeration with a method") };
                        consts.push(constant);
                    }
                }
                // An alias of an enumeration to its own name.
                Item::Use(item) if names_itself(&item) => {}
                other => bound.types.push(other),
            }
        }
        Ok(bound)
    }

    pub fn bindings(&self, imports: TokenStream) -> Result<String> {
        let items = self.types.iter().map(|item| match item {
            Item::Struct(item) if is_code(item) => self.code(item),
            other => quote!(#other),
        });
        let cleared = self.cleared()?;
        Ok(head("the header that `functions.rs` names")
            + &print(quote! { #imports #(#items)* cuda_rt_sys::cleared!(#(#cleared),*); })?)
    }

    /// Returns the structs and unions whose `Default` clears them, as C programs do. bindgen makes a pointer to a function
    /// an `Option`, so that all types of fields may be 0.
    fn cleared(&self) -> Result<Vec<&Ident>> {
        let records = self.types.iter().filter_map(|item| match item {
            Item::Struct(item) if !is_code(item) && !is_declared_only(item) => {
                Some((&item.ident, item.fields.iter().collect::<Vec<_>>()))
            }
            Item::Union(item) => Some((&item.ident, item.fields.named.iter().collect())),
            _ => None,
        });
        let checked = records.map(|(name, fields)| {
            match fields.iter().any(|field| matches!(field.ty, Type::FnPtr(_) | Type::Reference(_))) {
                true => bail!("{name} has a field that must not be 0"),
                false => Ok(name),
            }
        });
        checked.collect()
    }

    /// Returns an enumeration as an integer newtype that prints its name.
    fn code(&self, item: &ItemStruct) -> TokenStream {
        let name = &item.ident;
        let raw = &item.fields.iter().next().expect("a newtype has one field").ty;
        let consts = self.codes.get(&name.to_string()).map_or(&[][..], Vec::as_slice);
        let mut seen = BTreeSet::new();
        let arms = consts.iter().filter_map(|constant| {
            let value = &constant.expr;
            seen.insert(quote!(#value).to_string()).then(|| {
                let (ident, text) = (&constant.ident, constant.ident.to_string());
                quote!(Self::#ident => Some(#text),)
            })
        });
        let debug = name.to_string();
        quote! {
            #[repr(transparent)]
            #[derive(Copy, Clone, Hash, PartialEq, Eq, PartialOrd, Ord)]
            pub struct #name(pub #raw);
            impl #name {
                #(#consts)*
                /// Any number is valid: a newer library may return codes without a name here.
                pub const fn from_raw(raw: #raw) -> Self { Self(raw) }
                /// The number that C sees.
                pub const fn as_raw(self) -> #raw { self.0 }
                /// The C name of this number, if it has one.
                pub const fn name(self) -> Option<&'static str> {
                    match self { #(#arms)* _ => None }
                }
            }
            impl core::fmt::Debug for #name {
                fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                    match self.name() {
                        Some(name) => f.write_str(name),
                        None => write!(f, "{}({})", #debug, self.0),
                    }
                }
            }
        }
    }

    pub fn table(
        &self,
        source: &str,
        product: &str,
        known: &Functions,
        releases: TokenStream,
        imports: TokenStream,
    ) -> Result<String> {
        known.check(&self.functions)?;
        let (mut fields, mut symbols, mut inits) = (Vec::new(), Vec::new(), Vec::new());
        for function in &self.functions {
            let ident = &function.sig.ident;
            let name = ident.to_string();
            let c_name = std::ffi::CString::new(name.clone())?;
            let pointer = pointer_type(function)?;
            let doc = doc_lines(&known.docs(function, product)?);
            match known.since(&name) {
                None => {
                    fields.push(quote!(#(#[doc = #doc])* pub #ident: #pointer));
                    symbols.push(quote!(Symbol { name: #name, since: 0 }));
                    inits.push(quote!(#ident: library.required(#c_name)?));
                }
                Some(release) => {
                    let number = version_number(release)?;
                    fields.push(quote!(#(#[doc = #doc])* pub #ident: Option<#pointer>));
                    symbols.push(quote!(Symbol { name: #name, since: #number }));
                    inits.push(quote!(#ident: library.optional(#c_name)));
                }
            }
        }
        let doc = format!(" Every bound function of {product} as found in one loaded library.");
        let body = quote! {
            #imports

            #[doc = #doc]
            #[derive(Debug, Clone, Copy)]
            pub struct Functions { #(#fields,)* }

            impl Functions {
                #releases

                /// The name of every function in the table and the version that brought it, in the table's order.
                pub const SYMBOLS: &'static [Symbol] = &[#(#symbols,)*];

                /// Fills the table from `library`.
                #[allow(clippy::undocumented_unsafe_blocks, reason = "type and name of a field come from one declaration")]
                pub(super) fn resolve(library: &SharedLibrary) -> Result<Self, LoadError> {
                    unsafe { Ok(Self { #(#inits,)* }) }
                }
            }
        };
        Ok(head(source) + &print(body)?)
    }
}

/// Returns the constant with the releases of a library, as its version call returns them.
pub fn releases(packages: &[Package]) -> Result<TokenStream> {
    let rows = packages.iter().map(|package| {
        let (release, number) = (package.release(), version_number(package.release())?);
        Ok(quote!((#release, #number)))
    });
    let rows = rows.collect::<Result<Vec<_>>>()?;
    Ok(quote! {
        /// The releases that the bindings are compared with, oldest first, each with the number that its library reports.
        pub const RELEASES: &'static [(&'static str, i32)] = &[#(#rows,)*];
    })
}

fn is_declared_only(item: &ItemStruct) -> bool {
    item.fields.iter().all(|field| field.ident.as_ref().is_some_and(|name| name == "_unused"))
}

/// Wraps paragraphs, with empty lines between them.
fn doc_lines(paragraphs: &[String]) -> Vec<String> {
    const WIDTH: usize = 110;
    let mut lines = Vec::new();
    for paragraph in paragraphs {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        let mut line = String::new();
        for word in paragraph.split(' ') {
            if line.len() + word.len() >= WIDTH {
                lines.push(std::mem::take(&mut line));
            }
            line = format!("{line} {word}");
        }
        lines.push(line);
    }
    lines
}

/// Parses a release such as `1.14` into the number of the library's version call.
fn version_number(release: &str) -> Result<i32> {
    let (major, minor) = release.split_once('.').context("a release is MAJOR.MINOR")?;
    let (major, minor): (i32, i32) = (major.parse()?, minor.parse()?);
    Ok(major * 1000 + minor * 10)
}

fn is_code(item: &ItemStruct) -> bool {
    matches!(item.fields, syn::Fields::Unnamed(_))
}

fn names_itself(item: &ItemUse) -> bool {
    let syn::UseTree::Path(path) = &item.tree else { return false };
    matches!(&*path.tree, syn::UseTree::Rename(rename) if rename.ident == rename.rename)
}

fn type_name(ty: &Type) -> String {
    quote!(#ty).to_string()
}

pub fn pointer_type(function: &ForeignItemFn) -> Result<TokenStream> {
    let inputs = function.sig.inputs.iter().map(|input| match input {
        FnArg::Typed(arg) => {
            let syn::Pat::Ident(pat) = &*arg.pat else { bail!("an argument without a name") };
            let name = &pat.ident;
            let ty = &arg.ty;
            Ok(quote!(#name: #ty))
        }
        FnArg::Receiver(_) => bail!("a C function with a receiver"),
    });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let output = &function.sig.output;
    Ok(quote!(unsafe extern "C" fn(#(#inputs),*) #output))
}

fn print(body: TokenStream) -> Result<String> {
    let file: File = syn::parse2(body)?;
    Ok(prettyplease::unparse(&file))
}

fn head(source: &str) -> String {
    format!("// @generated by `cargo xtask regen-bindings` from {source}; do not edit.\n\n")
}
