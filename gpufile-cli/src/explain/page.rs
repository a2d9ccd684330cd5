//! docs/troubleshooting.md, made from the tables.

use std::fmt::Write;

use super::{Entry, causes, cuda_codes, cufile_codes, errnos, find, messages, phrases, troubles};

const HEAD: &str = "\
# Troubleshooting

`gpufile explain` prints the same for a code, a name, a message or a line of cufile.log:

```sh
gpufile explain 5001
```

This page is made from the tables of that command: `gpufile explain --all` prints it. Nothing has run on a machine with
nvidia-fs or P2PDMA yet: what it says about them is from NVIDIA's documents and public reports of faults. *Measured* means as in
[libcufile.md](libcufile.md).

When something is slow and there is no message, begin with `gpufile check PATH` ([check.md](check.md)).
";

/// Returns the page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    page += "\n## By what you saw\n";
    for trouble in troubles::all() {
        let _ = write!(page, "\n### {}\n\n```text\n{}\n```\n\n", trouble.title, trouble.seen.join("\n"));
        let Entry { meaning, cause, remedy, proof } = &trouble.entry;
        for (name, text) in [("meaning", meaning), ("cause", cause), ("what to do", remedy), ("proof", proof)]
        {
            let _ = writeln!(page, "- {name}: {text}");
        }
    }
    page += "\n## Codes of cuFile\n\nA transfer returns them negative, for example -5001.\n";
    let rows = cufile_codes::TABLE.iter();
    table(&mut page, "code", rows.map(|(code, entry)| (cufile_codes::title(code.as_raw() as i32), entry)));
    page += "\n## Codes of CUDA\n\nThe numbers of the driver and the runtime mean the same.\n";
    let titles =
        |codes: &[u32]| codes.iter().map(|code| cuda_codes::title(*code)).collect::<Vec<_>>().join("; ");
    table(&mut page, "code", cuda_codes::TABLE.iter().map(|(codes, entry)| (titles(codes), entry)));
    page += "\n## Codes by their words\n\nPrograms in C and Python often print words instead of the code.\n";
    page += "\n| words | code |\n|---|---|\n";
    for (phrase, code) in phrases::PHRASES {
        let title = find::about(*code).map(|answer| answer.title).unwrap_or_default();
        let _ = writeln!(page, "| {phrase} | {title} |");
    }
    page += "\n## Numbers of the operating system\n";
    let titles = |names: &[&str]| {
        let numbers = names.iter().filter_map(|name| Some(format!("{name} ({})", errnos::number(name)?)));
        numbers.collect::<Vec<_>>().join(", ")
    };
    table(&mut page, "errno", errnos::TABLE.iter().map(|(names, entry)| (titles(names), entry)));
    page += "\n## Causes of gpufile check\n\nThe words in JSON and in metrics. `gpufile check PATH` says what to do about each.\n";
    page += "\n| word | meaning |\n|---|---|\n";
    for (word, entry) in causes::TABLE {
        let _ = writeln!(page, "| `{word}` | {} |", entry.meaning);
    }
    page += "\n## Messages of gpufile\n\nAn asterisk stands for any text.\n";
    let titles = |patterns: &[&str]| {
        let quoted: Vec<_> = patterns.iter().map(|pattern| format!("`{pattern}`")).collect();
        quoted.join("; ")
    };
    table(&mut page, "message", messages::TABLE.iter().map(|(patterns, entry)| (titles(patterns), entry)));
    page
}

/// Writes a table.
fn table(page: &mut String, what: &str, rows: impl Iterator<Item = (String, &'static Entry)>) {
    let _ =
        write!(page, "\n| {what} | meaning | usual cause | what to do | proof |\n|---|---|---|---|---|\n");
    for (title, Entry { meaning, cause, remedy, proof }) in rows {
        let cells = [&*title, meaning, cause, remedy, proof].map(|cell| cell.replace('|', "\\|"));
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
}
