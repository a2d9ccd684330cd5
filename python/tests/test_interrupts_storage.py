"""Ctrl-C while a call to the file system waits, as on a network file system whose server does not answer."""

import shutil
import subprocess

import pytest

#: Functions of the C library that wait while a file of their name exists. They tell by another file that they wait.
HOLDS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

static int exists(const char *path) { return syscall(SYS_faccessat, AT_FDCWD, path, F_OK) == 0; }

static void wait_while_held(const char *name) {
    char held[4096], reached[4096];
    const char *folder = getenv("HOLDS");
    snprintf(held, sizeof held, "%s/%s", folder, name);
    snprintf(reached, sizeof reached, "%s/%s.reached", folder, name);
    if (!exists(held)) return;
    close(syscall(SYS_openat, AT_FDCWD, reached, O_CREAT | O_WRONLY, 0600));
    while (exists(held)) usleep(1000);
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
    wait_while_held("fallocate");
    return syscall(SYS_fallocate, fd, mode, offset, length);
}

int fstatfs(int fd, struct statfs *status) {
    int result = syscall(SYS_fstatfs, fd, status);
    if (getenv("NFS")) status->f_type = 0x6969;
    return result;
}

int statx(int folder, const char *path, int flags, unsigned mask, void *buffer) {
    wait_while_held("statx");
    return syscall(SYS_statx, folder, path, flags, mask, buffer);
}

int open64(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    int mode = va_arg(arguments, int);
    va_end(arguments);
    const char *end = strrchr(path, '.');
    if (end && strcmp(end, ".slow") == 0) wait_while_held("open64");
    return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
"""

INTERRUPTED = """
    def interrupted(name, call, *arguments):
        held, reached = (os.path.join(os.environ["HOLDS"], file) for file in (name, name + ".reached"))
        open(held, "w").close()
        ended, times = threading.Event(), []
        def interrupt():
            while not os.path.exists(reached):
                if ended.wait(0.001):
                    return
            times.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            call(*arguments)
            outcome = "was not held" if not times else "ended"
        except KeyboardInterrupt:
            # Busy machines take their time, but not for ever.
            outcome = "interrupted" if time.monotonic() - times[0] < 5 else "late"
        ended.set()
        thread.join()
        os.unlink(held)
        if os.path.exists(reached):
            os.unlink(reached)
        return outcome
"""


@pytest.fixture
def held_python(python, tmp_path):
    """Returns a function that runs a program whose calls of the C library can be held."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source, library, holds = tmp_path / "holds.c", tmp_path / "holds.so", tmp_path / "holds"
    source.write_text(HOLDS)
    holds.mkdir()
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return lambda program, **more: python(INTERRUPTED + program, LD_PRELOAD=str(library), HOLDS=str(holds), **more)


WRITES = [
    "file.write_from, long",
    "file.write_from_async, long",
    "file.write_many, [long], [0]",
    "file.write_many_each_async, [long], [0]",
]


@pytest.mark.parametrize("call", WRITES)
def test_writes_wait_for_no_server(held_python, call):
    # The engine asks for the length of the file.
    printed = held_python(
        f"""
    file = gpufile.File(path, "w+")
    long = bytearray(1 << 20)
    print(interrupted("statx", {call}))
    assert file.write_from(b"abc", 5) == 3
    """,
        NFS="1",
    )
    assert printed == "interrupted\n"


@pytest.mark.parametrize("call", WRITES)
def test_writes_wait_for_no_blocks(held_python, call):
    printed = held_python(f"""
    file = gpufile.File(path, "w+")
    long = bytearray(16 << 20)
    print(interrupted("fallocate", {call}))
    assert file.write_from(b"abc", 5) == 3
    """)
    # Some file systems have no blocks to allocate.
    assert printed in ("interrupted\n", "was not held\n")


@pytest.mark.parametrize("call", ["file.read_into, long", "file.read_into_async, long", "file.read_many, [long], [0]"])
def test_reads_wait_for_no_server(held_python, call):
    printed = held_python(
        f"""
    with open(path, "wb") as file:
        file.truncate(64 << 20)
    file = gpufile.File(path)
    long = bytearray(64 << 20)
    print(interrupted("statx", {call}))
    assert file.read_into(bytearray(5)) == 5
    """,
        NFS="1",
    )
    assert printed == "interrupted\n"


def test_models_open_however_slow_the_storage_is(held_python, tmp_path):
    np = pytest.importorskip("numpy")
    from gpufile.safetensors.numpy import save_file

    model = tmp_path / "model.slow"
    save_file({"x": np.zeros(3)}, model)
    printed = held_python(f"""
    import gpufile.safetensors as gs
    model = {str(model)!r}
    for call in (
        lambda: gs.safe_open(model, "np"),
        lambda: gs.load_model(model, framework="np"),
        lambda: gs.verify(model),
    ):
        print(interrupted("open64", call))
    print(*gs.load_model(model, framework="np"))
    """)
    assert printed == "interrupted\n" * 3 + "x\n"
