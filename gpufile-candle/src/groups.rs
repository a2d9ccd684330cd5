//! Reads into new memory of a device in groups: while it allocates the memory of one, those before are read.

use std::ops::Range;
use std::{iter, thread};

use candle_core::{Device, Error, Result};

/// The most bytes of a group, unless its only tensor is larger.
pub(crate) const GROUP_BYTES: u64 = 512 << 20;
/// The most bytes of the first group, so that reading begins early. Each next one may have twice as many.
const FIRST_BYTES: u64 = 64 << 20;

/// Returns the most bytes of each group in turn. CUDA takes some 25 µs to allocate the memory of a tensor. On the host, memory
/// costs nothing before it is written, so there is one group.
pub(crate) fn limits(device: &Device) -> impl Iterator<Item = u64> {
    let (first, most) = if device.is_cuda() { (FIRST_BYTES, GROUP_BYTES) } else { (u64::MAX, u64::MAX) };
    iter::successors(Some(first), move |bytes| Some(bytes.saturating_mul(2).min(most)))
}

/// Returns how many of the first lengths in bytes a group has room for; at least one.
pub(crate) fn fitting(lens: impl Iterator<Item = u64>, most_bytes: u64) -> usize {
    let mut bytes = 0_u64;
    let fits = lens.take_while(|len_bytes| {
        bytes = bytes.saturating_add(*len_bytes);
        bytes <= most_bytes
    });
    fits.count().max(1)
}

/// Splits tensors of these lengths in bytes into groups, which are ranges of numbers.
fn split(lens: &[u64], limits: impl Iterator<Item = u64>) -> Vec<Range<usize>> {
    let mut start = 0;
    let group = |most_bytes| {
        let rest = &lens[start..];
        let group = start..start + fitting(rest.iter().copied(), most_bytes).min(rest.len());
        start = group.end;
        (!group.is_empty()).then_some(group)
    };
    limits.map_while(group).collect()
}

/// Allocates and reads tensors of these lengths in bytes. `allocate` and `read` get the numbers of a group's tensors.
pub(crate) fn read<M: Send>(
    lens: &[u64],
    limits: impl Iterator<Item = u64>,
    allocate: impl Fn(Range<usize>) -> Result<Vec<M>>,
    read: impl Fn(Range<usize>, &mut [M]) -> Result<()> + Sync,
) -> Result<Vec<M>> {
    let groups = split(lens, limits);
    if groups.len() <= 1 {
        let group = groups.into_iter().next().unwrap_or(0..0);
        let mut memory = allocate(group.clone())?;
        read(group, &mut memory)?;
        return Ok(memory);
    }
    let read = &read;
    thread::scope(|scope| {
        let mut reads = Vec::with_capacity(groups.len());
        for group in groups {
            let mut memory = allocate(group.clone())?;
            reads.push(scope.spawn(move || read(group, &mut memory).map(|()| memory)));
        }
        let mut all = Vec::with_capacity(lens.len());
        for group in reads {
            all.extend(group.join().map_err(|_| Error::msg("the thread that reads a group panicked"))??);
        }
        Ok(all)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn read_groups<M: Send>(
        lens: &[u64],
        allocate: impl Fn(Range<usize>) -> Result<Vec<M>>,
        read: impl Fn(Range<usize>, &mut [M]) -> Result<()> + Sync,
    ) -> Result<Vec<M>> {
        super::read(lens, iter::repeat(10), allocate, read)
    }

    #[test]
    fn groups_grow_to_the_limit() {
        let limits: Vec<_> = super::limits(&Device::Cpu).take(2).collect();
        assert_eq!(limits, [u64::MAX; 2]);
        let growing = iter::successors(Some(2), |bytes| Some(2 * bytes));
        assert_eq!(split(&[1, 1, 1, 3, 8, 1], growing), [0..2, 2..4, 4..5, 5..6]);
    }

    #[test]
    fn groups_end_before_the_limit_and_have_a_tensor() {
        let fitting = |lens: &[u64]| super::fitting(lens.iter().copied(), 10);
        assert_eq!(
            [fitting(&[5, 5, 1]), fitting(&[5, 6]), fitting(&[20, 1]), fitting(&[u64::MAX; 2])],
            [2, 1, 1, 1]
        );
    }

    #[test]
    fn tensors_are_read_in_order_while_others_are_allocated() {
        for lens in [&[][..], &[3], &[4, 4, 4, 20, 1, 0, 9, 1]] {
            let allocate = |group: Range<usize>| Ok(group.map(|number| vec![number; 1]).collect());
            let read = |group: Range<usize>, memory: &mut [Vec<usize>]| {
                group.zip(memory).for_each(|(number, memory)| memory.push(10 * number));
                Ok(())
            };
            let found = read_groups(lens, allocate, read).unwrap();
            assert_eq!(found, (0..lens.len()).map(|number| vec![number, 10 * number]).collect::<Vec<_>>());
        }
        // The first group is not read before the last is allocated.
        let (send, receive) = mpsc::channel();
        let receive = std::sync::Mutex::new(receive);
        let allocate = |group: Range<usize>| {
            send.send(group.start).expect("a receiver");
            Ok(vec![(); group.len()])
        };
        let read = |group: Range<usize>, _: &mut [()]| {
            while group.start == 0 && receive.lock().expect("no panics").recv().expect("a sender") < 2 {}
            Ok(())
        };
        read_groups(&[7, 7, 7], allocate, read).unwrap();
    }

    #[test]
    fn failures_of_groups_are_returned() {
        let allocate = |group: Range<usize>| match group.start {
            2 => Err(Error::msg("no room")),
            _ => Ok(vec![(); group.len()]),
        };
        let read = |group: Range<usize>, _: &mut [()]| match group.start {
            1 => Err(Error::msg("no bytes")),
            _ => Ok(()),
        };
        let failed = |lens| read_groups(lens, allocate, read).unwrap_err().to_string();
        assert!(failed(&[7, 7]).contains("no bytes"));
        assert!(failed(&[7, 7, 7]).contains("no room"));
    }
}
