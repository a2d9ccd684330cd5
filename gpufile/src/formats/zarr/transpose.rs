/// Copies the elements of a chunk of this shape, whose axes are stored in `order`, to C order. Both slices have all
/// elements.
pub(super) fn transpose(
    stored: &[u8],
    chunk: &mut [u8],
    shape: &[u64],
    order: &[usize],
    element_bytes: usize,
) {
    // The distance of neighbours along each axis of the array, in elements of `stored`.
    let mut strides = vec![0; shape.len()];
    let mut stride = 1;
    for &axis in order.iter().rev() {
        strides[axis] = stride;
        stride *= shape[axis] as usize;
    }
    match element_bytes {
        1 => copy(stored.as_chunks::<1>().0, chunk.as_chunks_mut().0, shape, &strides),
        2 => copy(stored.as_chunks::<2>().0, chunk.as_chunks_mut().0, shape, &strides),
        4 => copy(stored.as_chunks::<4>().0, chunk.as_chunks_mut().0, shape, &strides),
        8 => copy(stored.as_chunks::<8>().0, chunk.as_chunks_mut().0, shape, &strides),
        16 => copy(stored.as_chunks::<16>().0, chunk.as_chunks_mut().0, shape, &strides),
        _ => {
            let elements = chunk.chunks_exact_mut(element_bytes);
            for (element, at) in elements.zip(places(shape, &strides)) {
                element.copy_from_slice(&stored[at * element_bytes..][..element_bytes]);
            }
        }
    }
}

fn copy<const N: usize>(stored: &[[u8; N]], chunk: &mut [[u8; N]], shape: &[u64], strides: &[usize]) {
    let (Some((&len, shape)), Some((&stride, strides))) = (shape.split_last(), strides.split_last()) else {
        return chunk.copy_from_slice(stored);
    };
    for (row, at) in chunk.chunks_exact_mut(len as usize).zip(places(shape, strides)) {
        row.iter_mut().zip(stored[at..].iter().step_by(stride)).for_each(|(to, from)| *to = *from);
    }
}

fn places<'a>(shape: &'a [u64], strides: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    let mut index = vec![0; shape.len()];
    std::iter::successors(Some(0), move |&at: &usize| {
        let mut at = at;
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            at += strides[axis];
            if index[axis] < shape[axis] {
                return Some(at);
            }
            at -= index[axis] as usize * strides[axis];
            index[axis] = 0;
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_of_any_order_become_those_of_the_array() {
        let shape = [2, 3, 4_u64];
        for element_bytes in [1, 2, 3, 4, 8, 16] {
            for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                let mut stored = Vec::new();
                let len = |place: usize| shape[order[place]];
                for a in 0..len(0) {
                    for b in 0..len(1) {
                        for c in 0..len(2) {
                            let mut index = [0; 3];
                            for (axis, at) in order.into_iter().zip([a, b, c]) {
                                index[axis] = at;
                            }
                            let number = (index[0] * 3 + index[1]) * 4 + index[2];
                            stored.extend(std::iter::repeat_n(number as u8, element_bytes));
                        }
                    }
                }
                let mut chunk = vec![99; stored.len()];
                transpose(&stored, &mut chunk, &shape, &order, element_bytes);
                let expected: Vec<_> =
                    (0..24).flat_map(|number| std::iter::repeat_n(number, element_bytes)).collect();
                assert_eq!(chunk, expected, "{order:?} {element_bytes}");
            }
        }
        let mut one = [0; 2];
        transpose(&[5, 6], &mut one, &[], &[], 2);
        assert_eq!(one, [5, 6]);
    }
}
