/// Cuts tensors, in their order, into slices of at most `limit_bytes` bytes, or of one longer tensor.
pub(in crate::formats) fn distribute<T>(
    tensors: &[T],
    len_bytes: impl Fn(&T) -> u64,
    limit_bytes: u64,
) -> Vec<&[T]> {
    let mut parts = Vec::new();
    let (mut start, mut room) = (0, limit_bytes);
    for (at, tensor) in tensors.iter().enumerate() {
        let len_bytes = len_bytes(tensor);
        if len_bytes > room && start < at {
            parts.push(&tensors[start..at]);
            (start, room) = (at, limit_bytes);
        }
        room = room.saturating_sub(len_bytes);
    }
    parts.push(&tensors[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_to_the_limit_except_single_tensors() {
        let cut = |lens: &[u64], limit| {
            distribute(lens, |len| *len, limit).into_iter().map(<[_]>::to_vec).collect::<Vec<_>>()
        };
        assert_eq!(cut(&[3, 3, 3], 6), [vec![3, 3], vec![3]]);
        assert_eq!(cut(&[9, 1, 9, 0], 6), [vec![9], vec![1], vec![9, 0]]);
        assert_eq!(cut(&[1, 2], u64::MAX), [vec![1, 2]]);
        assert_eq!(cut(&[], 0), [vec![0_u64; 0]]);
    }
}
