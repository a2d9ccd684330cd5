//! The codecs of an array: the list of those that are read, and the check of their metadata.
//!
//! zarrs encodes chunks, and this crate decodes them: see `decode`.

use serde_json::{Map, Value};
use zarrs::metadata::ArrayMetadata;
use zarrs::metadata::v3::MetadataV3;

use super::error::{ZarrError, refused};
use super::grid::{self, Element};
use super::version_2;

/// The codecs of a chunk, checked.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    /// For each axis of the chunk as it is stored, the axis of the array. `None` if they are the same.
    pub order: Option<Vec<usize>>,
    pub serializer: Serializer,
    /// In the order of encoding.
    pub packings: Vec<Packing>,
}

/// The codec that makes bytes of elements.
#[derive(Debug, Clone)]
pub(super) enum Serializer {
    /// The bytes of the elements. Each number of `swapped_bytes` bytes in them has the other byte order; 1 means this
    /// machine's order.
    Bytes {
        swapped_bytes: usize,
    },
    Shards(Box<Shards>),
}

/// A codec that makes chunks of a chunk, and an index of them.
#[derive(Debug, Clone)]
pub(super) struct Shards {
    pub chunk_shape: Vec<u64>,
    pub chain: Chain,
    pub index: Index,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Index {
    pub is_at_start: bool,
    pub is_big_endian: bool,
    pub has_checksum: bool,
}

/// A codec that makes bytes of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    Gzip,
    Zlib,
    Zstd,
    Blosc,
    Crc32c,
}

/// The most levels of shards in shards. Each may take memory for a chunk.
const MAX_LEVELS: usize = 4;

impl Chain {
    pub fn of(metadata: &ArrayMetadata, element: Element) -> Result<Self, ZarrError> {
        match metadata {
            ArrayMetadata::V3(metadata) => {
                if let Some(transformer) = metadata.storage_transformers.first() {
                    let name = transformer.name();
                    return Err(refused(format_args!("the storage transformer {name:?} is not supported")));
                }
                Self::parse(&metadata.codecs, metadata.shape.len(), element, 0)
            }
            ArrayMetadata::V2(metadata) => {
                let codecs = version_2::codecs(metadata)?;
                Self::parse(&codecs, metadata.shape.len(), element, 0)
            }
        }
    }

    fn parse(codecs: &[MetadataV3], axes: usize, element: Element, level: usize) -> Result<Self, ZarrError> {
        let (mut order, mut serializer, mut packings) = (None, None, Vec::new());
        for codec in codecs {
            let none = Map::new();
            let configuration = codec.configuration().map_or(&none, |configuration| configuration);
            let name = codec.name();
            let packing = match name {
                "transpose" if serializer.is_none() => {
                    order = Some(transposed(order, configuration, axes)?);
                    continue;
                }
                "bytes" if serializer.is_none() => {
                    serializer =
                        Some(Serializer::Bytes { swapped_bytes: swapped_bytes(configuration, element)? });
                    continue;
                }
                "sharding_indexed" if serializer.is_none() => {
                    let shards = Shards::parse(configuration, axes, element, level)?;
                    serializer = Some(Serializer::Shards(Box::new(shards)));
                    continue;
                }
                "gzip" => Packing::Gzip,
                "zlib" | "numcodecs.zlib" => Packing::Zlib,
                "zstd" => Packing::Zstd,
                "blosc" => Packing::Blosc,
                "crc32c" => Packing::Crc32c,
                "transpose" | "bytes" | "sharding_indexed" => {
                    return Err(refused(format_args!(
                        "the codec {name:?} is at the wrong place in \"codecs\""
                    )));
                }
                _ => return Err(refused(format_args!("the codec {name:?} is not supported"))),
            };
            if serializer.is_none() {
                return Err(refused(format_args!("the codec {name:?} is at the wrong place in \"codecs\"")));
            }
            packings.push(packing);
        }
        match serializer {
            Some(serializer) => Ok(Self { order, serializer, packings }),
            None => Err(refused("\"codecs\" has neither \"bytes\" nor \"sharding_indexed\"")),
        }
    }

    /// Returns whether the bytes of a chunk are those of its elements in C order, as this machine has them.
    pub fn is_raw(&self) -> bool {
        let is_native = matches!(self.serializer, Serializer::Bytes { swapped_bytes: 1 });
        is_native && self.order.is_none() && self.packings.is_empty()
    }
}

impl Shards {
    fn parse(
        configuration: &Map<String, Value>,
        axes: usize,
        element: Element,
        level: usize,
    ) -> Result<Self, ZarrError> {
        if level == MAX_LEVELS {
            return Err(refused(format_args!(
                "\"sharding_indexed\" has more than {MAX_LEVELS} levels of shards"
            )));
        }
        let wrong = |field| refused(format_args!("{field:?} of \"sharding_indexed\" is missing or wrong"));
        let codecs = |field| {
            let codecs = configuration.get(field).cloned().unwrap_or_default();
            serde_json::from_value::<Vec<MetadataV3>>(codecs).map_err(|_| wrong(field))
        };
        let shape = configuration.get("chunk_shape").and_then(Value::as_array);
        let shape = shape.and_then(|shape| shape.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
        let shape = shape.filter(|shape| shape.len() == axes && !shape.contains(&0));
        let chunk_shape = shape.ok_or_else(|| wrong("chunk_shape"))?;
        grid::chunk_bytes(&chunk_shape, element)?;
        let is_at_start = match configuration.get("index_location").map(Value::as_str) {
            None | Some(Some("end")) => false,
            Some(Some("start")) => true,
            _ => return Err(wrong("index_location")),
        };
        let index = Index::parse(&codecs("index_codecs")?, is_at_start)?;
        let chain = Chain::parse(&codecs("codecs")?, axes, element, level + 1)?;
        Ok(Self { chunk_shape, chain, index })
    }
}

impl Index {
    /// The length of an index must not depend on its contents, so no codec may compress it.
    fn parse(codecs: &[MetadataV3], is_at_start: bool) -> Result<Self, ZarrError> {
        let names: Vec<_> = codecs.iter().map(MetadataV3::name).collect();
        let has_checksum = match names[..] {
            ["bytes"] => false,
            ["bytes", "crc32c"] => true,
            _ => return Err(refused(format_args!("the \"index_codecs\" {names:?} are not supported"))),
        };
        let endian =
            codecs[0].configuration().and_then(|configuration| configuration.get("endian")?.as_str());
        match endian {
            Some("little") => Ok(Self { is_at_start, is_big_endian: false, has_checksum }),
            Some("big") => Ok(Self { is_at_start, is_big_endian: true, has_checksum }),
            _ => Err(refused("\"endian\" of \"index_codecs\" is missing or wrong")),
        }
    }
}

/// Returns the length of the numbers to swap in each element, or 1.
fn swapped_bytes(configuration: &Map<String, Value>, element: Element) -> Result<usize, ZarrError> {
    let native = if cfg!(target_endian = "little") { "little" } else { "big" };
    match configuration.get("endian").and_then(Value::as_str) {
        Some(endian) if endian == native => Ok(1),
        Some("little" | "big") => Ok(element.number_bytes),
        _ if element.number_bytes == 1 => Ok(1),
        _ => Err(refused("\"endian\" of \"bytes\" is missing or wrong")),
    }
}

fn transposed(
    before: Option<Vec<usize>>,
    configuration: &Map<String, Value>,
    axes: usize,
) -> Result<Vec<usize>, ZarrError> {
    let wrong = || refused("\"order\" of \"transpose\" is missing or wrong");
    let order = configuration.get("order").and_then(Value::as_array).ok_or_else(wrong)?;
    let mut is_left = vec![true; axes];
    let order = order.iter().map(|axis| {
        let axis = usize::try_from(axis.as_u64()?).ok()?;
        std::mem::take(is_left.get_mut(axis)?).then_some(axis)
    });
    let order: Vec<_> = order.collect::<Option<_>>().ok_or_else(wrong)?;
    if order.len() != axes {
        return Err(wrong());
    }
    Ok(match before {
        Some(before) => order.iter().map(|&axis| before[axis]).collect(),
        None => order,
    })
}
