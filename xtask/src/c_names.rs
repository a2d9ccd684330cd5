//! The generated files of a module `c`: C's bare names, which a program uses by glob.

use std::fmt::Write;

use anyhow::Result;
use quote::{ToTokens, quote};
use syn::ForeignItemFn;

use crate::emit::Bound;
use crate::since::since;

/// Returns the text of `c/names.rs`: the enumerators, each under its own name.
pub fn names(bound: &Bound, head: &str, imports: &str) -> Result<String> {
    let mut text = format!("{head}{imports}\n\n");
    for (ty, constants) in &bound.codes {
        for constant in constants {
            let name = &constant.ident;
            writeln!(text, "pub const {name}: {ty} = {ty}::{name};")?;
        }
    }
    Ok(text)
}

/// Returns the text of `c/calls.rs`: the functions, each under the name that C programs call.
pub fn calls(
    bound: &Bound,
    head: &str,
    product: &str,
    newer: &'static [(&str, &[&str])],
    imports: &str,
) -> Result<String> {
    let mut text = format!("{head}{imports}\n\ncuda_rt_sys::calls! {{\n");
    for function in &bound.functions {
        let symbol = function.sig.ident.to_string();
        let since = since(newer, &symbol).map(|release| format!(" since \"{product} {release}\""));
        writeln!(
            text,
            "    {} = {symbol}{}{};",
            bare(&symbol),
            since.unwrap_or_default(),
            signature(function)
        )?;
    }
    Ok(text + "}\n")
}

/// Returns the name that the header maps to a symbol, which can end in `_v2`. Conformance checks that the newest header
/// does.
pub fn bare(symbol: &str) -> &str {
    symbol.strip_suffix("_v2").unwrap_or(symbol)
}

/// Returns the arguments and the result of a function on one line.
fn signature(function: &ForeignItemFn) -> String {
    let (inputs, output) = (&function.sig.inputs, function.sig.output.to_token_stream());
    let text = quote!((#inputs) #output).to_string();
    let tidy = [
        (":: core :: ffi :: ", "core::ffi::"),
        (" : ", ": "),
        (" ,", ","),
        ("* ", "*"),
        ("( ", "("),
        (" )", ")"),
        (",)", ")"),
    ];
    let text = tidy.iter().fold(text, |text, (old, new)| text.replace(old, new));
    text.trim_end().to_owned()
}
