use super::super::headers::header::{Header, TensorInfo};
use crate::formats::catalog::{self, TensorTable};

pub(in crate::formats::safetensors) use crate::formats::catalog::Id;

pub(in crate::formats::safetensors) type Catalog = catalog::Catalog<Header>;

impl TensorTable for Header {
    type Info<'a> = TensorInfo<'a>;

    fn len(&self) -> usize {
        self.len()
    }

    fn nth(&self, number: u32) -> TensorInfo<'_> {
        self.nth(number)
    }

    fn name(&self, number: u32) -> &str {
        self.nth(number).name
    }

    fn by_name(&self) -> &[u32] {
        self.by_name()
    }

    fn tensor_bytes(&self) -> u64 {
        self.tensor_bytes()
    }
}
