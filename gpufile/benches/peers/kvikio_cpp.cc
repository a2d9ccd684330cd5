// kvikio's C++ API. `first-byte` and `read-default` run before any setting is changed. The other cases have
// kvikio's task size and bounce buffers at 4 MiB, with which it reads fastest from the page cache.
// KVIKIO_COMPAT_MODE=ON or OFF in the environment chooses POSIX calls or cuFile. Without it, kvikio decides.
#include "cases.h"

#include <exception>
#include <functional>
#include <future>
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

void scatter_reads(FileHandle &file, char *device, scatter const &scatter, int threads) {
  size_t *offsets = scatter_offsets(OPTIONS.file_bytes, &scatter);
  measure({scatter.name, scatter.size, scatter.ops, threads}, [&] {
    std::vector<std::future<std::size_t>> reads;
    reads.reserve(scatter.ops);
    for (size_t i = 0; i < scatter.ops; i++) {
      char *slot = device + i * scatter.stride % scatter.ops * scatter.size;
      reads.push_back(file.pread(slot, scatter.size, offsets[i]));
    }
    for (auto &read : reads) expect(read.get(), scatter.size);
  });
  free(offsets);
}

void move_blocks(blocks const &blocks, char *device, std::vector<int> const &counts) {
  std::unique_ptr<pieces, void (*)(pieces *)> all(make_pieces(&blocks), remove_pieces);
  std::vector<FileHandle> files;
  for (size_t i = 0; i < all->files; i++) files.emplace_back(all->paths[i], blocks.write ? "r+" : "r");
  for (int threads : counts) {
    // The versions alternate, so that a store that moves nothing leaves wrong bytes.
    size_t version = 0;
    kvikio::defaults::set_thread_pool_nthreads(threads);
    prepare_memory(device, &blocks);
    measure(
        {blocks.name, blocks.size, all->count, threads},
        [&] {
          version = !version;
          std::vector<std::future<std::size_t>> moves;
          moves.reserve(all->count);
          for (size_t i = 0; i < all->count; i++) {
            piece const &piece = all->list[version][i];
            FileHandle &file = files[piece.file];
            char *memory = device + piece.buffer_offset;
            moves.push_back(blocks.write ? file.pwrite(memory, blocks.size, piece.file_offset)
                                         : file.pread(memory, blocks.size, piece.file_offset));
          }
          for (auto &move : moves) expect(move.get(), blocks.size);
        },
        nullptr,
        [&] {
          if (!pieces_match(all.get(), version, blocks.size, device)) throw std::runtime_error("wrong bytes");
        });
  }
}

void many_reads(FileHandle &file, char *device, int threads) {
  measure({"read-many-16m", MANY_SIZE, MANY_OPS, threads}, [&] {
    std::vector<std::future<std::size_t>> reads;
    reads.reserve(MANY_OPS);
    for (size_t i = 0; i < MANY_OPS; i++)
      reads.push_back(file.pread(device + i * MANY_SIZE, MANY_SIZE, i * MANY_SIZE));
    for (auto &read : reads) expect(read.get(), MANY_SIZE);
  });
}

void stream_read(FileHandle &file, char *device) {
  cudaStream_t stream;
  need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  guarded("stream-1g", 1, [&] {
    samples whole{}, call{};
    for (int i = -1; i < OPTIONS.repeats; i++) {
      stamp start = stamp_now();
      kvikio::StreamFuture read = file.read_async(device, STREAM_SIZE, 0, 0, stream);
      if (i >= 0) add_sample(&call, start);
      expect(read.check_bytes_done(), STREAM_SIZE);
      if (i >= 0) add_sample(&whole, start);
    }
    if (selected("stream-1g-call")) report(PEER, "stream-1g-call", STREAM_SIZE, 1, 1, &call);
    report(PEER, "stream-1g", STREAM_SIZE, 1, 1, &whole);
  });
  cudaStreamDestroy(stream);
}

// The disk, not the page cache. There is no warm-up: the first repetition is as cold as the others.
void direct(char const *name, bool write, char *device, int threads) {
  guarded(name, threads, [&] {
    if (on_tmpfs(OPTIONS.file))
      throw std::runtime_error(std::string(OPTIONS.file) + " is on tmpfs: there is no disk to measure");
    size_t bytes = smaller(OPTIONS.file_bytes, DIRECT_MOST);
    FileHandle file(OPTIONS.file, write ? "r+" : "r");
    measure(
        {name, bytes, 1, threads, false},
        [&] { expect((write ? file.pwrite(device, bytes) : file.pread(device, bytes)).get(), bytes); },
        [] {
          if (!drop_cache(OPTIONS.file)) throw std::runtime_error("cannot drop the page cache of FILE");
        });
  });
}

void run_cases(char *device) {
  std::size_t const bytes = OPTIONS.file_bytes;

  if (selected("first-byte"))
    guarded("first-byte", 1, [&] {
      samples times{};
      stamp start = stamp_now();
      FileHandle file(OPTIONS.file, "r");
      expect(file.read(device, 4 * KIB, 0, 0), 4 * KIB);
      add_sample(&times, start);
      report(PEER, "first-byte", 4 * KIB, 1, 1, &times);
    });

  FileHandle file(OPTIONS.file, "r");
  printf("# kvikio reads %s by %s\n", OPTIONS.file,
         file.get_compat_mode_manager().is_compat_mode_preferred() ? "POSIX calls" : "cuFile");
  if (selected("read-default"))
    measure({"read-default", bytes, 1, 0}, [&] { expect(file.pread(device, bytes).get(), bytes); });

  kvikio::defaults::set_task_size(4 * MIB);
  kvikio::defaults::set_bounce_buffer_size(4 * MIB);
  // The next cases use the page cache, which kvikio by default avoids on disks.
  kvikio::defaults::set_auto_direct_io_read(false);
  kvikio::defaults::set_auto_direct_io_write(false);
  auto with_threads = [](char const *name, std::vector<int> const &counts, auto const &run) {
    if (!selected(name)) return;
    for (int threads : counts) {
      kvikio::defaults::set_thread_pool_nthreads(threads);
      run(threads);
    }
  };

  with_threads("read", {1, 2, 4, 8, 16}, [&](int threads) {
    measure({"read", bytes, 1, threads}, [&] { expect(file.pread(device, bytes).get(), bytes); });
  });
  for (scatter const &scatter : SCATTERS)
    with_threads(scatter.name, {1, 4, 8, 16},
                 [&](int threads) { scatter_reads(file, device, scatter, threads); });
  for (blocks const &blocks : BLOCKS)
    if (selected(blocks.name)) guarded(blocks.name, 0, [&] { move_blocks(blocks, device, {4, 8, 16}); });
  with_threads("read-many-16m", {1, 4, 8, 16}, [&](int threads) { many_reads(file, device, threads); });
  if (selected("stream-1g") || selected("stream-1g-call")) stream_read(file, device);
  if (selected("latency-4k"))
    measure({"latency-4k", LATENCY_SIZE, LATENCY_OPS, 1}, [&] {
      for (size_t i = 0; i < LATENCY_OPS; i++)
        expect(file.read(device, LATENCY_SIZE, i % LATENCY_PLACES * LATENCY_SIZE, 0), LATENCY_SIZE);
    });

  fill_device_buffer(device, bytes);
  with_threads("write-over", {1, 4, 8}, [&](int threads) {
    guarded("write-over", threads, [&] {
      FileHandle over(OPTIONS.file, "r+");
      measure({"write-over", bytes, 1, threads}, [&] { expect(over.pwrite(device, bytes).get(), bytes); });
    });
  });
  fsync(file.fd());
  std::string const fresh = std::string(OPTIONS.file) + ".fresh";
  with_threads("write-fresh", {1, 4}, [&](int threads) {
    measure(
        {"write-fresh", bytes, 1, threads},
        [&] {
          FileHandle file(fresh, "w");
          expect(file.pwrite(device, bytes).get(), bytes);
        },
        [&] { unlink(fresh.c_str()); });
    unlink(fresh.c_str());
  });

  kvikio::defaults::set_auto_direct_io_read(true);
  kvikio::defaults::set_auto_direct_io_write(true);
  with_threads("direct-read", {4, 8, 16},
               [&](int threads) { direct("direct-read", false, device, threads); });
  with_threads("direct-write", {4, 8, 16},
               [&](int threads) { direct("direct-write", true, device, threads); });
}

} // namespace

int main(int argc, char **argv) {
  parse_options(argc, argv);
  need(cudaSetDevice(0), "GPU 0");
  char *device = device_buffer(larger(OPTIONS.file_bytes, 2 * GIB));
  try {
    run_cases(device);
  } catch (std::exception const &error) {
    fail("kvikio: %s", error.what());
  }
  return 0;
}
