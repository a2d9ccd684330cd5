//! Text from files, cut to a length that fits an error.

pub(super) fn clip(text: &str) -> String {
    const MOST: usize = 256;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
