// libcufile called from C, as NVIDIA's samples do it. Threads read and write 16 MiB at a time. Other cases use
// the batch calls and the stream-ordered calls. The device memory is not registered. The blocks of a KV cache
// are moved also with registered memory (`peer=cufile-registered`), and by batches of it
// (`peer=cufile-batch`), one in flight for each thread. The link's own speed is here too, as `peer=cuda`.
#define _GNU_SOURCE
#include "cases.h"

#include <cufile.h>
#include <errno.h>
#include <pthread.h>

static const size_t PIECE = 16 * MIB;
static const size_t BATCH = 128; // The most that libcufile takes by default.

static char *device;
static size_t device_bytes;

// The first problem of all threads in the current case.
static bool failed;
static char problem[256];

__attribute__((format(printf, 1, 2))) static bool case_failed(const char *format, ...) {
  if (!__sync_bool_compare_and_swap(&failed, false, true)) return false;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(problem, sizeof problem, format, arguments);
  va_end(arguments);
  return false;
}

static void finish(const char *peer, const char *name, size_t size, size_t ops, int threads,
                   const struct samples *samples) {
  if (failed)
    report_error(peer, name, threads, problem);
  else
    report(peer, name, size, ops, threads, samples);
  failed = false;
}

static bool cufile_ok(CUfileError_t status, const char *call) {
  if (status.err == CU_FILE_SUCCESS) return true;
  return case_failed("%s: %d, %s (CUDA %d)", call, status.err, cufileop_status_error(status.err),
                     status.cu_err);
}

static bool cuda_ok(cudaError_t status, const char *call) {
  return status == cudaSuccess || case_failed("%s: %s", call, cudaGetErrorString(status));
}

// A read or write returns a count of bytes, or -1 and errno, or a negative CUfileOpError.
static bool moved(ssize_t answer, size_t expected, const char *call) {
  if (answer == (ssize_t)expected) return true;
  if (answer >= 0) return case_failed("%s: %zd of %zu bytes", call, answer, expected);
  long code = answer == -1 ? errno : -answer;
  return case_failed("%s: %ld, %s", call, code,
                     code > CUFILEOP_BASE_ERR ? cufileop_status_error((CUfileOpError)code)
                                              : strerror((int)code));
}

// Files.

struct opened {
  int fd;
  CUfileHandle_t handle;
};
static struct opened file = {.fd = -1}; // FILE, for all cases that go through the page cache.

static bool open_file(struct opened *opened, const char *path, int flags) {
  opened->handle = NULL;
  opened->fd = open(path, flags, 0644);
  if (opened->fd < 0) return case_failed("open %s: %s", path, strerror(errno));
  CUfileDescr_t description;
  memset(&description, 0, sizeof description);
  description.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
  description.handle.fd = opened->fd;
  return cufile_ok(cuFileHandleRegister(&opened->handle, &description), "cuFileHandleRegister");
}

static void close_file(struct opened *opened) {
  if (opened->handle) cuFileHandleDeregister(opened->handle);
  if (opened->fd >= 0) close(opened->fd);
}

// A crew of threads that shares the transfers of one repetition after another. Its threads live as long as
// their case, so that the cost of a thread's first transfer falls into the warm-up.

struct transfers {
  bool write;
  CUfileHandle_t handle;
  size_t size, ops, stride;
  const size_t *offsets;      // In the file. Without them, one transfer follows the other.
  const struct piece *pieces; // If there are any, these are the transfers.
  const struct opened *files; // Of the pieces.
  bool batched;
};
static struct {
  _Alignas(64) size_t next; // Alone in its cache line, since all threads count it up.
  _Alignas(64) struct transfers work;
  pthread_t threads[16];
  int count;
  bool dismissed;
  pthread_barrier_t gate;
} crew;

static void transfer(size_t i) {
  const struct transfers *work = &crew.work;
  if (work->pieces) {
    const struct piece *piece = &work->pieces[i];
    off_t at = (off_t)piece->file_offset, slot = (off_t)piece->buffer_offset;
    CUfileHandle_t handle = work->files[piece->file].handle;
    if (work->write)
      moved(cuFileWrite(handle, device, work->size, at, slot), work->size, "cuFileWrite");
    else
      moved(cuFileRead(handle, device, work->size, at, slot), work->size, "cuFileRead");
    return;
  }
  off_t at = (off_t)(work->offsets ? work->offsets[i] : i * work->size);
  off_t slot = (off_t)(i * work->stride % work->ops * work->size);
  if (work->write)
    moved(cuFileWrite(work->handle, device, work->size, at, slot), work->size, "cuFileWrite");
  else
    moved(cuFileRead(work->handle, device, work->size, at, slot), work->size, "cuFileRead");
}

// Moves the pieces from `first` on, at most BATCH of them, and waits for them.
static void transfer_batch(CUfileBatchHandle_t batch, size_t first) {
  const struct transfers *work = &crew.work;
  CUfileIOParams_t entries[BATCH];
  CUfileIOEvents_t events[BATCH];
  unsigned all = (unsigned)smaller(BATCH, work->ops - first);
  memset(entries, 0, sizeof entries);
  for (unsigned i = 0; i < all; i++) {
    const struct piece *piece = &work->pieces[first + i];
    entries[i].mode = CUFILE_BATCH;
    entries[i].opcode = work->write ? CUFILE_WRITE : CUFILE_READ;
    entries[i].fh = work->files[piece->file].handle;
    entries[i].cookie = &entries[i];
    entries[i].u.batch.devPtr_base = device;
    entries[i].u.batch.devPtr_offset = (off_t)piece->buffer_offset;
    entries[i].u.batch.file_offset = (off_t)piece->file_offset;
    entries[i].u.batch.size = work->size;
  }
  double start = stamp_now().seconds;
  if (!cufile_ok(cuFileBatchIOSubmit(batch, all, entries, 0), "cuFileBatchIOSubmit")) return;
  for (unsigned done = 0; done < all && !failed;) {
    unsigned wanted = all - done, count = wanted;
    cufile_ok(cuFileBatchIOGetStatus(batch, wanted, &count, events, NULL), "cuFileBatchIOGetStatus");
    for (unsigned i = 0; i < count && !failed; i++)
      if (events[i].status != CUFILE_COMPLETE || events[i].ret != work->size)
        case_failed("batch entry: status %d, %zd bytes", (int)events[i].status, (ssize_t)events[i].ret);
    done += count;
    if (stamp_now().seconds - start > 60) case_failed("the batch is not done after 60 s");
  }
}

static void *crew_member(void *unused) {
  (void)unused;
  CUfileBatchHandle_t batch = NULL;
  cuda_ok(cudaSetDevice(0), "cudaSetDevice");
  for (;;) {
    pthread_barrier_wait(&crew.gate);
    if (crew.dismissed) break;
    const bool batched = crew.work.batched;
    if (batched && !batch) cufile_ok(cuFileBatchIOSetUp(&batch, (unsigned)BATCH), "cuFileBatchIOSetUp");
    const size_t step = batched ? BATCH : 1;
    for (size_t i; !failed && (i = __sync_fetch_and_add(&crew.next, step)) < crew.work.ops;) {
      if (batched)
        transfer_batch(batch, i);
      else
        transfer(i);
    }
    pthread_barrier_wait(&crew.gate);
  }
  if (batch) cuFileBatchIODestroy(batch);
  return NULL;
}

static void hire_crew(int count) {
  crew.count = count;
  crew.dismissed = false;
  pthread_barrier_init(&crew.gate, NULL, (unsigned)count + 1);
  for (int i = 0; i < count; i++)
    if (pthread_create(&crew.threads[i], NULL, crew_member, NULL)) fail("cannot start %d threads", count);
}

static void crew_works(const struct transfers *work) {
  crew.work = *work;
  crew.next = 0;
  pthread_barrier_wait(&crew.gate);
  pthread_barrier_wait(&crew.gate);
}

static void dismiss_crew(void) {
  crew.dismissed = true;
  pthread_barrier_wait(&crew.gate);
  for (int i = 0; i < crew.count; i++) pthread_join(crew.threads[i], NULL);
  pthread_barrier_destroy(&crew.gate);
}

// The cases. Repetition -1 is the warm-up, which is not counted.

static void measure(const struct bench_case *c, int threads, const struct transfers *work) {
  struct samples samples = {.count = 0};
  hire_crew(threads);
  for (int i = -1; i < OPTIONS.repeats && !failed; i++) {
    struct stamp start = stamp_now();
    crew_works(work);
    if (i >= 0) add_sample(&samples, start);
  }
  dismiss_crew();
  finish("cufile", c->name, work->size, work->ops, threads, &samples);
}

// Opens the driver and FILE, which every case needs.
static struct samples opening;
static void open_all(void) {
  struct stamp start = stamp_now();
  if (cufile_ok(cuFileDriverOpen(), "cuFileDriverOpen") && open_file(&file, OPTIONS.file, O_RDWR))
    moved(cuFileRead(file.handle, device, 4 * KIB, 0, 0), 4 * KIB, "cuFileRead");
  add_sample(&opening, start);
}

static void first_byte(const struct bench_case *c) { report("cufile", c->name, 4 * KIB, 1, 1, &opening); }

// The flag is true for copies to the device.
static void link_speed(const struct bench_case *c) {
  const bool to_device = c->flag;
  const size_t size = 256 * MIB, ops = 16;
  struct samples samples = {.count = 0};
  char *pinned = NULL;
  cuda_ok(cudaHostAlloc((void **)&pinned, size, cudaHostAllocDefault), "cudaHostAlloc");
  if (!failed) memset(pinned, 1, size);
  for (int i = -1; i < OPTIONS.repeats && !failed; i++) {
    struct stamp start = stamp_now();
    for (size_t j = 0; j < ops && !failed; j++) {
      char *there = device + j * size % (2 * GIB);
      cuda_ok(to_device ? cudaMemcpyAsync(there, pinned, size, cudaMemcpyHostToDevice, NULL)
                        : cudaMemcpyAsync(pinned, there, size, cudaMemcpyDeviceToHost, NULL),
              "cudaMemcpyAsync");
    }
    cuda_ok(cudaStreamSynchronize(NULL), "cudaStreamSynchronize");
    if (i >= 0) add_sample(&samples, start);
  }
  if (pinned) cudaFreeHost(pinned);
  finish("cuda", c->name, size, ops, 1, &samples);
}

static void read_default(const struct bench_case *c) {
  struct samples samples = {.count = 0};
  for (int i = -1; i < OPTIONS.repeats && !failed; i++) {
    struct stamp start = stamp_now();
    moved(cuFileRead(file.handle, device, OPTIONS.file_bytes, 0, 0), OPTIONS.file_bytes, "cuFileRead");
    if (i >= 0) add_sample(&samples, start);
  }
  finish("cufile", c->name, OPTIONS.file_bytes, 1, 0, &samples);
}

static struct transfers all_of_file(void) {
  return (struct transfers){
      .handle = file.handle, .size = PIECE, .ops = OPTIONS.file_bytes / PIECE, .stride = 1};
}

static void read_file(const struct bench_case *c) {
  struct transfers work = all_of_file();
  for (int threads = 1; threads <= 16; threads *= 2) measure(c, threads, &work);
}

static void scatter(const struct bench_case *c) {
  const int counts[] = {1, 4, 8, 16};
  size_t *offsets = scatter_offsets(OPTIONS.file_bytes, c);
  struct transfers work = {
      .handle = file.handle, .size = c->size, .ops = c->ops, .stride = c->other, .offsets = offsets};
  for (int i = 0; i < 4; i++) measure(c, counts[i], &work);
  free(offsets);
}

// One contender and number of threads. Repetitions alternate between the two versions of the pieces, so that a
// store that moves nothing leaves wrong bytes.
static void move_blocks(const char *peer, const struct bench_case *blocks, const struct pieces *all,
                        struct transfers work, int threads) {
  struct samples samples = {.count = 0};
  size_t version = 0;
  prepare_memory(device, blocks);
  hire_crew(threads);
  for (int i = -1; i < OPTIONS.repeats && !failed; i++) {
    version = !version;
    work.pieces = all->list[version];
    struct stamp start = stamp_now();
    crew_works(&work);
    if (i >= 0) add_sample(&samples, start);
  }
  dismiss_crew();
  if (!failed && !pieces_match(all, version, blocks->size, device)) case_failed("wrong bytes");
  finish(peer, blocks->name, work.size, work.ops, threads, &samples);
}

static void kv_blocks(const struct bench_case *blocks) {
  struct pieces *all = make_pieces(blocks);
  struct opened files[KV_MOST_FILES] = {0};
  for (size_t i = 0; i < all->files; i++) open_file(&files[i], all->paths[i], O_RDWR);
  struct transfers work = {.write = blocks->flag, .size = blocks->size, .ops = all->count, .files = files};
  for (int threads = 4; threads <= 16; threads *= 2) move_blocks("cufile", blocks, all, work, threads);
  CUfileError_t registered = cuFileBufRegister(device, KV_MEMORY, 0);
  if (registered.err == CU_FILE_SUCCESS) {
    for (int threads = 4; threads <= 16; threads *= 2)
      move_blocks("cufile-registered", blocks, all, work, threads);
  } else
    printf("# the memory is not registered: %s\n", cufileop_status_error(registered.err));
  work.batched = true;
  for (int threads = 1; threads <= 4; threads *= 4) move_blocks("cufile-batch", blocks, all, work, threads);
  if (registered.err == CU_FILE_SUCCESS) cuFileBufDeregister(device);
  for (size_t i = 0; i < all->files; i++) close_file(&files[i]);
  remove_pieces(all);
}

static void read_many(const struct bench_case *c) {
  struct piece pieces[MANY_OPS];
  for (size_t i = 0; i < MANY_OPS; i++) pieces[i] = (struct piece){0, i * MANY_SIZE, i * MANY_SIZE};
  struct transfers work = {
      .size = MANY_SIZE, .ops = MANY_OPS, .pieces = pieces, .files = &file, .batched = true};
  measure(c, 1, &work);
}

// The stream is registered, with all arguments fixed and aligned, as cuFile recommends. The flag is true for the time
// of the call alone.
static void stream_read(const struct bench_case *c) {
  const unsigned fixed_and_aligned = CU_FILE_STREAM_FIXED_BUF_OFFSET | CU_FILE_STREAM_FIXED_FILE_OFFSET |
                                     CU_FILE_STREAM_FIXED_FILE_SIZE | CU_FILE_STREAM_PAGE_ALIGNED_INPUTS;
  struct samples samples = {.count = 0};
  cudaStream_t stream = NULL;
  bool registered = cuda_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate") &&
                    cufile_ok(cuFileStreamRegister(stream, fixed_and_aligned), "cuFileStreamRegister");
  for (int i = -1; i < OPTIONS.repeats && !failed; i++) {
    size_t size = STREAM_SIZE;
    off_t file_offset = 0, buffer_offset = 0;
    ssize_t bytes = 0;
    struct stamp start = stamp_now();
    cufile_ok(cuFileReadAsync(file.handle, device, &size, &file_offset, &buffer_offset, &bytes, stream),
              "cuFileReadAsync");
    if (i >= 0 && c->flag) add_sample(&samples, start);
    cuda_ok(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    if (i >= 0 && !c->flag) add_sample(&samples, start);
    if (!failed) moved(bytes, STREAM_SIZE, "cuFileReadAsync");
  }
  if (registered) cuFileStreamDeregister(stream);
  if (stream) cudaStreamDestroy(stream);
  finish("cufile", c->name, STREAM_SIZE, 1, 1, &samples);
}

static void latency(const struct bench_case *c) {
  struct samples samples = {.count = 0};
  for (int i = -1; i < OPTIONS.repeats && !failed; i++) {
    struct stamp start = stamp_now();
    for (size_t j = 0; j < LATENCY_OPS && !failed; j++)
      moved(cuFileRead(file.handle, device, LATENCY_SIZE, (off_t)(j % LATENCY_PLACES * LATENCY_SIZE), 0),
            LATENCY_SIZE, "cuFileRead");
    if (i >= 0) add_sample(&samples, start);
  }
  finish("cufile", c->name, LATENCY_SIZE, LATENCY_OPS, 1, &samples);
}

static void write_over(const struct bench_case *c) {
  const int counts[] = {1, 4, 8};
  struct transfers work = all_of_file();
  work.write = true;
  fill_device_buffer(device, device_bytes);
  for (int i = 0; i < 3; i++) measure(c, counts[i], &work);
  fsync(file.fd);
}

// A new file each time. The time includes opening and closing.
static void write_new_file(const struct bench_case *c, int threads) {
  struct transfers work = {.write = true, .size = PIECE, .ops = OPTIONS.file_bytes / PIECE, .stride = 1};
  struct samples samples = {.count = 0};
  char path[4096];
  snprintf(path, sizeof path, "%s.fresh", OPTIONS.file);
  hire_crew(threads);
  for (int i = -1; i < OPTIONS.repeats && !failed; i++) {
    struct opened fresh;
    unlink(path);
    struct stamp start = stamp_now();
    if (open_file(&fresh, path, O_RDWR | O_CREAT | O_TRUNC)) {
      work.handle = fresh.handle;
      crew_works(&work);
    }
    close_file(&fresh);
    if (i >= 0) add_sample(&samples, start);
  }
  dismiss_crew();
  unlink(path);
  finish("cufile", c->name, work.size, work.ops, threads, &samples);
}

static void write_fresh(const struct bench_case *c) {
  fill_device_buffer(device, device_bytes);
  for (int threads = 1; threads <= 8; threads *= 8) write_new_file(c, threads);
}

// The disk, not the page cache. There is no warm-up: the first repetition is as cold as the others.
static void use_disk(const struct bench_case *c, int threads) {
  const bool write = c->flag;
  struct transfers work = {.write = write, .size = PIECE, .stride = 1};
  struct samples samples = {.count = 0};
  struct opened opened = {.fd = -1};
  work.ops = smaller(OPTIONS.file_bytes, DIRECT_MOST) / PIECE;
  if (on_tmpfs(OPTIONS.file))
    case_failed("%s is on tmpfs: there is no disk to measure", OPTIONS.file);
  else
    open_file(&opened, OPTIONS.file, (write ? O_RDWR : O_RDONLY) | O_DIRECT);
  work.handle = opened.handle;
  hire_crew(threads);
  for (int i = 0; i < OPTIONS.repeats && !failed; i++) {
    if (!drop_cache(OPTIONS.file))
      case_failed("cannot drop the page cache of %s: %s", OPTIONS.file, strerror(errno));
    struct stamp start = stamp_now();
    crew_works(&work);
    add_sample(&samples, start);
  }
  dismiss_crew();
  close_file(&opened);
  finish("cufile", c->name, work.size, work.ops, threads, &samples);
}

// The flag is true for writes.
static void direct(const struct bench_case *c) {
  if (c->flag) fill_device_buffer(device, device_bytes);
  for (int threads = 4; threads <= 16; threads *= 2) use_disk(c, threads);
}

// The stores of blocks need the memory as they left it, so the cases that fill it come later.
const struct bench_case CASES[] = {
    {"first-byte", MS, first_byte, PLAIN},
    {"link-h2d", GBPS, link_speed, FLAGGED},
    {"link-d2h", GBPS, link_speed, PLAIN},
    {"read-default", GBPS, read_default, PLAIN},
    {"read", GBPS, read_file, PLAIN},
    SCATTER_CASES(scatter),
    BLOCK_CASES(kv_blocks),
    {"read-many-16m", GBPS, read_many, PLAIN},
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
  device_bytes = larger(OPTIONS.file_bytes, 2 * GIB);
  need(cudaSetDevice(0), "GPU 0");
  device = device_buffer(device_bytes);

  open_all();
  const bool is_usable = !failed;
  static char reason[sizeof problem];
  memcpy(reason, problem, sizeof reason);
  failed = false;
  for (int i = 0; i < CASE_COUNT; i++) {
    const struct bench_case *c = &CASES[i];
    if (!selected(c->name)) continue;
    if (is_usable || c->run == link_speed)
      c->run(c);
    else
      report_error("cufile", c->name, 0, reason);
  }

  close_file(&file);
  cuFileDriverClose();
  return 0;
}
