use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use gpufile::Engine;
use gpufile::storage::{Error, Folder, Spans, Storage};
use testkit::bed::Bed;

pub fn engine(bed: &Bed) -> Engine {
    Engine::builder().driver(bed.driver.clone()).threads(3).build()
}

/// Contents in memory, which are read in this way.
pub struct Contents<R> {
    pub bytes: Vec<u8>,
    pub read: R,
}

impl<R> fmt::Debug for Contents<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

impl<R> Storage for Contents<R>
where
    R: Fn(&[u8], &mut Spans<'_>) -> Result<(), Error> + Send + Sync,
{
    fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, spans: &mut Spans<'_>) -> Result<(), Error> {
        (self.read)(&self.bytes, spans)
    }
}

pub fn storage<R>(bytes: &[u8], read: R) -> Arc<dyn Storage>
where
    R: Fn(&[u8], &mut Spans<'_>) -> Result<(), Error> + Send + Sync + 'static,
{
    Arc::new(Contents { bytes: bytes.to_vec(), read })
}

pub fn put(bytes: &[u8], spans: &mut Spans<'_>) -> Result<(), Error> {
    while let Some(range) = spans.next_range() {
        spans.put(&bytes[range.start as usize..range.end as usize])?;
    }
    Ok(())
}

/// Fills memory as a reader does that returns few bytes at a time.
pub fn fill(bytes: &[u8], spans: &mut Spans<'_>) -> Result<(), Error> {
    while let Some(range) = spans.next_range() {
        spans.fill(|memory| {
            let some = memory.len().min(100_000);
            memory[..some].copy_from_slice(&bytes[range.start as usize..][..some]);
            Ok(some)
        })?;
    }
    Ok(())
}

pub fn write_raw(bytes: &[u8], spans: &mut Spans<'_>) -> Result<(), Error> {
    for span in spans.as_raw() {
        let source = &bytes[span.offset as usize..][..span.len_bytes];
        // SAFETY: the memory of the span is as long as the source.
        unsafe { span.ptr.copy_from_nonoverlapping(source.as_ptr(), source.len()) };
        // SAFETY: these bytes were written.
        unsafe { spans.advance(source.len()) };
    }
    Ok(())
}

#[derive(Debug)]
pub struct Files(pub BTreeMap<String, Vec<u8>>);

impl Folder for Files {
    fn open(&self, name: &str) -> Result<Option<Arc<dyn Storage>>, Error> {
        Ok(self.0.get(name).map(|bytes| storage(bytes, put)))
    }
}
