//! The places of blocks in memory, as addresses. No memory is accessed here.

use std::ops::Range;

use crate::BlockId;

/// The dimensions of the blocks of a memory. A block has `num_layers` × `outer_dim` pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dimensions {
    pub num_blocks: usize,
    pub num_layers: usize,
    /// 2 if keys and values are apart, and 1 if they are together.
    pub outer_dim: usize,
    /// The tokens of a block.
    pub page_size: usize,
    /// The elements of a token in one layer.
    pub inner_dim: usize,
    /// The length of an element, in bytes.
    pub dtype_width_bytes: usize,
}

/// The order of the dimensions in the memory of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockDimension {
    /// `[num_blocks, outer_dim, page_size, inner_dim]`
    BlockIsFirstDim,
    /// `[outer_dim, num_blocks, page_size, inner_dim]`
    BlockIsSecondDim,
}

/// The address of a part of a block, and its place on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    pub address: usize,
    pub len_bytes: usize,
    /// The start of the part in the block on disk, in bytes.
    pub offset: usize,
}

/// The places of all blocks of a memory.
///
/// On disk, a block is `[num_layers, outer_dim, page_size, inner_dim]`, whatever the layout of the memory. So a block of one
/// layout can be fetched into another with the same dimensions.
#[derive(Debug, Clone)]
pub struct Layout {
    dimensions: Dimensions,
    page_bytes: usize,
    /// The address of each layer, or of the first byte of all layers.
    bases: Vec<usize>,
    /// The distances of blocks, of layers in the same allocation, and of the outer dimension, in bytes.
    block_stride: usize,
    layer_stride: usize,
    outer_stride: usize,
}

/// The reasons why there is no such layout.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    #[error("{0} is 0")]
    Empty(&'static str),
    #[error("the blocks have more bytes than an address can count")]
    TooLong,
    #[error("{layers} layers need as many addresses, not {addresses}")]
    Addresses { layers: usize, addresses: usize },
}

impl Dimensions {
    /// Returns the length of a block in bytes.
    ///
    /// # Errors
    /// If a dimension is 0, or if the memory would exceed the address space.
    pub fn block_bytes(&self) -> Result<usize, LayoutError> {
        Ok(self.memory_bytes()? / self.num_blocks)
    }

    /// Returns the length of all blocks in bytes.
    ///
    /// # Errors
    /// As [`block_bytes`](Self::block_bytes).
    pub fn memory_bytes(&self) -> Result<usize, LayoutError> {
        let Self { num_blocks, num_layers, outer_dim, page_size, inner_dim, dtype_width_bytes } = *self;
        let dimensions = [
            ("num_blocks", num_blocks),
            ("num_layers", num_layers),
            ("outer_dim", outer_dim),
            ("page_size", page_size),
            ("inner_dim", inner_dim),
            ("dtype_width_bytes", dtype_width_bytes),
        ];
        let bytes =
            dimensions.into_iter().try_fold(1_usize, |product, (name, dimension)| match dimension {
                0 => Err(LayoutError::Empty(name)),
                _ => product.checked_mul(dimension).ok_or(LayoutError::TooLong),
            })?;
        if isize::try_from(bytes).is_err() { Err(LayoutError::TooLong) } else { Ok(bytes) }
    }
}

impl Layout {
    /// Describes one allocation with all blocks, `[num_blocks, num_layers, outer_dim, page_size, inner_dim]`.
    ///
    /// # Errors
    /// If a dimension is 0, or if the blocks do not fit behind the address.
    pub fn fully_contiguous(dimensions: Dimensions, address: usize) -> Result<Self, LayoutError> {
        let block_stride = dimensions.block_bytes()?;
        let layer_stride = block_stride / dimensions.num_layers;
        let outer_stride = layer_stride / dimensions.outer_dim;
        let (page_bytes, bases) = (outer_stride, vec![address]);
        Self { dimensions, page_bytes, bases, block_stride, layer_stride, outer_stride }.checked()
    }

    /// Describes one allocation for each layer, as vLLM has them.
    ///
    /// # Errors
    /// As [`fully_contiguous`](Self::fully_contiguous), and if the addresses are not as many as the layers.
    pub fn layer_separate(
        dimensions: Dimensions,
        addresses: &[usize],
        order: BlockDimension,
    ) -> Result<Self, LayoutError> {
        let (layers, addresses_len) = (dimensions.num_layers, addresses.len());
        let page_bytes = dimensions.block_bytes()? / layers / dimensions.outer_dim;
        if addresses_len != layers {
            return Err(LayoutError::Addresses { layers, addresses: addresses_len });
        }
        let (block_stride, outer_stride) = match order {
            BlockDimension::BlockIsFirstDim => (page_bytes * dimensions.outer_dim, page_bytes),
            BlockDimension::BlockIsSecondDim => (page_bytes, page_bytes * dimensions.num_blocks),
        };
        let bases = addresses.to_vec();
        Self { dimensions, page_bytes, bases, block_stride, layer_stride: 0, outer_stride }.checked()
    }

    /// Returns the layout if its last byte has an address.
    fn checked(self) -> Result<Self, LayoutError> {
        let bytes = self.dimensions.memory_bytes()? / self.bases.len();
        let fits = self.bases.iter().all(|base| base.checked_add(bytes).is_some());
        if fits { Ok(self) } else { Err(LayoutError::TooLong) }
    }

    pub fn dimensions(&self) -> &Dimensions {
        &self.dimensions
    }

    /// Returns the parts of some layers of a block, in their order on disk. Parts that are adjacent in memory and on disk are
    /// one. Returns `None` if there is no such block or layer.
    pub fn descriptors(&self, block: BlockId, layers: Range<usize>) -> Option<Vec<Descriptor>> {
        let Dimensions { num_blocks, num_layers, outer_dim, .. } = self.dimensions;
        if block >= num_blocks || layers.start >= layers.end || layers.end > num_layers {
            return None;
        }
        let mut parts: Vec<Descriptor> = Vec::new();
        for (layer, outer) in layers.flat_map(|layer| (0..outer_dim).map(move |outer| (layer, outer))) {
            let base = self.bases[layer.min(self.bases.len() - 1)];
            let address =
                base + block * self.block_stride + layer * self.layer_stride + outer * self.outer_stride;
            let (len_bytes, offset) = (self.page_bytes, (layer * outer_dim + outer) * self.page_bytes);
            match parts.last_mut() {
                Some(last) if last.address + last.len_bytes == address => last.len_bytes += len_bytes,
                _ => parts.push(Descriptor { address, len_bytes, offset }),
            }
        }
        Some(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMENSIONS: Dimensions = Dimensions {
        num_blocks: 5,
        num_layers: 3,
        outer_dim: 2,
        page_size: 4,
        inner_dim: 8,
        dtype_width_bytes: 2,
    };
    const PAGE: usize = 64;

    fn part(address: usize, pages: usize, page: usize) -> Descriptor {
        Descriptor { address, len_bytes: pages * PAGE, offset: page * PAGE }
    }

    #[test]
    fn each_layout_finds_its_pages() {
        assert_eq!(DIMENSIONS.block_bytes(), Ok(6 * PAGE));
        let one = Layout::fully_contiguous(DIMENSIONS, 1000).unwrap();
        assert_eq!(one.descriptors(2, 0..3), Some(vec![part(1000 + 12 * PAGE, 6, 0)]));
        assert_eq!(one.descriptors(4, 1..2), Some(vec![part(1000 + 26 * PAGE, 2, 2)]));

        let bases = [10_000, 90_000, 50_000];
        let order = BlockDimension::BlockIsFirstDim;
        let layers = Layout::layer_separate(DIMENSIONS, &bases, order).unwrap();
        let expected = (0..3).map(|layer| part(bases[layer] + 8 * PAGE, 2, 2 * layer)).collect();
        assert_eq!(layers.descriptors(4, 0..3), Some(expected));

        let order = BlockDimension::BlockIsSecondDim;
        let layers = Layout::layer_separate(DIMENSIONS, &bases, order).unwrap();
        let expected = vec![part(50_000 + PAGE, 1, 4), part(50_000 + 6 * PAGE, 1, 5)];
        assert_eq!(layers.descriptors(1, 2..3), Some(expected));
    }

    #[test]
    fn wrong_dimensions_and_numbers_are_refused() {
        let empty = Dimensions { outer_dim: 0, ..DIMENSIONS };
        assert_eq!(Layout::fully_contiguous(empty, 0).unwrap_err(), LayoutError::Empty("outer_dim"));
        let long = Dimensions { num_blocks: usize::MAX / 4, ..DIMENSIONS };
        assert_eq!(long.block_bytes(), Err(LayoutError::TooLong));
        assert_eq!(Layout::fully_contiguous(DIMENSIONS, usize::MAX - 100).unwrap_err(), LayoutError::TooLong);
        let few = Layout::layer_separate(DIMENSIONS, &[1, 2], BlockDimension::BlockIsFirstDim);
        assert_eq!(few.unwrap_err(), LayoutError::Addresses { layers: 3, addresses: 2 });
        let layout = Layout::fully_contiguous(DIMENSIONS, 0).unwrap();
        for (block, layers) in [(5, 0..3), (0, 0..4), (0, 2..2)] {
            assert_eq!(layout.descriptors(block, layers), None);
        }
    }
}
