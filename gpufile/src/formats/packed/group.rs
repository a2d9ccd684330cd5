//! The code of a group of values: into a block, and back.

use super::fault::Fault;
use super::layout::{Entry, GROUP, Kind, Tables, UNIT, padded};
use super::sum::sum;
use super::vector::{self, Vectors, Work};

const ESCAPE: u8 = 7;
const PATCH: u8 = 15;
/// The table that moves the sign, the third bit, to its place in a byte.
const SIGNED: [u8; 16] = [0, 1, 2, 3, 128, 129, 130, 131, 0, 0, 0, 0, 0, 0, 0, 0];
/// The same for a sign in the fourth bit.
const SIGNED_OF_FOUR: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 128, 129, 130, 131, 132, 133, 134, 135];

/// Memory for one group, to be used again.
pub struct Scratch {
    symbols: [u8; GROUP],
    raw: [u8; GROUP],
    more: [u8; GROUP],
}

impl Scratch {
    pub fn new() -> Box<Self> {
        Box::new(Self { symbols: [0; GROUP], raw: [0; GROUP], more: [0; GROUP] })
    }
}

/// Decodes the block of a group into its values, whose number is that of `out`.
///
/// # Errors
/// [`Fault::Sum`], [`Fault::Block`]. The values are unspecified then.
pub fn decode(
    kind: Kind,
    tables: &Tables,
    (group, entry): (usize, Entry),
    block: &[u8],
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), Fault> {
    vector::run(Decode { kind, tables, group, entry, block, out, scratch })
}

struct Decode<'a> {
    kind: Kind,
    tables: &'a Tables,
    group: usize,
    entry: Entry,
    block: &'a [u8],
    out: &'a mut [u8],
    scratch: &'a mut Scratch,
}

impl Work for Decode<'_> {
    type Output = Result<(), Fault>;

    #[inline(always)]
    fn run<V: Vectors>(self, vectors: V) -> Self::Output {
        let Self { kind, tables, group, entry, block, out, scratch } = self;
        let values = out.len() / kind.value_bytes();
        if block.len() != entry.block_bytes(kind, values) {
            return Err(Fault::Block(group));
        }
        if sum(block) != entry.sum {
            return Err(Fault::Sum(Some(group)));
        }
        if entry.is_stored() {
            out.copy_from_slice(&block[..out.len()]);
            return Ok(());
        }
        let padded = padded(values);
        let plane = padded / 8;
        let (low, rest) = block.split_at(padded * kind.low_bytes());
        let (raw, rest) = rest.split_at(plane * kind.raw_planes());
        let (codes, escapes) = rest.split_at(3 * plane);
        let codes = [&codes[..plane], &codes[plane..2 * plane], &codes[2 * plane..]];
        let raw_plane = |number: usize| &raw[number * plane..(number + 1) * plane];
        let symbols = &mut scratch.symbols[..padded];
        let mut common = [0; 16];
        common[..8].copy_from_slice(&tables.common);
        vectors.look_up(codes, &common, symbols);
        if !place_escapes(kind, tables, entry, codes, escapes, symbols) {
            return Err(Fault::Block(group));
        }
        match kind {
            Kind::Bf16 => {
                for ((out, low), symbol) in out.as_chunks_mut::<2>().0.iter_mut().zip(low).zip(&*symbols) {
                    *out = bf16(*low, *symbol).to_le_bytes();
                }
            }
            Kind::F32 => {
                let (halves, tops) = low.split_at(2 * padded);
                let halves = halves.as_chunks::<2>().0;
                let values = out.as_chunks_mut::<4>().0.iter_mut().zip(halves).zip(tops).zip(&*symbols);
                for (((out, half), top), symbol) in values {
                    let high = u32::from(bf16(*top, *symbol));
                    *out = (high << 16 | u32::from(u16::from_le_bytes(*half))).to_le_bytes();
                }
            }
            Kind::F16 => {
                let tops = &mut scratch.raw[..padded];
                vectors.look_up([raw_plane(0), raw_plane(1), raw_plane(2)], &SIGNED, tops);
                let values = out.as_chunks_mut::<2>().0.iter_mut().zip(low).zip(&*tops).zip(&*symbols);
                for (((out, low), top), symbol) in values {
                    *out = [*low, top | symbol << 2];
                }
            }
            Kind::F8E5M2 => {
                let tops = &mut scratch.raw[..padded];
                vectors.look_up([raw_plane(0), raw_plane(1), raw_plane(2)], &SIGNED, tops);
                for ((out, top), symbol) in out.iter_mut().zip(&*tops).zip(&*symbols) {
                    *out = top | symbol << 2;
                }
            }
            Kind::F8E4M3 => {
                let tops = &mut scratch.raw[..padded];
                vectors.look_up([0, 1, 2, 3].map(raw_plane), &SIGNED_OF_FOUR, tops);
                for ((out, top), symbol) in out.iter_mut().zip(&*tops).zip(&*symbols) {
                    *out = top | symbol << 3;
                }
            }
        }
        Ok(())
    }
}

/// Returns the value of a byte with sign and mantissa, and an exponent.
#[inline(always)]
fn bf16(low: u8, symbol: u8) -> u16 {
    let low = u16::from(low);
    (low & 0x80) << 8 | u16::from(symbol) << 7 | low & 0x7f
}

/// Puts the exponents of escapes in their places. Returns whether there are as many as the index says, and each patch is for
/// its place.
#[inline(always)]
fn place_escapes(
    kind: Kind,
    tables: &Tables,
    entry: Entry,
    codes: [&[u8]; 3],
    escapes: &[u8],
    symbols: &mut [u8],
) -> bool {
    let nibbles_len = usize::from(entry.escapes).div_ceil(2).next_multiple_of(4);
    let (nibbles, patches) = escapes.split_at(nibbles_len);
    let mut patches = patches.as_chunks::<4>().0[..entry.patches.into()].iter();
    let (mut count, most) = (0, usize::from(entry.escapes));
    let planes = codes.map(|plane| plane.as_chunks::<8>().0);
    for (word, ((one, two), three)) in planes[0].iter().zip(planes[1]).zip(planes[2]).enumerate() {
        let mut left = u64::from_le_bytes(*one) & u64::from_le_bytes(*two) & u64::from_le_bytes(*three);
        while left != 0 {
            let place = 64 * word + left.trailing_zeros() as usize;
            left &= left - 1;
            if count == most {
                return false;
            }
            let nibble = nibbles[count / 2] >> (count % 2 * 4) & 15;
            count += 1;
            symbols[place] = match nibble {
                PATCH => match patches.next().map(|patch| u32::from_le_bytes(*patch)) {
                    Some(patch)
                        if patch & 0xffff == place as u32 && patch >> 16 <= kind.most_symbol().into() =>
                    {
                        (patch >> 16) as u8
                    }
                    _ => return false,
                },
                nibble => tables.rare[usize::from(nibble)],
            };
        }
    }
    count == most && patches.next().is_none()
}

/// The tables of a tensor, and their inverse.
pub struct Coder {
    kind: Kind,
    tables: Tables,
    escapes: [u8; 256],
}

/// The number of values with each exponent.
pub type Histogram = [u64; 256];

/// Adds the exponents of values to a histogram.
pub fn count(kind: Kind, values: &[u8], histogram: &mut Histogram) {
    let top = |value: &[u8]| *value.last().expect("no chunk is empty");
    for value in values.chunks_exact(kind.value_bytes()) {
        let symbol = match kind {
            Kind::Bf16 | Kind::F32 => top(value) << 1 | value[value.len() - 2] >> 7,
            Kind::F16 | Kind::F8E5M2 => top(value) >> 2 & 31,
            Kind::F8E4M3 => top(value) >> 3 & 15,
        };
        histogram[usize::from(symbol)] += 1;
    }
}

impl Coder {
    /// Returns the coder of a tensor in which exponents are as frequent as in the histogram.
    pub fn new(kind: Kind, histogram: &Histogram) -> Self {
        let mut symbols: Vec<u8> = (0..=255).filter(|symbol| histogram[usize::from(*symbol)] > 0).collect();
        symbols.sort_by_key(|symbol| (std::cmp::Reverse(histogram[usize::from(*symbol)]), *symbol));
        let first = symbols.first().copied().unwrap_or(0);
        let at = |place: usize| symbols.get(place).copied().unwrap_or(first);
        let mut tables = Tables::default();
        tables.common[..7].iter_mut().enumerate().for_each(|(code, common)| *common = at(code));
        tables.rare[..15].iter_mut().enumerate().for_each(|(nibble, rare)| *rare = at(7 + nibble));
        let mut escapes = [PATCH; 256];
        for (nibble, symbol) in (0..15).zip(symbols.iter().skip(7)) {
            escapes[usize::from(*symbol)] = nibble;
        }
        Self { kind, tables, escapes }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn tables(&self) -> Tables {
        self.tables
    }

    /// Returns the share of their size that values with these exponents keep.
    pub fn share(&self, histogram: &Histogram) -> f64 {
        let total: u64 = histogram.iter().sum();
        let mut bits = 0.0;
        for (symbol, count) in histogram.iter().enumerate() {
            let is_common = self.tables.common[..7].contains(&(symbol as u8));
            let escape = if self.escapes[symbol] == PATCH { 36.0 } else { 4.0 };
            bits += *count as f64 * if is_common { 0.0 } else { escape };
        }
        let fixed = 8.0 * self.kind.fixed_bytes(GROUP) as f64 / GROUP as f64;
        (fixed + bits / total.max(1) as f64) / (8 * self.kind.value_bytes()) as f64
    }

    /// Appends the block of a group of values, at most [`GROUP`]. Returns its entry without its end.
    pub fn encode(&self, values: &[u8], block: &mut Vec<u8>, scratch: &mut Scratch) -> Entry {
        vector::run(Encode { coder: self, values, block, scratch })
    }
}

struct Encode<'a> {
    coder: &'a Coder,
    values: &'a [u8],
    block: &'a mut Vec<u8>,
    scratch: &'a mut Scratch,
}

impl Work for Encode<'_> {
    type Output = Entry;

    #[inline(always)]
    fn run<V: Vectors>(self, vectors: V) -> Entry {
        let Self { coder, values, block, scratch } = self;
        let Coder { kind, tables, escapes } = coder;
        let start = block.len();
        let count = values.len() / kind.value_bytes();
        let padded = padded(count);
        let plane = padded / 8;
        block.resize(start + kind.fixed_bytes(padded), 0);
        let (low, rest) = block[start..].split_at_mut(padded * kind.low_bytes());
        let (raw, codes) = rest.split_at_mut(plane * kind.raw_planes());
        let symbols = &mut scratch.symbols[..padded];
        symbols[count..].fill(tables.common[0]);
        let tops = &mut scratch.raw[..padded];
        tops[count..].fill(0);
        match kind {
            Kind::Bf16 => {
                let values = values.as_chunks::<2>().0;
                for ((value, low), symbol) in values.iter().zip(low).zip(&mut *symbols) {
                    (*low, *symbol) = parts(u16::from_le_bytes(*value));
                }
            }
            Kind::F32 => {
                let (halves, lows) = low.split_at_mut(2 * padded);
                let values = values.as_chunks::<4>().0.iter().zip(halves.as_chunks_mut::<2>().0);
                for (((value, half), low), symbol) in values.zip(lows).zip(&mut *symbols) {
                    let value = u32::from_le_bytes(*value);
                    *half = (value as u16).to_le_bytes();
                    (*low, *symbol) = parts((value >> 16) as u16);
                }
            }
            Kind::F16 => {
                let values = values.as_chunks::<2>().0.iter().zip(low);
                for (((value, low), top), symbol) in values.zip(&mut *tops).zip(&mut *symbols) {
                    *low = value[0];
                    (*top, *symbol) = (value[1] & 3 | value[1] >> 5 & 4, value[1] >> 2 & 31);
                }
            }
            Kind::F8E5M2 => {
                for ((value, top), symbol) in values.iter().zip(&mut *tops).zip(&mut *symbols) {
                    (*top, *symbol) = (value & 3 | value >> 5 & 4, value >> 2 & 31);
                }
            }
            Kind::F8E4M3 => {
                let signs = &mut scratch.more[..padded];
                signs[count..].fill(0);
                for (((value, top), sign), symbol) in
                    values.iter().zip(&mut *tops).zip(&mut *signs).zip(&mut *symbols)
                {
                    (*top, *sign, *symbol) = (value & 7, value >> 7, value >> 3 & 15);
                }
                let (raw, fourth) = raw.split_at_mut(3 * plane);
                // The two other bits of the signs are zeros, and their planes are written before those of the code.
                let (one, two) = codes.split_at_mut(plane);
                vectors.split(signs, [fourth, one, two]);
                vectors.split(tops, thirds(raw));
            }
        }
        if matches!(kind, Kind::F16 | Kind::F8E5M2) {
            vectors.split(tops, thirds(raw));
        }
        // The place of the tops is free.
        for (symbol, code) in symbols.iter().zip(&mut *tops) {
            *code = code_of(&tables.common, *symbol);
        }
        vectors.split(tops, thirds(codes));
        let (mut many, mut patches) = (0_usize, Vec::new());
        let nibbles = &mut scratch.more;
        for (word, codes) in tops.as_chunks::<8>().0.iter().enumerate() {
            // Only a code of 7 carries into the fourth bit.
            let mut left = (u64::from_le_bytes(*codes) + 0x0101_0101_0101_0101) & 0x0808_0808_0808_0808;
            while left != 0 {
                let place = 8 * word + left.trailing_zeros() as usize / 8;
                left &= left - 1;
                let symbol = symbols[place];
                nibbles[many] = escapes[usize::from(symbol)];
                if nibbles[many] == PATCH {
                    patches.extend_from_slice(&(place as u32 | u32::from(symbol) << 16).to_le_bytes());
                }
                many += 1;
            }
        }
        let entry = Entry { end: 0, escapes: many as u16, patches: (patches.len() / 4) as u16, sum: 0 };
        let len_bytes = entry.block_bytes(*kind, count);
        if len_bytes >= values.len().next_multiple_of(UNIT) {
            block.truncate(start);
            block.extend_from_slice(values);
            block.resize(start + values.len().next_multiple_of(UNIT), 0);
            return Entry::stored(sum(&block[start..]));
        }
        nibbles[many..many.next_multiple_of(8)].fill(0);
        let nibbles = nibbles[..many.next_multiple_of(8)].as_chunks::<2>().0;
        block.extend(nibbles.iter().map(|[low, high]| low | high << 4));
        block.extend_from_slice(&patches);
        block.resize(start + len_bytes, 0);
        Entry { sum: sum(&block[start..]), ..entry }
    }
}

#[inline(always)]
fn thirds(planes: &mut [u8]) -> [&mut [u8]; 3] {
    let third = planes.len() / 3;
    let (one, rest) = planes.split_at_mut(third);
    let (two, three) = rest.split_at_mut(third);
    [one, two, three]
}

/// Returns the byte with sign and mantissa, and the exponent.
#[inline(always)]
fn parts(value: u16) -> (u8, u8) {
    ((value >> 8 & 0x80 | value & 0x7f) as u8, (value >> 7) as u8)
}

#[inline(always)]
fn code_of(common: &[u8; 8], symbol: u8) -> u8 {
    let mut code = ESCAPE;
    for of_table in 0..7 {
        code = if symbol == common[of_table as usize] { of_table } else { code };
    }
    code
}
