//! The catalog of a model: which tensors it has, in which file, and where. No file is opened or read here.

use super::header::{Header, TensorInfo};
use crate::formats::clip::clip;

/// The tensors of several headers, to be found by name.
#[derive(Debug)]
pub(super) struct Catalog {
    headers: Vec<Header>,
    by_name: Vec<Id>,
}

/// The place of a tensor: the number of its file, and its number in that file, in the order of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub file: u32,
    pub tensor: u32,
}

/// Two files that have a tensor of the same name.
pub(super) struct Twice {
    pub tensor: String,
    pub files: [usize; 2],
}

impl Catalog {
    /// Makes the catalog of headers, of which there is at least one.
    ///
    /// # Errors
    /// The first name that two headers have.
    pub fn new(headers: Vec<Header>) -> Result<Self, Twice> {
        let name = |id: &Id| headers[id.file as usize].nth(id.tensor).name;
        let mut by_name = Vec::with_capacity(headers.iter().map(Header::len).sum());
        for (file, header) in (0..).zip(&headers) {
            by_name.extend(header.by_name().iter().map(|&tensor| Id { file, tensor }));
        }
        // The names of one file are in order already, which makes the stable sort faster.
        by_name.sort_by(|a, b| name(a).cmp(name(b)));
        match by_name.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
            Some(pair) => {
                let files = [pair[0].file as usize, pair[1].file as usize];
                Err(Twice { tensor: clip(name(&pair[0])), files })
            }
            None => Ok(Self { headers, by_name }),
        }
    }

    pub fn headers(&self) -> &[Header] {
        &self.headers
    }

    /// Returns the header of the file with this number.
    pub fn header(&self, file: u32) -> &Header {
        &self.headers[file as usize]
    }

    /// Returns the number of tensors.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns the name, type, shape and range of a tensor.
    pub fn info(&self, id: Id) -> TensorInfo<'_> {
        self.header(id.file).nth(id.tensor)
    }

    /// Returns the tensor of that name.
    pub fn find(&self, name: &str) -> Option<Id> {
        let found = self.by_name.binary_search_by(|id| self.info(*id).name.cmp(name)).ok()?;
        Some(self.by_name[found])
    }

    /// Returns the places of all tensors, file by file, in the order of the bytes.
    pub fn ids(&self) -> impl Iterator<Item = Id> {
        let of_file =
            |(file, header): (u32, &Header)| (0..header.len() as u32).map(move |tensor| Id { file, tensor });
        (0..).zip(&self.headers).flat_map(of_file)
    }
}
