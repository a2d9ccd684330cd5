//! Cubins: ELF files with the machine code of kernels for one architecture, as CUDA 11.8 writes them.

/// A kernel as its PTX or its cubin declares it.
pub(crate) struct Declared {
    pub name: String,
    pub parameter_bytes: Vec<u64>,
    pub most_threads: u64,
}

/// `EM_CUDA`.
const MACHINE: u16 = 190;
/// The text before a kernel's name in the name of the section that describes it.
const ATTRIBUTES: &str = ".nv.info.";

/// Returns the compute capability and the kernels; `None` if `image` is no cubin.
pub(crate) fn read(image: &[u8]) -> Option<((i32, i32), Vec<Declared>)> {
    if u16_at(image, 0x12)? != MACHINE {
        return None;
    }
    // Flags: the lowest byte is the architecture, such as 90.
    let architecture = i32::from(*image.get(0x30)?);
    let sections = sections(image)?;
    let names = sections.get(usize::from(u16_at(image, 0x3E)?))?.bytes;
    let kernels = sections.iter().filter_map(|section| {
        let name = text(names.get(section.name..)?)?.strip_prefix(ATTRIBUTES)?;
        Some(declared(name, section.bytes))
    });
    Some(((architecture / 10, architecture % 10), kernels.collect::<Option<_>>()?))
}

struct Section<'a> {
    /// The offset of its name among the names of sections.
    name: usize,
    bytes: &'a [u8],
}

fn sections(image: &[u8]) -> Option<Vec<Section<'_>>> {
    let (table, count) = (usize_at(image, 0x28)?, usize::from(u16_at(image, 0x3C)?));
    let section = |header: &[u8]| {
        let (offset, len) = (usize_at(header, 0x18)?, usize_at(header, 0x20)?);
        // Some sections, such as shared memory, have no bytes in the file.
        let bytes = image.get(offset..offset.checked_add(len)?).unwrap_or_default();
        Some(Section { name: u32_at(header, 0)? as usize, bytes })
    };
    image.get(table..)?.chunks_exact(64).take(count).map(section).collect()
}

/// Reads attributes: each has a format, a number, and a value or the length of one that follows.
fn declared(name: &str, mut attributes: &[u8]) -> Option<Declared> {
    let mut kernel = Declared { name: name.to_owned(), parameter_bytes: Vec::new(), most_threads: 1024 };
    let mut parameters = Vec::new();
    while let [format, number, rest @ ..] = attributes {
        let len = if *format == 4 { usize::from(u16_at(rest, 0)?) } else { 0 };
        let (value, next) = rest.get(2..)?.split_at_checked(len)?;
        match number {
            // A parameter: an index, the ordinal, the offset, and the length above flags of 18 bits.
            0x17 => parameters.push((u16_at(value, 4)?, u64::from(u32_at(value, 8)? >> 18))),
            // The most threads of a block, in each direction.
            0x05 => {
                let [x, y, z] = [u32_at(value, 0)?, u32_at(value, 4)?, u32_at(value, 8)?];
                kernel.most_threads = u64::from(x) * u64::from(y) * u64::from(z);
            }
            _ => {}
        }
        attributes = next;
    }
    parameters.sort_unstable();
    kernel.parameter_bytes = parameters.into_iter().map(|(_, bytes)| bytes).collect();
    Some(kernel)
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes.split(|byte| *byte == 0).next()?).ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn usize_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?)).ok()
}

/// Returns the length of the ELF file that begins with this header, if its table of sections comes after them. In
/// cubins, the program headers follow the sections.
pub(crate) fn len_bytes(header: &[u8; 64]) -> usize {
    let end = |table: usize, size: usize, count: usize| {
        let (size, count) = (u16_at(header, size), u16_at(header, count));
        usize_at(header, table).unwrap_or(0)
            + usize::from(size.unwrap_or(0)) * usize::from(count.unwrap_or(0))
    };
    end(0x20, 0x36, 0x38).max(end(0x28, 0x3A, 0x3C))
}
