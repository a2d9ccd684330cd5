// The kernel that sums bytes of blocks in the memory of a GPU. gpufile/src/kv_blocks/sum.rs defines the sum.
//
// `cargo xtask regen-kernels` compiles this file to sum.ptx, and to a cubin for each of the architectures that sum.sm_*.cubin
// name. Programs load the cubin for their GPU, otherwise the PTX.
//
// The kernel takes a table of parts, in memory that the GPU can read, aligned to 8 bytes, and writes the sum of each part to its
// place in `sums`. Grid and blocks must be one-dimensional, and blocks have THREADS threads. Any number of blocks works. Addresses
// and places may have any alignment. The kernel reads no byte outside the parts.

enum : unsigned {
    THREADS = 256,
    LANES = 32,
    WARPS = THREADS / LANES,
    ALL_LANES = 0xffffffff,
    // The words of a row.
    ROW = 1024,
    // The words of a row that belong to one thread.
    OF_THREAD = ROW / THREADS,
};

// Adjacent bytes of a block: `len` of them at `address`. All count bytes.
struct Part {
    unsigned long long address;
    // The place of the first byte in the block.
    unsigned long long start;
    unsigned long long len;
};

static_assert(sizeof(Part) == 24, "the host writes parts of 24 bytes");

// Returns an odd number.
__device__ unsigned long long mixed(unsigned long long number) {
    number = (number + 1) * 0x9e3779b97f4a7c15;
    number = (number ^ number >> 32) * 0xd6e8feb86659fd93;
    return (number ^ number >> 32) | 1;
}

// Returns the factor of a word's row.
__device__ unsigned long long row_factor(unsigned long long word) { return mixed(ROW + word / ROW); }

// Returns the factor of a word's place in its row.
__device__ unsigned place_factor(unsigned long long word) { return (unsigned)mixed(word % ROW); }

// Returns what a thread's words of a part add to its sum. The part begins with word `first` of the block.
__device__ unsigned long long of_words(const unsigned *words, size_t count, size_t first) {
    unsigned of_places[OF_THREAD];
    unsigned long long sum = 0;
#pragma unroll
    for (unsigned i = 0; i < OF_THREAD; i++)
        of_places[i] = place_factor(first + i * THREADS + threadIdx.x);
    for (size_t start = threadIdx.x; start < count; start += ROW) {
#pragma unroll
        for (unsigned i = 0; i < OF_THREAD; i++) {
            size_t word = start + i * THREADS;
            if (word < count)
                sum += (unsigned long long)words[word] * of_places[i] * row_factor(first + word);
        }
    }
    return sum;
}

// Sums each part.
extern "C" __global__ void __launch_bounds__(THREADS)
    gpufile_sum(const Part *parts, unsigned count, unsigned long long *sums) {
    __shared__ unsigned long long of_warps[WARPS];
    for (unsigned number = blockIdx.x; number < count; number += gridDim.x) {
        const Part part = parts[number];
        const unsigned char *bytes = (const unsigned char *)part.address;
        unsigned long long sum = 0;
        size_t done = 0;
        if ((part.address | part.start) % 4 == 0) {
            sum = of_words((const unsigned *)bytes, part.len / 4, part.start / 4);
            done = part.len / 4 * 4;
        }
        // A byte adds what it has in the word.
        for (size_t i = done + threadIdx.x; i < part.len; i += THREADS) {
            size_t place = part.start + i;
            sum += ((unsigned long long)bytes[i] << place % 4 * 8) * place_factor(place / 4) * row_factor(place / 4);
        }
        for (unsigned distance = LANES / 2; distance > 0; distance /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, distance);
        if (threadIdx.x % LANES == 0)
            of_warps[threadIdx.x / LANES] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned long long total = 0;
            for (unsigned warp = 0; warp < WARPS; warp++)
                total += of_warps[warp];
            sums[number] = total;
        }
        // The next part takes the same shared memory.
        __syncthreads();
    }
}
