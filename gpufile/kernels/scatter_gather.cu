// The kernels that move many ranges between a staging buffer and their places in the memory of a GPU.
//
// `cargo xtask regen-kernels` compiles this file to scatter_gather.ptx, and to a cubin for each of the architectures
// that scatter_gather.sm_*.cubin name. Programs load the cubin for their GPU, otherwise the PTX.
//
// Both kernels take a table of entries, in memory that the GPU can read, aligned to 8 bytes. Each warp copies whole entries.
// Grid and blocks must be one-dimensional. A block must have a multiple of 32 threads, at most 512. Any number of blocks works.
//
// No target may overlap a source or the table. Targets of a gather must not overlap each other. Targets of a scatter may
// overlap each other: each byte then comes from one of the entries. Addresses and offsets may have any alignment. An entry
// may be empty. A kernel writes exactly the bytes of the targets. It reads no aligned word of 4 bytes that lies outside
// its source.

// A range: `len` bytes at `address` in memory of the GPU, and at `offset` in the staging buffer. All count bytes.
struct Entry {
    unsigned long long address;
    unsigned offset;
    unsigned len;
};

static_assert(sizeof(Entry) == 16, "the host writes entries of 16 bytes");

enum : unsigned {
    MOST_THREADS = 512,
    LANES = 32,
    ALL_LANES = 0xffffffff,
    // The bytes that one lane moves at a time.
    VECTOR = sizeof(uint4),
    // The vectors that a lane loads before it stores the first. More loads in flight hide the latency of memory.
    IN_FLIGHT = 4,
};

// A vector whose source is aligned like its target.
struct Aligned {
    uint4 vector;

    __device__ void load(const unsigned char *source) { vector = *(const uint4 *)source; }

    __device__ uint4 shifted(unsigned) const { return vector; }
};

// The aligned words that contain a vector at any address.
struct Unaligned {
    unsigned words[5];

    __device__ void load(const unsigned char *source) {
        unsigned beyond = (size_t)source % 4;
        const unsigned *aligned = (const unsigned *)(source - beyond);
        for (unsigned i = 0; i < 4; i++)
            words[i] = aligned[i];
        // Without a shift, the fifth word contains no byte of the source, and may be no memory.
        words[4] = beyond ? aligned[4] : 0;
    }

    // Returns the vector that begins `bits` bits after the first word does.
    __device__ uint4 shifted(unsigned bits) const {
        return make_uint4(__funnelshift_r(words[0], words[1], bits), __funnelshift_r(words[1], words[2], bits),
                          __funnelshift_r(words[2], words[3], bits), __funnelshift_r(words[3], words[4], bits));
    }
};

// Copies `count` vectors with all lanes of a warp.
template <class Held>
__device__ void copy_vectors(uint4 *target, const unsigned char *source, unsigned count, unsigned lane) {
    unsigned bits = (size_t)source % 4 * 8;
    // More code would take longer to compile when a program loads it.
#pragma unroll 1
    for (unsigned first = lane; first < count; first += LANES * IN_FLIGHT) {
        Held held[IN_FLIGHT];
#pragma unroll
        for (unsigned i = 0; i < IN_FLIGHT; i++)
            if (first + i * LANES < count)
                held[i].load(source + (first + i * LANES) * VECTOR);
#pragma unroll
        for (unsigned i = 0; i < IN_FLIGHT; i++)
            if (first + i * LANES < count)
                target[first + i * LANES] = held[i].shifted(bits);
    }
}

// Copies `len` bytes with all lanes of a warp. The vectors begin where the target is aligned. The lower lanes copy the
// single bytes before them, and the upper lanes those after them.
__device__ void copy(unsigned char *target, const unsigned char *source, unsigned len, unsigned lane) {
    unsigned before = min((unsigned)(-(size_t)target % VECTOR), len);
    unsigned vectors = (len - before) / VECTOR;
    unsigned end = before + vectors * VECTOR;

    bool is_lower = lane < VECTOR;
    unsigned single = is_lower ? lane : end + lane - VECTOR;
    bool has_single = single < (is_lower ? before : len);
    // The vectors load while this byte does.
    unsigned char byte = has_single ? source[single] : 0;

    uint4 *aligned_target = (uint4 *)(target + before);
    if ((size_t)(source + before) % VECTOR == 0)
        copy_vectors<Aligned>(aligned_target, source + before, vectors, lane);
    else
        copy_vectors<Unaligned>(aligned_target, source + before, vectors, lane);

    if (has_single)
        target[single] = byte;
}

// Copies the `count` entries of a table, to the staging buffer if `IS_GATHER`, otherwise from it.
template <bool IS_GATHER>
__device__ void copy_entries(const Entry *entries, unsigned count, unsigned char *staging) {
    unsigned lane = threadIdx.x % LANES;
    size_t warp = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    size_t warps = (size_t)gridDim.x * blockDim.x / LANES;
    // A warp reads up to 32 adjacent entries at once, one with each lane. It takes fewer if other warps would have none.
    size_t share = min((count + warps - 1) / warps, (size_t)LANES);
    for (size_t first = warp * share; first < count; first += warps * share) {
        unsigned taken = (unsigned)min(share, count - first);
        Entry mine = {0, 0, 0};
        if (lane < taken)
            mine = entries[first + lane];
#pragma unroll 1
        for (unsigned i = 0; i < taken; i++) {
            unsigned char *place = (unsigned char *)__shfl_sync(ALL_LANES, mine.address, i);
            unsigned char *staged = staging + __shfl_sync(ALL_LANES, mine.offset, i);
            unsigned len = __shfl_sync(ALL_LANES, mine.len, i);
            copy(IS_GATHER ? staged : place, IS_GATHER ? place : staged, len, lane);
        }
    }
}

// Copies each entry from the staging buffer to its address.
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    gpufile_scatter(const Entry *entries, unsigned count, const unsigned char *staging) {
    copy_entries<false>(entries, count, (unsigned char *)staging);
}

// Copies each entry from its address to the staging buffer.
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    gpufile_gather(const Entry *entries, unsigned count, unsigned char *staging) {
    copy_entries<true>(entries, count, staging);
}
