// The kernels that pack tensors, in the format that docs/packed.md specifies.
//
// `cargo xtask regen-kernels` compiles this file to pack.ptx, and to a cubin for each of the architectures that pack.sm_*.cubin
// name. Programs load the cubin for their GPU, otherwise the PTX.
//
// Both kernels take a job, in memory that the GPU can read and write, aligned to 8 bytes, with an entry for each of its groups
// behind it. `gpufile_pack_count` writes the numbers of escapes and patches of each entry. The host then writes the ends of the
// blocks. `gpufile_pack` writes the blocks into `out`, and their checksums into the entries. Grid and blocks must be
// one-dimensional, and blocks have THREADS threads. Any number of blocks works. The values are aligned to their type, and `out`
// to 16 bytes.

enum : unsigned {
    THREADS = 256,
    LANES = 32,
    WARPS = THREADS / LANES,
    ALL_LANES = 0xffffffff,
    GROUP = 8192,
    WORDS = GROUP / LANES,
    COMMON = 7,
    RARE = 15,
    UNIT = 16,
    KEY = 0x9e3779b1,
    ESCAPE = 7,
    PATCH = 15,
    STORED = 0xffff,
};

enum : unsigned { BF16 = 1, F16, F32, F8_E4M3, F8_E5M2 };

// An entry of the index.
struct Entry {
    // The end of the block, in units from the start of the first.
    unsigned end;
    unsigned short escapes;
    unsigned short patches;
    unsigned long long sum;
};

struct Job {
    // The values, in memory of the GPU, and their number.
    unsigned long long values;
    unsigned long long count;
    unsigned kind;
    unsigned reserved;
    unsigned char common[8];
    unsigned char rare[16];
};

static_assert(sizeof(Entry) == 16 && sizeof(Job) == 48, "the host writes entries of 16 bytes, and a job of 48");

__device__ unsigned value_bytes(unsigned kind) { return kind == F32 ? 4 : kind == BF16 || kind == F16 ? 2 : 1; }
__device__ unsigned low_bytes(unsigned kind) { return kind == F32 ? 3 : kind == BF16 || kind == F16 ? 1 : 0; }
__device__ unsigned raw_planes(unsigned kind) { return kind == F8_E4M3 ? 4 : kind == F16 || kind == F8_E5M2 ? 3 : 0; }

// A group of a job.
struct Group {
    const unsigned char *start;
    unsigned kind;
    unsigned values;
    // With the values that fill the group up.
    unsigned padded;
    unsigned long long common;
    unsigned long long rare[2];

    __device__ Group(const Job *job, unsigned number) {
        kind = job->kind;
        start = (const unsigned char *)job->values + (size_t)number * GROUP * value_bytes(kind);
        values = (unsigned)min((unsigned long long)GROUP, job->count - (unsigned long long)number * GROUP);
        padded = (values + 127) / 128 * 128;
        common = *(const unsigned long long *)job->common;
        rare[0] = ((const unsigned long long *)job->rare)[0];
        rare[1] = ((const unsigned long long *)job->rare)[1];
    }

    __device__ unsigned value(unsigned i) const {
        return kind == F32 ? ((const unsigned *)start)[i]
               : kind == BF16 || kind == F16 ? ((const unsigned short *)start)[i]
                                             : start[i];
    }

    // Returns the exponent of a value.
    __device__ unsigned symbol(unsigned value) const {
        return kind == F32       ? value >> 23 & 0xff
               : kind == BF16    ? value >> 7 & 0xff
               : kind == F16     ? value >> 10 & 31
               : kind == F8_E5M2 ? value >> 2 & 31
                                 : value >> 3 & 15;
    }

    // Returns the bits of a value that the raw planes have, the first plane's lowest.
    __device__ unsigned raw(unsigned value) const {
        unsigned top = kind == F16 ? value >> 8 : value;
        return kind == F8_E4M3 ? (top & 7) | (top >> 7 & 1) << 3 : (top & 3) | (top >> 7 & 1) << 2;
    }

    __device__ unsigned code(unsigned symbol) const {
        unsigned code = ESCAPE;
#pragma unroll
        for (unsigned i = 0; i < COMMON; i++)
            code = symbol == (unsigned)(common >> 8 * i & 0xff) ? i : code;
        return code;
    }

    __device__ unsigned nibble(unsigned symbol) const {
        unsigned nibble = PATCH;
        for (unsigned i = RARE; i-- > 0;)
            nibble = symbol == (unsigned)(rare[i / 8] >> i % 8 * 8 & 0xff) ? i : nibble;
        return nibble;
    }

    // Returns the exponent of value `i`, or the one that fills the group up.
    __device__ unsigned symbol_at(unsigned i) const { return i < values ? symbol(value(i)) : (unsigned)(common & 0xff); }
};

// Returns the sum of all threads of the block, in each of them.
__device__ unsigned long long total(unsigned long long mine, unsigned long long *of_warps) {
    for (unsigned distance = LANES / 2; distance > 0; distance /= 2)
        mine += __shfl_xor_sync(ALL_LANES, mine, distance);
    __syncthreads();
    if (threadIdx.x % LANES == 0)
        of_warps[threadIdx.x / LANES] = mine;
    __syncthreads();
    unsigned long long sum = 0;
    for (unsigned warp = 0; warp < WARPS; warp++)
        sum += of_warps[warp];
    return sum;
}

// Counts the escapes and the patches of each group.
extern "C" __global__ void __launch_bounds__(THREADS) gpufile_pack_count(Job *job, unsigned count, unsigned char *) {
    __shared__ unsigned long long of_warps[WARPS];
    Entry *entries = (Entry *)(job + 1);
    for (unsigned number = blockIdx.x; number < count; number += gridDim.x) {
        Group group(job, number);
        unsigned escapes = 0, patches = 0;
        for (unsigned i = threadIdx.x; i < group.values; i += THREADS) {
            unsigned symbol = group.symbol(group.value(i));
            if (group.code(symbol) == ESCAPE) {
                escapes++;
                patches += group.nibble(symbol) == PATCH;
            }
        }
        unsigned long long both = total((unsigned long long)patches << 32 | escapes, of_warps);
        if (threadIdx.x == 0) {
            escapes = (unsigned)both;
            patches = (unsigned)(both >> 32);
            unsigned kind = group.kind, fixed = group.padded * low_bytes(kind) + (raw_planes(kind) + 3) * (group.padded / 8);
            unsigned len = (fixed + ((escapes + 1) / 2 + 3) / 4 * 4 + 4 * patches + UNIT - 1) / UNIT * UNIT;
            bool is_shorter = len < (group.values * value_bytes(kind) + UNIT - 1) / UNIT * UNIT;
            entries[number].escapes = (unsigned short)(is_shorter ? escapes : STORED);
            entries[number].patches = (unsigned short)(is_shorter ? patches : 0);
        }
    }
}

// Writes the block of a group that is not stored as it is, except its padding.
__device__ void encode(const Group &group, const Entry &entry, unsigned char *block, unsigned *before, unsigned char *nibbles) {
    unsigned thread = threadIdx.x, lane = thread % LANES, warp = thread / LANES, kind = group.kind, padded = group.padded;
    unsigned words = padded / LANES;
    unsigned *raw = (unsigned *)(block + padded * low_bytes(kind));
    unsigned *codes = raw + raw_planes(kind) * words;
    unsigned char *escapes = (unsigned char *)(codes + 3 * words);
    unsigned nibble_bytes = ((entry.escapes + 1u) / 2 + 3) / 4 * 4;
    unsigned *patches = (unsigned *)(escapes + nibble_bytes);
    // All lanes of a warp have values of one word, whose planes they vote on.
    for (unsigned word = warp; word < WORDS; word += WARPS) {
        unsigned escaped = 0, patched = 0;
        if (word < words) {
            unsigned i = word * LANES + lane;
            unsigned value = i < group.values ? group.value(i) : 0, symbol = group.symbol_at(i), code = group.code(symbol);
            if (kind == BF16 || kind == F32) {
                unsigned top = kind == F32 ? value >> 16 : value;
                block[(kind == F32 ? 2 * padded : 0) + i] = (unsigned char)((top >> 8 & 0x80) | (top & 0x7f));
                if (kind == F32)
                    ((unsigned short *)block)[i] = (unsigned short)value;
            } else if (kind == F16) {
                block[i] = (unsigned char)value;
            }
            unsigned bits = group.raw(value);
            for (unsigned plane = 0; plane < raw_planes(kind); plane++) {
                unsigned vote = __ballot_sync(ALL_LANES, bits >> plane & 1);
                if (lane == 0)
                    raw[plane * words + word] = vote;
            }
            for (unsigned plane = 0; plane < 3; plane++) {
                unsigned vote = __ballot_sync(ALL_LANES, code >> plane & 1);
                if (lane == 0)
                    codes[plane * words + word] = vote;
            }
            escaped = __popc(__ballot_sync(ALL_LANES, code == ESCAPE));
            patched = __popc(__ballot_sync(ALL_LANES, code == ESCAPE && group.nibble(symbol) == PATCH));
        }
        if (lane == 0)
            before[word] = escaped | patched << 16;
    }
    __syncthreads();
    // The escapes and the patches before each word. Neither count reaches 2^16 before the last word.
    unsigned mine = before[thread], through = mine;
    for (unsigned distance = 1; distance < LANES; distance *= 2) {
        unsigned lower = __shfl_up_sync(ALL_LANES, through, distance);
        if (lane >= distance)
            through += lower;
    }
    __shared__ unsigned of_warps[WARPS];
    if (lane == LANES - 1)
        of_warps[warp] = through;
    __syncthreads();
    for (unsigned other = 0; other < warp; other++)
        through += of_warps[other];
    before[thread] = through - mine;
    for (unsigned i = thread; i < 2 * nibble_bytes; i += THREADS)
        nibbles[i] = 0;
    __syncthreads();
    for (unsigned word = warp; word < words; word += WARPS) {
        unsigned i = word * LANES + lane, symbol = group.symbol_at(i);
        bool is_escape = group.code(symbol) == ESCAPE;
        unsigned escape_votes = __ballot_sync(ALL_LANES, is_escape);
        if (escape_votes == 0)
            continue;
        unsigned nibble = is_escape ? group.nibble(symbol) : 0, lower = (1u << lane) - 1;
        unsigned patch_votes = __ballot_sync(ALL_LANES, nibble == PATCH);
        if (is_escape)
            nibbles[(before[word] & 0xffff) + __popc(escape_votes & lower)] = (unsigned char)nibble;
        if (nibble == PATCH)
            patches[(before[word] >> 16) + __popc(patch_votes & lower)] = i | symbol << 16;
    }
    __syncthreads();
    for (unsigned i = thread; i < nibble_bytes; i += THREADS)
        escapes[i] = (unsigned char)(nibbles[2 * i] | nibbles[2 * i + 1] << 4);
}

// Writes the block of each group.
extern "C" __global__ void __launch_bounds__(THREADS) gpufile_pack(Job *job, unsigned count, unsigned char *out) {
    __shared__ unsigned long long of_warps[WARPS];
    __shared__ unsigned before[WORDS];
    __shared__ unsigned char nibbles[GROUP + 2 * UNIT];
    Entry *entries = (Entry *)(job + 1);
    for (unsigned number = blockIdx.x; number < count; number += gridDim.x) {
        Group group(job, number);
        const Entry entry = entries[number];
        unsigned start = number == 0 ? 0 : entries[number - 1].end;
        unsigned char *block = out + (size_t)start * UNIT;
        unsigned len = (entry.end - start) * UNIT, thread = threadIdx.x;
        // The last part may end before the block does.
        for (unsigned i = len - UNIT + thread; i < len; i += THREADS)
            block[i] = 0;
        __syncthreads();
        if (entry.escapes == STORED) {
            unsigned bytes = group.values * value_bytes(group.kind);
            for (unsigned i = thread; i < bytes; i += THREADS)
                block[i] = group.start[i];
        } else {
            encode(group, entry, block, before, nibbles);
        }
        __syncthreads();
        const uint2 *pairs = (const uint2 *)block;
        unsigned long long sum = 0;
        for (unsigned i = thread; i < len / 8; i += THREADS) {
            uint2 pair = pairs[i];
            unsigned long long a = pair.x + (2 * i + 1) * KEY, b = pair.y + (2 * i + 2) * KEY;
            sum += a * b + pair.x + ((unsigned long long)pair.y << 32);
        }
        sum = total(sum, of_warps) + len;
        if (thread == 0)
            entries[number].sum = sum;
        // The next group takes the same shared memory.
        __syncthreads();
    }
}
