// The parts that all contenders share: the rows of cases that differ only in numbers, the places of their small
// reads, and the line of a result. Each peer has the table of its cases, CASES.
//
//     peer=NAME case=CASE size=BYTES ops=N threads=T seconds=S best=S gbps=G us_per_op=U cpu=S
//     peer=NAME case=CASE threads=T error=TEXT TO THE END OF THE LINE
//
// `seconds` is the median of the repetitions. `gbps` and `us_per_op` follow from it. `best` is the fastest
// repetition. `cpu` is the CPU seconds, user and system, that the process spent during the fastest one.
// `threads=0` leaves the number of threads to the library.
#pragma once

#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

// A row of CASES. The numbers are those of `run`.
struct bench_case {
  const char *name, *unit; // The unit is GB/s, ms, or us for each operation.
  void (*run)(const struct bench_case *);
  bool flag;
  size_t size, ops, other;
};
extern const struct bench_case CASES[];
extern const int CASE_COUNT;

#define PLAIN false, 0, 0, 0
#define FLAGGED true, 0, 0, 0
#define GBPS "GB/s"
#define MS "ms"
#define US "us"

// Many reads at pseudo-random places. Read i goes to slot (i * stride) % ops of the device buffer. The numbers are
// size, ops and stride.
#define SCATTER_CASES(run) \
  {"scatter-4k", GBPS, run, false, 4 * KIB, 65536, 1}, \
  {"scatter-64k", GBPS, run, false, 64 * KIB, 16384, 1}, \
  {"scatter-1m", GBPS, run, false, MIB, 2048, 1}, \
  {"scatter-4k-scattered", GBPS, run, false, 4 * KIB, 65536, 7919}, \
  {"scatter-64k-scattered", GBPS, run, false, 64 * KIB, 16384, 7919}

// Blocks of a KV cache: half of those in 2 GiB of the device buffer, and their slots in files beside FILE. A
// block has a piece in each of KV_PIECES tensors, which follow each other in the buffer. A slot has all pieces
// of a block. The flag is true for stores. The numbers are the size of a piece, and the blocks of a file as `other`.
#define BLOCK_CASES(run) \
  {"kv-fetch-16k", GBPS, run, false, 16 * KIB, 0, SIZE_MAX}, \
  {"kv-fetch-64k", GBPS, run, false, 64 * KIB, 0, SIZE_MAX}, \
  {"kv-fetch-256k", GBPS, run, false, 256 * KIB, 0, SIZE_MAX}, \
  {"kv-files-fetch-64k", GBPS, run, false, 64 * KIB, 0, 16}, \
  {"kv-store-16k", GBPS, run, true, 16 * KIB, 0, SIZE_MAX}, \
  {"kv-store-64k", GBPS, run, true, 64 * KIB, 0, SIZE_MAX}, \
  {"kv-store-256k", GBPS, run, true, 256 * KIB, 0, SIZE_MAX}, \
  {"kv-files-store-64k", GBPS, run, true, 64 * KIB, 0, 16}
enum { KV_PIECES = 32, KV_MOST_FILES = 64 };
static const size_t KV_MEMORY = 2 * GIB;

static const size_t MANY_SIZE = 16 * MIB; // The length of each of the reads in flight together.
static const size_t STREAM_SIZE = GIB;
static const size_t LATENCY_SIZE = 4 * KIB;
static const size_t DIRECT_MOST = 2 * GIB; // The part of FILE, from its beginning.
enum { MANY_OPS = 64, LATENCY_OPS = 20000, LATENCY_PLACES = 1024 };

static inline size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t larger(size_t a, size_t b) { return a > b ? a : b; }

// Returns the file offsets of a scatter case. The caller frees them.
static inline size_t *scatter_offsets(size_t file_bytes, const struct bench_case *scatter) {
  size_t *offsets = (size_t *)malloc(scatter->ops * sizeof *offsets);
  uint64_t x = 42;
  for (size_t i = 0; i < scatter->ops; i++) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    offsets[i] = (x >> 20) % (file_bytes / scatter->size) * scatter->size;
  }
  return offsets;
}

__attribute__((format(printf, 1, 2), noreturn)) static inline void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  exit(1);
}

// Ends the program if a call of CUDA fails without which nothing can be measured.
static inline void need(cudaError_t status, const char *what) {
  if (status != cudaSuccess) fail("%s: %s", what, cudaGetErrorString(status));
}

// The command line: FILE [--repeats N] [CASE...], or --list [--json]

enum { MOST_REPEATS = 100 };
struct options {
  const char *file;
  size_t file_bytes; // A multiple of 16 MiB. The rest stays untouched.
  int repeats;
  char **wanted;
  int wanted_count;
};
static struct options OPTIONS;

// Returns true if `wanted` names the case, or a group with the case: `scatter` for `scatter-4k`.
static inline bool names(const char *wanted, const char *name) {
  if (!strcmp(wanted, name)) return true;
  for (int i = 0; i < CASE_COUNT; i++)
    if (!strcmp(wanted, CASES[i].name)) return false;
  size_t length = strlen(wanted);
  return !strncmp(wanted, name, length) && name[length] == '-';
}

static inline bool selected(const char *name) {
  for (int i = 0; i < OPTIONS.wanted_count; i++)
    if (names(OPTIONS.wanted[i], name)) return true;
  return OPTIONS.wanted_count == 0;
}

__attribute__((noreturn)) static inline void usage(const char *program) {
  fprintf(stderr,
          "usage: %s FILE [--repeats N] [CASE...], or --list [--json]\n\n"
          "FILE has at least 1 GiB and is overwritten. Files whose names begin with FILE.fresh come and go "
          "beside it.\n"
          "A CASE is one of these, or the beginning that several have in common, such as `scatter`:\n",
          program);
  for (int i = 0; i < CASE_COUNT; i++) fprintf(stderr, "  %s\n", CASES[i].name);
  exit(2);
}

// Prints the cases with their units, as JSON. `gpufile bench --list` describes them.
__attribute__((noreturn)) static inline void list(void) {
  for (int i = 0; i < CASE_COUNT; i++)
    printf("%s{\"case\": \"%s\", \"unit\": \"%s\"}", i ? ",\n " : "[", CASES[i].name, CASES[i].unit);
  puts("]");
  exit(0);
}

static inline void parse_options(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "--list")) list();
  OPTIONS.repeats = 3;
  OPTIONS.wanted = argv; // Case names move to the front, over arguments already seen.
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--repeats") && i + 1 < argc)
      OPTIONS.repeats = atoi(argv[++i]);
    else if (argv[i][0] == '-')
      usage(argv[0]);
    else if (!OPTIONS.file)
      OPTIONS.file = argv[i];
    else
      OPTIONS.wanted[OPTIONS.wanted_count++] = argv[i];
  }
  if (!OPTIONS.file) usage(argv[0]);
  if (OPTIONS.repeats < 1 || OPTIONS.repeats > MOST_REPEATS)
    fail("--repeats takes a number from 1 to %d", MOST_REPEATS);
  for (int i = 0; i < OPTIONS.wanted_count; i++) {
    bool known = false;
    for (int j = 0; j < CASE_COUNT; j++) known = known || names(OPTIONS.wanted[i], CASES[j].name);
    if (!known)
      fail("there is no case or group of cases `%s`; run without arguments for a list", OPTIONS.wanted[i]);
  }
  struct stat status;
  if (stat(OPTIONS.file, &status)) fail("%s: %m", OPTIONS.file);
  OPTIONS.file_bytes = (size_t)status.st_size / (16 * MIB) * (16 * MIB);
  if (OPTIONS.file_bytes < GIB)
    fail("%s has %zu bytes; name a file of 1 GiB or more", OPTIONS.file, OPTIONS.file_bytes);
}

// Time, and the report of it.

struct stamp {
  double seconds, cpu;
};
struct samples {
  double seconds[MOST_REPEATS], cpu[MOST_REPEATS];
  int count;
};

static inline struct stamp stamp_now(void) {
  struct timespec clock;
  struct rusage usage;
  clock_gettime(CLOCK_MONOTONIC, &clock);
  getrusage(RUSAGE_SELF, &usage);
  struct stamp now;
  now.seconds = (double)clock.tv_sec + (double)clock.tv_nsec * 1e-9;
  now.cpu = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
            (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  return now;
}

static inline void add_sample(struct samples *samples, struct stamp start) {
  struct stamp end = stamp_now();
  samples->seconds[samples->count] = end.seconds - start.seconds;
  samples->cpu[samples->count] = end.cpu - start.cpu;
  samples->count++;
}

static inline int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static inline void report(const char *peer, const char *name, size_t size, size_t ops, int threads,
                          const struct samples *samples) {
  int best = 0, n = samples->count;
  double sorted[MOST_REPEATS];
  for (int i = 0; i < n; i++) {
    sorted[i] = samples->seconds[i];
    if (samples->seconds[i] < samples->seconds[best]) best = i;
  }
  qsort(sorted, (size_t)n, sizeof *sorted, ascending);
  double median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
  printf(
      "peer=%s case=%s size=%zu ops=%zu threads=%d seconds=%.9f best=%.9f gbps=%.3f us_per_op=%.3f cpu=%.3f\n",
      peer, name, size, ops, threads, median, sorted[0], (double)size * (double)ops / median / 1e9,
      median / (double)ops * 1e6, samples->cpu[best]);
  fflush(stdout);
}

static inline void report_error(const char *peer, const char *name, int threads, const char *error) {
  printf("peer=%s case=%s threads=%d error=%s\n", peer, name, threads, error);
  fflush(stdout);
}

// The file and the device buffer.

// Writes dirty pages to the disk, then drops every page. Later transfers reach the disk.
static inline bool drop_cache(const char *path) {
  int fd = open(path, O_RDONLY);
  bool done = fd >= 0 && !fsync(fd) && !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  if (fd >= 0) close(fd);
  return done;
}

static inline bool on_tmpfs(const char *path) {
  const long tmpfs_magic = 0x01021994;
  struct statfs status;
  return !statfs(path, &status) && status.f_type == tmpfs_magic;
}

static inline char *device_buffer(size_t bytes) {
  char *device;
  need(cudaMalloc((void **)&device, bytes), "cudaMalloc");
  return device;
}

static inline uint64_t splitmix64(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Fills the buffer with the mebibyte that compare.py repeats in FILE. Overwriting FILE with it changes no byte.
static inline void fill_device_buffer(char *device, size_t bytes) {
  uint64_t *block = (uint64_t *)malloc(MIB), state = 0;
  for (size_t i = 0; i < MIB / sizeof *block; i++) block[i] = splitmix64(&state);
  need(cudaMemcpy(device, block, MIB, cudaMemcpyHostToDevice), "cudaMemcpy");
  for (size_t done = MIB; done < bytes; done *= 2)
    need(cudaMemcpy(device + done, device, smaller(done, bytes - done), cudaMemcpyDeviceToDevice),
         "cudaMemcpy");
  need(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  free(block);
}

// The pieces of a KV cache.

struct piece {
  size_t file, file_offset, buffer_offset;
};
struct pieces {
  size_t count, files, file_bytes;
  struct piece *list[2]; // The same places of the files, and different memory.
  char paths[KV_MOST_FILES][4096];
};

// Makes the files, with random bytes, and the list of pieces. The caller calls remove_pieces.
static inline struct pieces *make_pieces(const struct bench_case *blocks) {
  struct pieces *all = (struct pieces *)calloc(1, sizeof *all);
  size_t block_bytes = KV_PIECES * blocks->size, memory_blocks = KV_MEMORY / block_bytes;
  size_t moved = memory_blocks / 2, per_file = smaller(moved, blocks->other);
  all->count = moved * KV_PIECES;
  all->files = moved / per_file;
  all->file_bytes = per_file * block_bytes;
  for (size_t version = 0; version < 2; version++) {
    struct piece *next = all->list[version] = (struct piece *)malloc(all->count * sizeof *next);
    for (size_t i = 0; i < moved; i++) {
      size_t block = (i + version * moved) * 7919 % memory_blocks, slot = i % per_file * 6101 % per_file;
      for (size_t k = 0; k < KV_PIECES; k++, next++) {
        next->file = i / per_file;
        next->file_offset = (slot * KV_PIECES + k) * blocks->size;
        next->buffer_offset = (k * memory_blocks + block) * blocks->size;
      }
    }
  }
  uint64_t *words = (uint64_t *)malloc(MIB), state = 2;
  for (size_t i = 0; i < all->files; i++) {
    snprintf(all->paths[i], sizeof *all->paths, "%s.fresh-kv-%zu", OPTIONS.file, i);
    int fd = open(all->paths[i], O_WRONLY | O_CREAT | O_TRUNC, 0644);
    for (size_t at = 0; at < all->file_bytes; at += MIB) {
      for (size_t j = 0; j < MIB / sizeof *words; j++) words[j] = splitmix64(&state);
      if (pwrite(fd, words, MIB, (off_t)at) != (ssize_t)MIB) fail("cannot write %s: %m", all->paths[i]);
    }
    fsync(fd);
    close(fd);
  }
  free(words);
  return all;
}

static inline void remove_pieces(struct pieces *all) {
  for (size_t i = 0; i < all->files; i++) unlink(all->paths[i]);
  free(all->list[0]);
  free(all->list[1]);
  free(all);
}

// Poisons the memory before reads. Fills it with random bytes before writes, which do not change them.
static inline void prepare_memory(char *device, const struct bench_case *blocks) {
  static bool is_random;
  if (blocks->flag && is_random) return;
  is_random = blocks->flag;
  need(cudaMemset(device, 0x5a, KV_MEMORY), "cudaMemset");
  uint64_t *words = (uint64_t *)malloc(16 * MIB), state = 1;
  for (size_t at = 0; blocks->flag && at < KV_MEMORY; at += 16 * MIB) {
    for (size_t j = 0; j < 16 * MIB / sizeof *words; j++) words[j] = splitmix64(&state);
    need(cudaMemcpy(device + at, words, 16 * MIB, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  need(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  free(words);
}

// Returns true if every piece has the same bytes in its file and in the memory.
static inline bool pieces_match(const struct pieces *all, size_t version, size_t size, const char *device) {
  static char *memory;
  if (!memory) memory = (char *)malloc(KV_MEMORY);
  char *found = (char *)malloc(size);
  bool match = true;
  int fds[KV_MOST_FILES];
  need(cudaMemcpy(memory, device, KV_MEMORY, cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (size_t i = 0; i < all->files; i++) fds[i] = open(all->paths[i], O_RDONLY);
  for (size_t i = 0; match && i < all->count; i++) {
    const struct piece *piece = &all->list[version][i];
    match = pread(fds[piece->file], found, size, (off_t)piece->file_offset) == (ssize_t)size &&
            !memcmp(found, memory + piece->buffer_offset, size);
  }
  for (size_t i = 0; i < all->files; i++) close(fds[i]);
  free(found);
  return match;
}
