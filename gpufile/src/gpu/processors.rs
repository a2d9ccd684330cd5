//! The processors near a GPU, from which copies are fastest if the host has several NUMA nodes.

use std::fs;
use std::mem;
use std::path::Path;

use cufile::cuda::Device;

#[derive(Clone, Copy)]
pub(crate) struct Processors(libc::cpu_set_t);

impl Processors {
    /// Returns the processors near a GPU, or `None` if all or none of this process's are, or the operating system does
    /// not tell.
    pub fn near(gpu: &Device) -> Option<Self> {
        let address = gpu.pci_bus_id().ok()?.to_lowercase();
        let list = Path::new("/sys/bus/pci/devices").join(address).join("local_cpulist");
        Self::current()?.among(&fs::read_to_string(list).ok()?)
    }

    /// Returns the processors on which the calling thread may run.
    fn current() -> Option<Self> {
        // SAFETY: a set of zeros is an empty one.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        // SAFETY: the set has the length that the call names.
        let failed = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
        (failed == 0).then_some(Self(set))
    }

    /// Returns the processors that are in a list such as `0-3,8`. Returns `None` if these are all or none, or the list
    /// cannot be parsed.
    fn among(&self, list: &str) -> Option<Self> {
        // SAFETY: a set of zeros is an empty one.
        let mut found: libc::cpu_set_t = unsafe { mem::zeroed() };
        for range in list.trim().split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            for processor in (first..=last.min(libc::CPU_SETSIZE as usize - 1)).filter(|one| self.has(*one)) {
                // SAFETY: the number is less than the length of a set.
                unsafe { libc::CPU_SET(processor, &mut found) };
            }
        }
        // SAFETY: the call reads the sets.
        let [count, all] = [&found, &self.0].map(|set| unsafe { libc::CPU_COUNT(set) });
        (count > 0 && count < all).then_some(Self(found))
    }

    fn has(&self, processor: usize) -> bool {
        // SAFETY: the callers give numbers that are less than the length of a set.
        unsafe { libc::CPU_ISSET(processor, &self.0) }
    }

    /// Keeps the calling thread here. A failure costs time only.
    pub fn keep_this_thread(&self) {
        // SAFETY: the set has the length that the call names.
        unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(processors: &[usize]) -> Processors {
        // SAFETY: a set of zeros is an empty one.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        // SAFETY: the tests name no larger processor than a set has.
        processors.iter().for_each(|one| unsafe { libc::CPU_SET(*one, &mut set) });
        Processors(set)
    }

    fn numbers(processors: &Processors) -> Vec<usize> {
        (0..libc::CPU_SETSIZE as usize).filter(|one| processors.has(*one)).collect()
    }

    #[test]
    fn lists_of_processors_limit_a_thread_to_some() {
        let own = set(&[0, 1, 2, 3, 8, 9, 1023]);
        for (list, expected) in [
            ("0-3,8\n", Some(vec![0, 1, 2, 3, 8])),
            ("2", Some(vec![2])),
            ("9-2000", Some(vec![9, 1023])),
            ("3-1,9", Some(vec![9])),
            // All and none.
            ("0-1023", None),
            ("4-7", None),
            ("", None),
            ("0-x", None),
            ("-1", None),
        ] {
            assert_eq!(own.among(list).as_ref().map(numbers), expected, "{list:?}");
        }
    }

    #[test]
    fn kept_threads_run_on_the_given_processors_only() {
        let all = numbers(&Processors::current().unwrap());
        let last = *all.last().unwrap();
        let kept = std::thread::spawn(move || {
            set(&[last]).keep_this_thread();
            numbers(&Processors::current().unwrap())
        });
        assert_eq!(kept.join().unwrap(), [last]);
        assert_eq!(numbers(&Processors::current().unwrap()), all, "other threads stay as they are");
    }
}
