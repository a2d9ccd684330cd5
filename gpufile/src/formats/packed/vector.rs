//! Vector instructions: the two steps of the code that compilers do not find themselves, for AVX2, NEON and neither.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::{
    vandq_u8, vcombine_u8, vdup_n_u8, vdupq_n_u8, vld1q_u8, vorrq_u8, vqtbl1q_u8, vst1q_u8, vtstq_u8,
};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_cmpeq_epi8,
    _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi32,
    _mm256_set1_epi64x, _mm256_setr_epi64x, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_slli_epi16,
    _mm256_storeu_si256,
};

/// The steps of the code between bytes and planes of bits. Bit `i % 8` of byte `i / 8` of a plane belongs to value `i`.
pub trait Vectors: Copy {
    /// Sets each byte of `out` to the entry of `table` whose number is the value's bits in up to four planes, the lowest first.
    ///
    /// # Panics
    /// If `out` is no multiple of 32 bytes, or longer than eight times a plane.
    fn look_up<const N: usize>(self, planes: [&[u8]; N], table: &[u8; 16], out: &mut [u8]);

    /// Writes the three lowest bits of each byte to three planes, the lowest first.
    ///
    /// # Panics
    /// As [`look_up`](Self::look_up), for `codes`.
    fn split(self, codes: &[u8], planes: [&mut [u8]; 3]);
}

/// Work that [`run`] compiles for each kind of vectors. Its function is to be inlined always.
pub trait Work {
    type Output;

    fn run<V: Vectors>(self, vectors: V) -> Self::Output;
}

/// Does work with the widest vectors of this processor.
#[cfg(target_arch = "x86_64")]
pub fn run<W: Work>(work: W) -> W::Output {
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
    {
        // SAFETY: the processor was asked for these features.
        return unsafe { with_avx2(work) };
    }
    work.run(Plain)
}

#[cfg(target_arch = "aarch64")]
pub fn run<W: Work>(work: W) -> W::Output {
    work.run(Neon)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn run<W: Work>(work: W) -> W::Output {
    work.run(Plain)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn with_avx2<W: Work>(work: W) -> W::Output {
    work.run(Avx2(()))
}

/// Vectors of 8 bytes, in registers of any processor.
#[derive(Clone, Copy)]
pub struct Plain;

impl Vectors for Plain {
    #[inline(always)]
    fn look_up<const N: usize>(self, planes: [&[u8]; N], table: &[u8; 16], out: &mut [u8]) {
        assert!(out.len().is_multiple_of(32));
        let planes = planes.map(|plane| &plane[..out.len() / 8]);
        for (at, out) in out.chunks_exact_mut(8).enumerate() {
            let code = (0..N).fold(0, |code, plane| code | spread(planes[plane][at]) << plane);
            for (out, code) in out.iter_mut().zip(code.to_le_bytes()) {
                *out = table[usize::from(code & 15)];
            }
        }
    }

    #[inline(always)]
    fn split(self, codes: &[u8], planes: [&mut [u8]; 3]) {
        assert!(codes.len().is_multiple_of(32));
        let [one, two, three] = planes.map(|plane| &mut plane[..codes.len() / 8]);
        for (at, codes) in codes.as_chunks::<8>().0.iter().enumerate() {
            let codes = u64::from_le_bytes(*codes);
            (one[at], two[at], three[at]) = (gather(codes), gather(codes >> 1), gather(codes >> 2));
        }
    }
}

/// Returns eight bytes, each 1 if its bit is set.
#[inline(always)]
fn spread(bits: u8) -> u64 {
    let alone = (u64::from(bits) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    // A byte with its bit gets its highest bit, and no byte carries into the next.
    ((alone + 0x7f7f_7f7f_7f7f_7f7f) >> 7) & 0x0101_0101_0101_0101
}

/// Returns the lowest bits of eight bytes.
#[inline(always)]
fn gather(bytes: u64) -> u8 {
    // Byte i moves to bit i of the highest byte. No two products meet.
    ((bytes & 0x0101_0101_0101_0101).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// Vectors of 32 bytes. Only [`with_avx2`] makes one.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Vectors for Avx2 {
    #[inline(always)]
    fn look_up<const N: usize>(self, planes: [&[u8]; N], table: &[u8; 16], out: &mut [u8]) {
        // SAFETY: the value shows that the processor has AVX2.
        unsafe { look_up_avx2(planes, table, out) }
    }

    #[inline(always)]
    fn split(self, codes: &[u8], planes: [&mut [u8]; 3]) {
        // SAFETY: the value shows that the processor has AVX2.
        unsafe { split_avx2(codes, planes) }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn look_up_avx2<const N: usize>(planes: [&[u8]; N], table: &[u8; 16], out: &mut [u8]) {
    assert!(out.len().is_multiple_of(32));
    let planes = planes.map(|plane| &plane.as_chunks::<4>().0[..out.len() / 32]);
    // SAFETY: the table has the 16 bytes that are read.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    let table = _mm256_broadcastsi128_si256(table);
    // Byte i of the vector gets byte i / 8 of the plane, and of it bit i % 8.
    let bytes = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    for (at, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let mut code = _mm256_setzero_si256();
        for (number, plane) in planes.iter().enumerate() {
            let plane = _mm256_set1_epi32(i32::from_le_bytes(plane[at]));
            let alone = _mm256_and_si256(_mm256_shuffle_epi8(plane, bytes), bits);
            let bit = _mm256_and_si256(_mm256_cmpeq_epi8(alone, bits), _mm256_set1_epi8(1 << number));
            code = _mm256_or_si256(code, bit);
        }
        let found = _mm256_shuffle_epi8(table, code);
        // SAFETY: the chunk has the 32 bytes that are written.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast::<__m256i>(), found) };
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn split_avx2(codes: &[u8], planes: [&mut [u8]; 3]) {
    assert!(codes.len().is_multiple_of(32));
    let [one, two, three] = planes.map(|plane| &mut plane.as_chunks_mut::<4>().0[..codes.len() / 32]);
    for (at, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
        // SAFETY: the chunk has the 32 bytes that are read.
        let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast::<__m256i>()) };
        // The highest bit of each byte is taken. A shift by up to 7 brings no bit of another byte there.
        one[at] = _mm256_movemask_epi8(_mm256_slli_epi16(codes, 7)).to_le_bytes();
        two[at] = _mm256_movemask_epi8(_mm256_slli_epi16(codes, 6)).to_le_bytes();
        three[at] = _mm256_movemask_epi8(_mm256_slli_epi16(codes, 5)).to_le_bytes();
    }
}

/// Vectors of 16 bytes, which each processor of this architecture has.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy)]
struct Neon;

#[cfg(target_arch = "aarch64")]
impl Vectors for Neon {
    #[inline(always)]
    fn look_up<const N: usize>(self, planes: [&[u8]; N], table: &[u8; 16], out: &mut [u8]) {
        assert!(out.len().is_multiple_of(32));
        let planes = planes.map(|plane| &plane.as_chunks::<2>().0[..out.len() / 16]);
        let bits = [1_u8, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        // SAFETY: NEON is part of the architecture, and each array has the 16 bytes that are read.
        let (table, bits) = unsafe { (vld1q_u8(table.as_ptr()), vld1q_u8(bits.as_ptr())) };
        for (at, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            // SAFETY: NEON is part of the architecture, and the chunk has the 16 bytes that are written.
            unsafe {
                let mut code = vdupq_n_u8(0);
                for (number, plane) in planes.iter().enumerate() {
                    let [low, high] = plane[at];
                    let plane = vcombine_u8(vdup_n_u8(low), vdup_n_u8(high));
                    code = vorrq_u8(code, vandq_u8(vtstq_u8(plane, bits), vdupq_n_u8(1 << number)));
                }
                vst1q_u8(out.as_mut_ptr(), vqtbl1q_u8(table, code));
            }
        }
    }

    #[inline(always)]
    fn split(self, codes: &[u8], planes: [&mut [u8]; 3]) {
        Plain.split(codes, planes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Both<'a> {
        codes: &'a [u8],
        table: &'a [u8; 16],
    }

    impl Work for Both<'_> {
        type Output = ([Vec<u8>; 3], [Vec<u8>; 2]);

        fn run<V: Vectors>(self, vectors: V) -> Self::Output {
            let mut planes = [const { Vec::new() }; 3].map(|mut plane: Vec<u8>| {
                plane.resize(self.codes.len() / 8, 0xaa);
                plane
            });
            let [one, two, three] = &mut planes;
            vectors.split(self.codes, [one, two, three]);
            let mut out = [vec![0; self.codes.len()], vec![0; self.codes.len()]];
            vectors.look_up([&planes[0], &planes[1], &planes[2]], self.table, &mut out[0]);
            // The first plane comes again as the fourth.
            vectors.look_up([&planes[0], &planes[1], &planes[2], &planes[0]], self.table, &mut out[1]);
            (planes, out)
        }
    }

    #[test]
    fn vectors_do_what_plain_code_does() {
        let table = [9, 200, 0, 255, 17, 1, 128, 77, 33, 5, 254, 2, 99, 180, 64, 3];
        let mut state = 1_u32;
        for len in [0, 32, 64, 96, 8192] {
            let codes: Vec<u8> = (0..len)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            let work = || Both { codes: &codes, table: &table };
            let (planes, out) = work().run(Plain);
            assert_eq!((planes.clone(), out.clone()), run(work()));
            for (i, code) in codes.iter().enumerate() {
                let bits: u8 = (0..3).map(|plane| (planes[plane][i / 8] >> (i % 8) & 1) << plane).sum();
                assert_eq!((bits, out[0][i]), (code & 7, table[usize::from(code & 7)]));
                assert_eq!(out[1][i], table[usize::from(code & 7 | (code & 1) << 3)]);
            }
        }
    }
}
