// The kernel that decodes packed tensors, whose format docs/packed.md specifies.
//
// `cargo xtask regen-kernels` compiles this file to unpack.ptx, and to a cubin for each of the architectures that
// unpack.sm_*.cubin name. Programs load the cubin for their GPU, otherwise the PTX.
//
// The kernel takes a table of groups, in memory that the GPU can read, aligned to 8 bytes. Grid and blocks must be one-dimensional, and
// blocks have THREADS threads. Any number of blocks works. The kernel checks each block before it writes, and writes exactly the values
// that the table wants. After a failed check, it writes the number of the group to the word that the table names.

enum : unsigned {
    THREADS = 256,
    LANES = 32,
    WARPS = THREADS / LANES,
    ALL_LANES = 0xffffffff,
    GROUP = 8192,
    WORDS = GROUP / 32,
    KEY = 0x9e3779b1,
    ESCAPE = 7,
    PATCH = 15,
    STORED = 0xffff,
};

enum : unsigned { BF16 = 1, F16, F32, F8_E4M3, F8_E5M2 };

// A group, and the values of it that are wanted.
struct Group {
    // The first wanted value, in memory of the GPU.
    unsigned long long address;
    // A word that gets `number` if a check fails, in memory that the GPU can write.
    unsigned long long status;
    unsigned long long sum;
    // The block, in bytes from the start of the staging buffer, a multiple of 16.
    unsigned offset;
    unsigned len;
    // The wanted values, and all of the group.
    unsigned from;
    unsigned to;
    unsigned values;
    unsigned number;
    unsigned kind;
    unsigned short escapes;
    unsigned short patches;
    unsigned char common[8];
    unsigned char rare[16];
};

static_assert(sizeof(Group) == 80, "the host writes groups of 80 bytes");

__device__ unsigned value_bytes(unsigned kind) { return kind == F32 ? 4 : kind == BF16 || kind == F16 ? 2 : 1; }

// Stores a value of a kind.
__device__ void store(unsigned char *target, unsigned kind, unsigned value) {
    if (kind == F32)
        *(unsigned *)target = value;
    else if (kind == BF16 || kind == F16)
        *(unsigned short *)target = (unsigned short)value;
    else
        *target = (unsigned char)value;
}

// The parts of a block.
struct Parts {
    const unsigned char *low;
    const unsigned *raw;
    const unsigned *codes;
    const unsigned char *nibbles;
    const unsigned *patches;
    unsigned padded;

    // Returns value `i` with this exponent.
    __device__ unsigned value(unsigned kind, unsigned i, unsigned symbol) const {
        unsigned words = padded / 32, word = i / 32, bit = i % 32;
        if (kind == BF16 || kind == F32) {
            unsigned top = low[kind == F32 ? 2 * padded + i : i];
            unsigned high = (top & 0x80) << 8 | symbol << 7 | (top & 0x7f);
            return kind == F32 ? high << 16 | ((const unsigned short *)low)[i] : high;
        }
        unsigned one = raw[word] >> bit & 1, two = raw[words + word] >> bit & 1, three = raw[2 * words + word] >> bit & 1;
        if (kind == F8_E4M3)
            return one | two << 1 | three << 2 | symbol << 3 | (raw[3 * words + word] >> bit & 1) << 7;
        unsigned top = one | two << 1 | symbol << 2 | three << 7;
        return kind == F16 ? top << 8 | low[i] : top;
    }
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

// Decodes a group with all threads of a block. Returns whether the checks succeed, the same in each thread.
__device__ bool unpack(const Group &group, const unsigned char *block, unsigned long long *of_warps, unsigned short *before) {
    unsigned thread = threadIdx.x, lane = thread % LANES, warp = thread / LANES, kind = group.kind;
    const uint2 *pairs = (const uint2 *)block;
    unsigned long long sum = 0;
    for (unsigned i = thread; i < group.len / 8; i += THREADS) {
        uint2 pair = pairs[i];
        unsigned long long a = pair.x + (2 * i + 1) * KEY, b = pair.y + (2 * i + 2) * KEY;
        sum += a * b + pair.x + ((unsigned long long)pair.y << 32);
    }
    if (total(sum, of_warps) + group.len != group.sum)
        return false;

    unsigned bytes = value_bytes(kind);
    unsigned char *target = (unsigned char *)group.address;
    if (group.escapes == STORED) {
        for (unsigned i = group.from + thread; i < group.to; i += THREADS) {
            const unsigned char *source = block + i * bytes;
            unsigned value = kind == F32 ? *(const unsigned *)source : bytes == 2 ? *(const unsigned short *)source : *source;
            store(target + (size_t)(i - group.from) * bytes, kind, value);
        }
        return true;
    }
    unsigned padded = (group.values + 127) / 128 * 128, words = padded / 32;
    unsigned low = kind == F32 ? 3 : kind == BF16 || kind == F16 ? 1 : 0;
    unsigned raw = kind == F8_E4M3 ? 4 : kind == F16 || kind == F8_E5M2 ? 3 : 0;
    Parts parts;
    parts.padded = padded;
    parts.low = block;
    parts.raw = (const unsigned *)(block + padded * low);
    parts.codes = parts.raw + raw * words;
    parts.nibbles = (const unsigned char *)(parts.codes + 3 * words);
    parts.patches = (const unsigned *)(parts.nibbles + ((group.escapes + 1u) / 2 + 3) / 4 * 4);

    // Thread i counts the escapes of word i, and those before it.
    unsigned mine = 0;
    if (thread < words)
        mine = __popc(parts.codes[thread] & parts.codes[words + thread] & parts.codes[2 * words + thread]);
    unsigned through = mine;
    for (unsigned distance = 1; distance < LANES; distance *= 2) {
        unsigned lower = __shfl_up_sync(ALL_LANES, through, distance);
        if (lane >= distance)
            through += lower;
    }
    __syncthreads();
    if (lane == LANES - 1)
        of_warps[warp] = through;
    __syncthreads();
    unsigned earlier = 0, all = 0;
    for (unsigned other = 0; other < WARPS; other++) {
        unsigned count = (unsigned)of_warps[other];
        earlier += other < warp ? count : 0;
        all += count;
    }
    before[thread] = (unsigned short)(earlier + through - mine);
    __syncthreads();
    if (all != group.escapes)
        return false;

    unsigned long long common = *(const unsigned long long *)group.common;
    unsigned patched = 0;
    // All lanes of a warp have values of one word, whose planes they load together.
#pragma unroll 4
    for (unsigned word = warp; word < words; word += WARPS) {
        unsigned one = parts.codes[word], two = parts.codes[words + word], three = parts.codes[2 * words + word];
        unsigned code = (one >> lane & 1) | (two >> lane & 1) << 1 | (three >> lane & 1) << 2;
        unsigned i = 32 * word + lane, symbol = (unsigned)(common >> 8 * code) & 0xff;
        if (code == ESCAPE) {
            unsigned escape = before[word] + __popc(one & two & three & ((1u << lane) - 1));
            unsigned nibble = parts.nibbles[escape / 2] >> escape % 2 * 4 & 15;
            patched += nibble == PATCH;
            symbol = group.rare[nibble];
        }
        if (i >= group.from && i < group.to)
            store(target + (size_t)(i - group.from) * bytes, kind, parts.value(kind, i, symbol));
    }
    // The patches come after all values.
    if (total(patched, of_warps) != group.patches)
        return false;
    bool is_right = true;
    unsigned most = kind == F8_E4M3 ? 15 : kind == F16 || kind == F8_E5M2 ? 31 : 255;
    for (unsigned patch = thread; patch < group.patches; patch += THREADS) {
        unsigned i = parts.patches[patch] & 0xffff, symbol = parts.patches[patch] >> 16;
        if (i >= padded || symbol > most)
            is_right = false;
        else if (i >= group.from && i < group.to)
            store(target + (size_t)(i - group.from) * bytes, kind, parts.value(kind, i, symbol));
    }
    return __syncthreads_and(is_right);
}

// Decodes each group from the staging buffer to its address.
extern "C" __global__ void __launch_bounds__(THREADS)
    gpufile_unpack(const Group *groups, unsigned count, const unsigned char *staging) {
    __shared__ unsigned long long of_warps[WARPS];
    __shared__ unsigned short before[THREADS];
    for (unsigned number = blockIdx.x; number < count; number += gridDim.x) {
        const Group group = groups[number];
        if (!unpack(group, staging + group.offset, of_warps, before) && threadIdx.x == 0)
            *(volatile unsigned *)group.status = group.number;
        // The next group takes the same shared memory.
        __syncthreads();
    }
}
