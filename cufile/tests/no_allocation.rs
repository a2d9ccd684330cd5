//! Tests that reading, writing and submitting a batch do not allocate.

use cufile::{Batch, BufSliceMut, Entry, IoBufMut};
use testkit::counting::{Counting, allocations_of_this_thread as allocations};
use testkit::no_op::{self, OnTheDevice};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn the_allocator_counts_allocations() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![0u8; 100]))), 1);
}

#[test]
fn reading_and_writing_allocate_nothing() {
    let file = no_op::file();
    let (mut host, mut device) = (vec![0; 4096], OnTheDevice(4096));
    let count = allocations(|| {
        assert_eq!(file.read_at(&mut host, 0).unwrap(), 4096);
        assert_eq!(file.write_at(&host, 0).unwrap(), 4096);
        assert_eq!(file.read_at(&mut BufSliceMut::new(&mut device, 100..150), 0).unwrap(), 50);
        assert_eq!(file.write_at(&device, 0).unwrap(), 4096);
    });
    assert_eq!(count, 0);
}

#[test]
fn submitting_a_batch_allocates_nothing() {
    let file = no_op::file();
    let mut batch = Batch::<Box<dyn IoBufMut>>::new(file.driver(), 128).unwrap();
    let entry = |id| Entry::read(&file, Box::new(OnTheDevice(4096)) as Box<dyn IoBufMut>, 0).id(id);
    let mut entries: Vec<_> = (0..128).map(entry).collect();
    assert_eq!(allocations(|| batch.submit(entries.drain(..)).unwrap()), 0);
    assert_eq!((entries.len(), batch.in_flight()), (0, 128));
}
