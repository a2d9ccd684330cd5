//! C's bare names, which a program uses by glob: parts of the generated files.

use std::fmt::Write;

use anyhow::Result;
use quote::{ToTokens, quote};
use syn::ForeignItemFn;

use crate::emit::Bound;
use crate::functions::Functions;

/// Returns the module of the enumerators, each under its own name.
pub fn names(bound: &Bound) -> Result<String> {
    let mut text = "pub(crate) mod names {\n    use super::*;\n\n".to_owned();
    for (ty, constants) in &bound.codes {
        for constant in constants {
            let name = &constant.ident;
            writeln!(text, "    pub const {name}: {ty} = {ty}::{name};")?;
        }
    }
    Ok(text + "}\n")
}

/// Returns the macro that declares the functions, each under the name that C programs call.
pub fn calls(bound: &Bound, product: &str, known: &Functions) -> Result<String> {
    let mut text = "macro_rules! c_calls {\n    () => {\n        cuda_rt_sys::calls! {\n".to_owned();
    for function in &bound.functions {
        let symbol = function.sig.ident.to_string();
        let since = known.since(&symbol).map(|release| format!(" since \"{product} {release}\""));
        let since = since.unwrap_or_default();
        writeln!(text, "            {} = {symbol}{since}{};", bare(&symbol), signature(function))?;
    }
    Ok(text + "        }\n    };\n}\npub(crate) use c_calls;\n")
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
