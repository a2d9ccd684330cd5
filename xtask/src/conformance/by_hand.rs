//! The types that `cuda-rt-sys` declares by hand, and what they are compared with in the header.

use std::fmt::Write;

/// A struct of ours for some members of a C union.
pub struct ByHand {
    pub module: &'static str,
    pub file: &'static str,
    /// The name of the C union and of the Rust struct.
    ty: &'static str,
    /// The members of the union that the struct stands for.
    members: &'static [&'static str],
    /// The fields of each of these members, which the struct has too.
    fields: &'static [&'static str],
}

pub const TYPES: &[ByHand] = &[ByHand {
    module: "driver",
    file: "cuda-rt-sys/src/driver/mem_op.rs",
    ty: "CUstreamBatchMemOpParams",
    members: &["waitValue", "writeValue"],
    fields: &["operation", "address", "value64", "flags", "alias"],
}];

impl ByHand {
    /// Returns C code that prints the union's size and where its fields lie.
    pub fn in_c(&self) -> String {
        let ty = self.ty;
        let mut lines = format!(
            "    printf(\"layout {ty}|size %zu, alignment %zu\\n\", sizeof({ty}), _Alignof({ty}));\n"
        );
        self.each(|member, field| {
            writeln!(
                lines,
                r#"    printf("field {ty}.{member}.{field}|offset %zu, size %zu\n", offsetof({ty}, {member}.{field}), sizeof((({ty} *)0)->{member}.{field}));"#
            )
        });
        lines
    }

    /// Returns Rust code that prints the same facts of the struct.
    pub fn in_rust(&self) -> String {
        let (module, name) = (self.module, self.ty);
        let ty = format!("{module}::{name}");
        let mut lines = format!(
            "    println!(\"{module}|layout {name}|size {{}}, alignment {{}}\", size_of::<{ty}>(), align_of::<{ty}>());\n"
        );
        self.each(|member, field| {
            writeln!(
                lines,
                r#"    println!("{module}|field {name}.{member}.{field}|offset {{}}, size {{}}", offset_of!({ty}, {field}), size_of_field(|p: *const {ty}| unsafe {{ &raw const (*p).{field} }}));"#
            )
        });
        lines
    }

    fn each(&self, mut line: impl FnMut(&str, &str) -> std::fmt::Result) {
        for member in self.members {
            for field in self.fields {
                line(member, field).expect("writing to a string");
            }
        }
    }
}
