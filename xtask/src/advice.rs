//! Checks that each piece of advice in `docs/guide.md` has a place and a proof, which exist.

use std::fs;

use crate::tables::{Part, defines, has_heading, has_test, missing, parts, rows};
use crate::workspace::workspace;

const PAGE: &str = "docs/guide.md";
/// The number of pieces in NVIDIA's guide.
const PIECES: usize = 55;

fn page() -> String {
    fs::read_to_string(workspace().join(PAGE)).expect(PAGE)
}

/// Returns whether a file has what a cell names: a heading, or the definition of an item.
fn is_there(source: &str, name: &str) -> bool {
    if name.starts_with('#') { has_heading(source, name) } else { defines(source, name) }
}

#[test]
fn every_piece_of_advice_has_a_row() {
    let text = page();
    let numbers: Vec<&str> = rows(&text).iter().map(|row| row[0]).collect();
    let expected: Vec<String> = (1..=PIECES).map(|number| number.to_string()).collect();
    assert_eq!(numbers, expected);
    let advice: std::collections::HashSet<_> = rows(&text).iter().map(|row| row[1].to_owned()).collect();
    assert_eq!(advice.len(), PIECES, "no piece is listed twice");
}

#[test]
fn every_place_and_proof_of_advice_exists() {
    let text = page();
    let mut wrong = Vec::new();
    for row in rows(&text) {
        let [number, _, place, proof] = row[..] else { panic!("not four cells: {row:?}") };
        // A name without a file before it proves nothing.
        let names = |cell| {
            let parts = parts(cell);
            let file = parts.iter().position(|part| matches!(part, Part::Link(_)));
            file.is_some_and(|file| parts[file..].iter().any(|part| matches!(part, Part::Code(_))))
        };
        wrong.extend(
            [place, proof].iter().filter(|cell| !names(cell)).map(|_| format!("{number}: an empty cell")),
        );
        wrong.extend(missing("docs", place, is_there).iter().map(|name| format!("{number}: {name}")));
        wrong.extend(missing("docs", proof, has_test).iter().map(|name| format!("{number}: {name}")));
    }
    assert!(wrong.is_empty(), "{PAGE} names what is not there: {wrong:#?}");
}
