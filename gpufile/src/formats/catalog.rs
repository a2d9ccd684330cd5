//! The catalog of a model: which tensors its files have, and where. No file is opened or read here.

use std::collections::BTreeMap;
use std::fmt;

use super::clip::clip;

/// The header of one file of a model. Tensors are counted from 0, in the order of their bytes.
pub(super) trait TensorTable {
    type Info<'a>
    where
        Self: 'a;

    fn len(&self) -> usize;

    fn nth(&self, number: u32) -> Self::Info<'_>;

    fn name(&self, number: u32) -> &str;

    /// Returns the numbers of the tensors, by name.
    fn by_name(&self) -> &[u32];

    fn tensor_bytes(&self) -> u64;
}

/// The tensors of several headers, to be found by name.
pub(super) struct Catalog<H> {
    headers: Vec<H>,
    by_name: Vec<Id>,
}

/// The number of a tensor's file, and its number in that file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub file: u32,
    pub tensor: u32,
}

impl<H: TensorTable> Catalog<H> {
    /// # Errors
    /// The first name that two headers have, and the numbers of the two, for each pair of headers.
    pub fn new(headers: Vec<H>) -> Result<Self, BTreeMap<[usize; 2], String>> {
        let mut by_name = Vec::with_capacity(headers.iter().map(H::len).sum());
        for (file, header) in (0..).zip(&headers) {
            by_name.extend(header.by_name().iter().map(|&tensor| Id { file, tensor }));
        }
        let mut catalog = Self { headers, by_name: Vec::new() };
        let name = |id: &Id| catalog.name(*id);
        // The names of one file are in order already, which makes the stable sort faster.
        by_name.sort_by(|a, b| name(a).cmp(name(b)));
        let mut twice = BTreeMap::new();
        for pair in by_name.windows(2).filter(|pair| name(&pair[0]) == name(&pair[1])) {
            let files = [pair[0].file as usize, pair[1].file as usize];
            twice.entry(files).or_insert_with(|| clip(name(&pair[0])));
        }
        if !twice.is_empty() {
            return Err(twice);
        }
        catalog.by_name = by_name;
        Ok(catalog)
    }

    /// Makes the catalog of headers without comparing names. `files` has the number of each tensor's header,
    /// in the order of the names.
    pub fn in_order(headers: Vec<H>, files: impl Iterator<Item = u32>) -> Self {
        let mut next: Vec<_> = headers.iter().map(|header| header.by_name().iter()).collect();
        let id = |file: u32| next[file as usize].next().map(|&tensor| Id { file, tensor });
        let by_name = files.filter_map(id).collect();
        Self { headers, by_name }
    }

    pub fn header(&self, file: u32) -> &H {
        &self.headers[file as usize]
    }

    pub fn headers(&self) -> &[H] {
        &self.headers
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn len_bytes(&self) -> u64 {
        // Headers fit their files, which have fewer than 2^63 bytes each.
        self.headers.iter().map(H::tensor_bytes).fold(0, u64::saturating_add)
    }

    pub fn tensors(&self) -> impl ExactSizeIterator<Item = H::Info<'_>> {
        Counted { left: self.len(), items: self.ids().map(|id| self.info(id)) }
    }

    pub fn info(&self, id: Id) -> H::Info<'_> {
        self.header(id.file).nth(id.tensor)
    }

    pub fn find(&self, name: &str) -> Option<Id> {
        let found = self.by_name.binary_search_by(|&id| self.name(id).cmp(name)).ok()?;
        Some(self.by_name[found])
    }

    pub fn ids(&self) -> impl Iterator<Item = Id> {
        (0..)
            .zip(&self.headers)
            .flat_map(|(file, header)| (0..header.len() as u32).map(move |tensor| Id { file, tensor }))
    }

    fn name(&self, id: Id) -> &str {
        self.header(id.file).name(id.tensor)
    }
}

pub(super) struct Counted<I> {
    pub items: I,
    pub left: usize,
}

impl<I: Iterator> Iterator for Counted<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        let item = self.items.next();
        self.left = self.left.saturating_sub(1);
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<I: Iterator> ExactSizeIterator for Counted<I> {}

impl<H: TensorTable> fmt::Debug for Catalog<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tensors in {} files", self.len(), self.headers.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Dtype;
    use crate::formats::safetensors::{Header, NewTensor};

    fn header(names: &[&str]) -> Header {
        let tensor = |&name| NewTensor { name, dtype: Dtype::U8, shape: &[2] };
        let tensors: Vec<_> = names.iter().map(tensor).collect();
        Header::build(&tensors, BTreeMap::new()).unwrap().0
    }

    #[test]
    fn tensors_are_found_in_their_files() {
        let catalog = Catalog::new(vec![header(&["b", "d"]), header(&[]), header(&["a", "c"])]).unwrap();
        for (name, file, tensor) in [("a", 2, 0), ("b", 0, 0), ("c", 2, 1), ("d", 0, 1)] {
            let id = catalog.find(name).unwrap();
            assert_eq!((id, catalog.info(id).name), (Id { file, tensor }, name));
        }
        assert_eq!((catalog.find("e"), catalog.len(), catalog.len_bytes()), (None, 4, 8));
        let names: Vec<_> = catalog.tensors().map(|tensor| tensor.name).collect();
        assert_eq!(names, ["b", "d", "a", "c"]);
        assert!(catalog.ids().map(|id| catalog.info(id).name).eq(names));
    }

    #[test]
    fn a_known_order_makes_the_same_catalog() {
        let headers = || vec![header(&["b", "d"]), header(&[]), header(&["c", "a"])];
        let (sorted, known) =
            (Catalog::new(headers()), Catalog::in_order(headers(), [2, 0, 2, 0].into_iter()));
        assert_eq!(sorted.unwrap().by_name, known.by_name);
    }

    #[test]
    fn duplicate_names_are_refused_with_both_files() {
        let refused = Catalog::new(vec![header(&["a"]), header(&["b"]), header(&["a"])]);
        assert_eq!(refused.err(), Some(BTreeMap::from([([0, 2], "a".to_owned())])));
    }
}
