//! A reader of columns, for programs on tokio: the chunks of a column go into memory of a GPU, several at a time. What may
//! succeed later is tried again, and a read whose future is dropped ends.
//!
//! A chunk is that of a column in Arrow's record batches: a bitmap of the rows that have values, and the values, each at a
//! multiple of 64 bytes in the file and in memory. `gpufile` reads both by one list of ranges.
//!
//! ```text
//! read(column) ─ a task for each chunk ─ permit ─ allocate ─ File::read_many_async ─┬─ chunk
//!                                                     └── wait, if the error is transient ┘
//! ```

mod table;

use std::sync::Arc;
use std::time::Duration;

use gpufile::cuda::{Device, DeviceBuffer};
use gpufile::{File, IoRange};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

pub use table::{ALIGNMENT, Chunk, Column, Table};

/// The reason why a chunk was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("chunk {chunk} of column {column:?} was not read in {tries} tries: {source}")]
    Failed { column: String, chunk: usize, tries: u32, source: Box<gpufile::Error> },
    #[error("no memory of the GPU for chunk {chunk} of column {column:?}: {source}")]
    NoMemory { column: String, chunk: usize, source: Box<gpufile::cufile::Error> },
    #[error("the table has no column {0:?}")]
    NoColumn(String),
}

/// A chunk in memory of a GPU.
#[derive(Debug)]
pub struct DeviceChunk {
    pub rows: u64,
    /// The bitmap, and behind it the values, from [`values_at`](Self::values_at) on.
    pub memory: DeviceBuffer,
    pub values_at: usize,
    /// The number of reads until it was there.
    pub tries: u32,
}

/// The rule for trying again.
#[derive(Debug, Clone, Copy)]
pub struct Retries {
    pub most_tries: u32,
    /// The wait before the second try. Each later one is twice as long.
    pub first_wait: Duration,
}

/// Reads chunks of a table. Clones share the limit of chunks in flight.
#[derive(Debug, Clone)]
pub struct ColumnReader {
    file: File,
    table: Arc<Table>,
    device: Device,
    retries: Retries,
    in_flight: Arc<Semaphore>,
}

impl ColumnReader {
    /// Makes a reader with at most `in_flight` chunks in flight, which limits the memory of chunks that nobody uses
    /// yet.
    pub fn new(file: File, table: Table, device: Device, retries: Retries, in_flight: usize) -> Self {
        Self { file, table: Arc::new(table), device, retries, in_flight: Arc::new(Semaphore::new(in_flight)) }
    }

    /// Reads all chunks of a column, in their order. Dropping the future ends the reads.
    ///
    /// # Errors
    /// The first error of a chunk, after which the other reads end.
    pub async fn read(&self, column: &str) -> Result<Vec<DeviceChunk>, ReadError> {
        let chunks = self.column(column)?.chunks.len();
        let mut tasks = JoinSet::new();
        for chunk in 0..chunks {
            let (reader, column) = (self.clone(), column.to_owned());
            tasks.spawn(async move { (chunk, reader.read_chunk(&column, chunk).await) });
        }
        let mut all: Vec<_> = (0..chunks).map(|_| None).collect();
        // A set that is dropped aborts its tasks, and a read whose future is dropped ends.
        while let Some(done) = tasks.join_next().await {
            let (chunk, outcome) = done.expect("no task panics, and none is aborted before");
            all[chunk] = Some(outcome?);
        }
        Ok(all.into_iter().flatten().collect())
    }

    /// Reads one chunk. Dropping the future ends the read.
    ///
    /// # Errors
    /// The chunk cannot be read, also not by another try, or the GPU has no memory for it.
    pub async fn read_chunk(&self, column: &str, number: usize) -> Result<DeviceChunk, ReadError> {
        let chunk = &self.column(column)?.chunks[number];
        let _permit = self.in_flight.acquire().await.expect("never closed");
        let values_at = chunk.validity_bytes().next_multiple_of(ALIGNMENT) as usize;
        let failed = |error| {
            let source = Box::new(error);
            ReadError::NoMemory { column: column.to_owned(), chunk: number, source }
        };
        let mut memory = self.device.alloc(values_at + chunk.values_bytes() as usize).map_err(failed)?;
        let mut ranges = vec![
            IoRange {
                file_offset: chunk.validity.start,
                buffer_offset: 0,
                len_bytes: chunk.validity_bytes() as usize,
            },
            IoRange {
                file_offset: chunk.values.start,
                buffer_offset: values_at,
                len_bytes: chunk.values_bytes() as usize,
            },
        ];
        let mut wait = self.retries.first_wait;
        for tries in 1.. {
            let outcome;
            // The memory comes back, whatever the outcome.
            (outcome, (memory, ranges)) = self.file.read_many_async(memory, ranges).await;
            match outcome {
                Ok(_) => return Ok(DeviceChunk { rows: chunk.rows, memory, values_at, tries }),
                Err(error) if error.is_transient() && tries < self.retries.most_tries => {
                    sleep(wait).await;
                    wait *= 2;
                }
                Err(error) => {
                    let source = Box::new(error);
                    return Err(ReadError::Failed {
                        column: column.to_owned(),
                        chunk: number,
                        tries,
                        source,
                    });
                }
            }
        }
        unreachable!("the last try returns")
    }

    fn column(&self, name: &str) -> Result<&Column, ReadError> {
        self.table.column(name).ok_or_else(|| ReadError::NoColumn(name.to_owned()))
    }
}
