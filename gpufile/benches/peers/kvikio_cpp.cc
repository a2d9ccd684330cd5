// kvikio's C++ API. `first-byte` and `read-default` run before any setting is changed. The other cases have
// kvikio's task size and bounce buffers at 4 MiB, with which it reads fastest from the page cache.
// KVIKIO_COMPAT_MODE=ON or OFF in the environment chooses POSIX calls or cuFile. Without it, kvikio decides.
#include "cases.h"

#include <exception>
#include <functional>
#include <future>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <kvikio/defaults.hpp>
#include <kvikio/file_handle.hpp>
#include <kvikio/stream.hpp>

namespace {

using kvikio::FileHandle;

char const *const PEER = "kvikio";

char *device;
std::unique_ptr<FileHandle> file; // FILE, for the cases that read it.

void expect(std::size_t moved, std::size_t expected) {
  if (moved != expected)
    throw std::runtime_error(std::to_string(moved) + " of " + std::to_string(expected) + " bytes");
}

// Reports a case that throws with its message, on one line. The other cases still run.
void guarded(char const *name, int threads, std::function<void()> const &work) {
  try {
    work();
  } catch (std::exception const &error) {
    std::string text = error.what();
    for (char &c : text)
      if (c == '\n') c = ' ';
    report_error(PEER, name, threads, text.c_str());
  }
}

struct measurement {
  char const *name;
  std::size_t size, ops;
  int threads;
  bool warm_up = true;
};

void measure(measurement const &m, std::function<void()> const &work,
             std::function<void()> const &prepare = nullptr, std::function<void()> const &check = nullptr) {
  guarded(m.name, m.threads, [&] {
    samples times{};
    for (int i = m.warm_up ? -1 : 0; i < OPTIONS.repeats; i++) {
      if (prepare) prepare();
      stamp start = stamp_now();
      work();
      if (i >= 0) add_sample(&times, start);
    }
    if (check) check();
    report(PEER, m.name, m.size, m.ops, m.threads, &times);
  });
}

// Sets what the cases after `read-default` have: the page cache, which kvikio by default avoids on disks, or the disk.
void tune(bool direct = false) {
  kvikio::defaults::set_task_size(4 * MIB);
  kvikio::defaults::set_bounce_buffer_size(4 * MIB);
  kvikio::defaults::set_auto_direct_io_read(direct);
  kvikio::defaults::set_auto_direct_io_write(direct);
}

void with_threads(std::initializer_list<int> counts, std::function<void(int)> const &work) {
  for (int threads : counts) {
    kvikio::defaults::set_thread_pool_nthreads(threads);
    work(threads);
  }
}

void first_byte(bench_case const *c) {
  guarded(c->name, 1, [&] {
    samples times{};
    stamp start = stamp_now();
    FileHandle opened(OPTIONS.file, "r");
    expect(opened.read(device, 4 * KIB, 0, 0), 4 * KIB);
    add_sample(&times, start);
    report(PEER, c->name, 4 * KIB, 1, 1, &times);
  });
}

void read_file(bench_case const *c, int threads) {
  std::size_t const bytes = OPTIONS.file_bytes;
  measure({c->name, bytes, 1, threads}, [&] { expect(file->pread(device, bytes).get(), bytes); });
}

void read_default(bench_case const *c) { read_file(c, 0); }

void read_tuned(bench_case const *c) {
  tune();
  with_threads({1, 2, 4, 8, 16}, [&](int threads) { read_file(c, threads); });
}

void scatter(bench_case const *c) {
  tune();
  size_t *offsets = scatter_offsets(OPTIONS.file_bytes, c);
  with_threads({1, 4, 8, 16}, [&](int threads) {
    measure({c->name, c->size, c->ops, threads}, [&] {
      std::vector<std::future<std::size_t>> reads;
      reads.reserve(c->ops);
      for (size_t i = 0; i < c->ops; i++) {
        char *slot = device + i * c->other % c->ops * c->size;
        reads.push_back(file->pread(slot, c->size, offsets[i]));
      }
      for (auto &read : reads) expect(read.get(), c->size);
    });
  });
  free(offsets);
}

void move_blocks(bench_case const *c) {
  tune();
  std::unique_ptr<pieces, void (*)(pieces *)> all(make_pieces(c), remove_pieces);
  std::vector<FileHandle> files;
  for (size_t i = 0; i < all->files; i++) files.emplace_back(all->paths[i], c->flag ? "r+" : "r");
  with_threads({4, 8, 16}, [&](int threads) {
    // The versions alternate, so that a store that moves nothing leaves wrong bytes.
    size_t version = 0;
    prepare_memory(device, c);
    measure(
        {c->name, c->size, all->count, threads},
        [&] {
          version = !version;
          std::vector<std::future<std::size_t>> moves;
          moves.reserve(all->count);
          for (size_t i = 0; i < all->count; i++) {
            piece const &piece = all->list[version][i];
            FileHandle &of_piece = files[piece.file];
            char *memory = device + piece.buffer_offset;
            moves.push_back(c->flag ? of_piece.pwrite(memory, c->size, piece.file_offset)
                                    : of_piece.pread(memory, c->size, piece.file_offset));
          }
          for (auto &move : moves) expect(move.get(), c->size);
        },
        nullptr,
        [&] {
          if (!pieces_match(all.get(), version, c->size, device)) throw std::runtime_error("wrong bytes");
        });
  });
}

void many_reads(bench_case const *c) {
  tune();
  with_threads({1, 4, 8, 16}, [&](int threads) {
    measure({c->name, MANY_SIZE, MANY_OPS, threads}, [&] {
      std::vector<std::future<std::size_t>> reads;
      reads.reserve(MANY_OPS);
      for (size_t i = 0; i < MANY_OPS; i++)
        reads.push_back(file->pread(device + i * MANY_SIZE, MANY_SIZE, i * MANY_SIZE));
      for (auto &read : reads) expect(read.get(), MANY_SIZE);
    });
  });
}

// The flag is true for the time of the call alone.
void stream_read(bench_case const *c) {
  tune();
  cudaStream_t stream;
  need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  guarded(c->name, 1, [&] {
    samples times{};
    for (int i = -1; i < OPTIONS.repeats; i++) {
      stamp start = stamp_now();
      kvikio::StreamFuture read = file->read_async(device, STREAM_SIZE, 0, 0, stream);
      if (i >= 0 && c->flag) add_sample(&times, start);
      expect(read.check_bytes_done(), STREAM_SIZE);
      if (i >= 0 && !c->flag) add_sample(&times, start);
    }
    report(PEER, c->name, STREAM_SIZE, 1, 1, &times);
  });
  cudaStreamDestroy(stream);
}

void latency(bench_case const *c) {
  tune();
  measure({c->name, LATENCY_SIZE, LATENCY_OPS, 1}, [&] {
    for (size_t i = 0; i < LATENCY_OPS; i++)
      expect(file->read(device, LATENCY_SIZE, i % LATENCY_PLACES * LATENCY_SIZE, 0), LATENCY_SIZE);
  });
}

void write_over(bench_case const *c) {
  std::size_t const bytes = OPTIONS.file_bytes;
  tune();
  fill_device_buffer(device, bytes);
  with_threads({1, 4, 8}, [&](int threads) {
    guarded(c->name, threads, [&] {
      FileHandle over(OPTIONS.file, "r+");
      measure({c->name, bytes, 1, threads}, [&] { expect(over.pwrite(device, bytes).get(), bytes); });
    });
  });
  fsync(file->fd());
}

void write_fresh(bench_case const *c) {
  std::size_t const bytes = OPTIONS.file_bytes;
  std::string const path = std::string(OPTIONS.file) + ".fresh";
  tune();
  fill_device_buffer(device, bytes);
  with_threads({1, 4}, [&](int threads) {
    measure(
        {c->name, bytes, 1, threads},
        [&] {
          FileHandle fresh(path, "w");
          expect(fresh.pwrite(device, bytes).get(), bytes);
        },
        [&] { unlink(path.c_str()); });
    unlink(path.c_str());
  });
}

// The disk, not the page cache. The flag is true for writes. There is no warm-up: the first repetition is as cold as
// the others.
void direct(bench_case const *c) {
  std::size_t const bytes = smaller(OPTIONS.file_bytes, DIRECT_MOST);
  tune(true);
  if (c->flag) fill_device_buffer(device, bytes);
  with_threads({4, 8, 16}, [&](int threads) {
    guarded(c->name, threads, [&] {
      if (on_tmpfs(OPTIONS.file))
        throw std::runtime_error(std::string(OPTIONS.file) + " is on tmpfs: there is no disk to measure");
      FileHandle opened(OPTIONS.file, c->flag ? "r+" : "r");
      measure(
          {c->name, bytes, 1, threads, false},
          [&] { expect((c->flag ? opened.pwrite(device, bytes) : opened.pread(device, bytes)).get(), bytes); },
          [] {
            if (!drop_cache(OPTIONS.file)) throw std::runtime_error("cannot drop the page cache of FILE");
          });
    });
  });
}

void run_cases() {
  for (int i = 0; i < CASE_COUNT; i++) {
    bench_case const *c = &CASES[i];
    if (c->run != first_byte && !file) {
      file = std::make_unique<FileHandle>(OPTIONS.file, "r");
      printf("# kvikio reads %s by %s\n", OPTIONS.file,
             file->get_compat_mode_manager().is_compat_mode_preferred() ? "POSIX calls" : "cuFile");
    }
    if (selected(c->name)) guarded(c->name, 0, [&] { c->run(c); });
  }
}

} // namespace

// `first-byte` and `read-default` come first, because the other cases change settings. The stores of blocks need the
// memory as they left it, so the cases that fill it come later.
const bench_case CASES[] = {
    {"first-byte", MS, first_byte, PLAIN},
    {"read-default", GBPS, read_default, PLAIN},
    {"read", GBPS, read_tuned, PLAIN},
    SCATTER_CASES(scatter),
    BLOCK_CASES(move_blocks),
    {"read-many-16m", GBPS, many_reads, PLAIN},
    {"stream-1g", GBPS, stream_read, PLAIN},
    {"stream-1g-call", US, stream_read, FLAGGED},
    {"latency-4k", US, latency, PLAIN},
    {"write-over", GBPS, write_over, PLAIN},
    {"write-fresh", GBPS, write_fresh, PLAIN},
    {"direct-read", GBPS, direct, PLAIN},
    {"direct-write", GBPS, direct, FLAGGED},
};
const int CASE_COUNT = sizeof CASES / sizeof *CASES;

int main(int argc, char **argv) {
  parse_options(argc, argv);
  need(cudaSetDevice(0), "GPU 0");
  device = device_buffer(larger(OPTIONS.file_bytes, 2 * GIB));
  try {
    run_cases();
  } catch (std::exception const &error) {
    fail("kvikio: %s", error.what());
  }
  file.reset();
  return 0;
}
