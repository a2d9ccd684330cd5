use std::ops::Range;

use super::FormatError;
use super::clip::clip;

/// Returns the number of rows of a tensor, which must have the `rows`.
///
/// # Errors
/// [`FormatError::NoSuchSlice`], also for a scalar, which has no first axis.
pub(super) fn available(tensor: &str, shape: &[u64], rows: &Range<u64>) -> Result<u64, FormatError> {
    match shape.first() {
        Some(&available) if rows.start <= rows.end && rows.end <= available => Ok(available),
        first => {
            let (available, range) = (first.copied().unwrap_or(0), rows.clone());
            Err(FormatError::NoSuchSlice { tensor: Some(clip(tensor)), axis: 0, range, available })
        }
    }
}
