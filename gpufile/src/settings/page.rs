//! The rows of the table in docs/settings.md.

use super::{VARIABLES, Variable};

/// The head of the table.
pub const PAGE_HEAD: &str = "\
| setting | variable, and KvikIO's | meaning | values of the variable | default | when to change it |
|---|---|---|---|---|---|
";

/// Returns the name of each setting, and its row.
pub fn page_rows() -> impl Iterator<Item = (&'static str, String)> {
    VARIABLES.iter().map(|variable| (variable.setting, variable.row()))
}

impl Variable {
    /// Returns the first paragraph of the documentation, in one line.
    fn meaning(&self) -> String {
        let lines = self.docs.iter().map(|line| line.trim()).take_while(|line| !line.is_empty());
        lines.collect::<Vec<_>>().join(" ")
    }

    fn row(&self) -> String {
        let names = std::iter::once(&self.name).chain(self.of_kvikio).map(|name| format!("`{name}`"));
        let names = names.collect::<Vec<_>>().join(", ");
        let Self { setting, default, accepted, advice, .. } = self;
        format!("| `{setting}` | {names} | {} | {accepted} | {default} | {advice} |\n", self.meaning())
    }
}
