"""A file system in memory, mounted by FUSE, that refuses one call: `refusing.py FOLDER`.

It says `mounted`, and then answers each line of its input. `CALL ERRNO` refuses this call with this error from then on, and
`nothing 0` refuses none. The answer has the number of refusals and of bytes written since the line before. The end of the
input ends the mount. It needs root, and speaks the protocol of the kernel's `fuse.h`, version 7.31.
"""

import contextlib
import ctypes
import errno
import itertools
import os
import stat
import struct
import sys
import threading
import time

MAX_WRITE = 128 << 10
BLOCK = 4096
HEADER = struct.Struct("<IIQQIII4x")
SETATTR = struct.Struct("<I4xQQQQQQIIIIIIII")
ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
# What the kernel is offered: large writes, and locks by `flock`.
BIG_WRITES, FLOCK_LOCKS, MAX_PAGES = 1 << 5, 1 << 10, 1 << 22
FATTR_MODE, FATTR_UID, FATTR_GID, FATTR_SIZE = 1, 2, 4, 8
DIRECT_IO = 1
KEEP_SIZE, PUNCH_HOLE = 1, 2
#: Calls that one request stands for. `SETATTR`, `OPEN`, `WRITE` and `FALLOCATE` stand for several.
CALLS = {
    6: "symlink", 8: "create", 9: "mkdir", 10: "remove", 11: "remove", 12: "rename", 13: "link", 17: "statfs",
    20: "fsync", 21: "attributes", 22: "attributes", 23: "attributes", 24: "attributes", 25: "close", 27: "list",
    28: "list", 30: "fsync of folders", 31: "flock", 32: "flock", 33: "flock", 35: "create", 45: "rename", 46: "lseek",
    51: "O_TMPFILE",
}  # fmt: skip


class Node:
    """A file, a folder or a symbolic link."""

    numbers = itertools.count(1)

    def __init__(self, mode, uid, gid):
        self.number = next(Node.numbers)
        self.mode, self.uid, self.gid, self.links = mode, uid, gid, 1
        self.data, self.names, self.attributes, self.locks = bytearray(), {}, {}, {}
        self.accessed = self.changed = time.time_ns()

    def attr(self):
        times = [divmod(at, 10**9) for at in (self.accessed, self.changed, self.changed)]
        blocks = -(-len(self.data) // 512)
        seconds, nanoseconds = [at[0] for at in times], [at[1] for at in times]
        owner = (self.mode, self.links, self.uid, self.gid, 0, BLOCK, 0)
        return ATTR.pack(self.number, len(self.data), blocks, *seconds, *nanoseconds, *owner)

    def entry(self):
        return struct.pack("<QQQQII", self.number, 0, 0, 0, 0, 0) + self.attr()

    def resize(self, size):
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.changed = time.time_ns()


class Refusing:
    """The file system."""

    def __init__(self):
        self.call, self.errno, self.refusals, self.written = "nothing", 0, 0, 0
        root = Node(stat.S_IFDIR | 0o755, os.getuid(), os.getgid())
        self.nodes = {root.number: root}
        self.waiting = []

    def refuse(self, call):
        if call == self.call:
            self.refusals += 1
            raise OSError(self.errno, call)

    def make(self, parent, name, mode, umask, uid, gid):
        if name in parent.names:
            raise OSError(errno.EEXIST, "")
        node = Node(mode & ~umask, uid, gid)
        self.nodes[node.number] = parent.names[name] = node
        return node

    def answer(self, opcode, unique, node, body, uid, gid):
        """Returns the bytes of the answer; ``None`` if there is none yet."""
        if opcode in CALLS:
            self.refuse(CALLS[opcode])
        names = body.split(b"\0")
        if opcode == 1:  # LOOKUP
            return self.child(node, names[0]).entry()
        if opcode == 3:  # GETATTR
            return struct.pack("<QII", 0, 0, 0) + node.attr()
        if opcode == 4:
            return self.set_attributes(node, body)
        if opcode == 5:  # READLINK
            return bytes(node.data)
        if opcode == 6:  # SYMLINK
            made = self.make(node, names[0], stat.S_IFLNK | 0o777, 0, uid, gid)
            made.data = bytearray(names[1])
            return made.entry()
        if opcode in (8, 9):  # MKNOD, MKDIR
            mode, umask = struct.unpack_from("<I4xI" if opcode == 8 else "<II", body)
            name = body[16 if opcode == 8 else 8 :].split(b"\0")[0]
            return self.make(node, name, mode if opcode == 8 else mode | stat.S_IFDIR, umask, uid, gid).entry()
        if opcode in (10, 11):  # UNLINK, RMDIR
            child = self.child(node, names[0])
            if child.names:
                raise OSError(errno.ENOTEMPTY, "")
            child.links -= 1
            del node.names[names[0]]
            return b""
        if opcode in (12, 45):  # RENAME, RENAME2
            skip = 8 if opcode == 12 else 16
            return self.rename(node, self.nodes[struct.unpack_from("<Q", body)[0]], body[skip:].split(b"\0"))
        if opcode == 13:  # LINK
            linked, name = self.nodes[struct.unpack_from("<Q", body)[0]], body[8:].split(b"\0")[0]
            node.names[name] = linked
            linked.links += 1
            return linked.entry()
        if opcode == 14:  # OPEN
            return self.open(struct.unpack_from("<I", body)[0])
        if opcode == 15:  # READ
            at, size = struct.unpack_from("<8xQI", body)
            return bytes(node.data[at : at + size])
        if opcode == 16:
            return self.write(node, body)
        if opcode == 17:  # STATFS
            return struct.pack("<QQQQQIII28x", 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, BLOCK, 255, BLOCK)
        if opcode == 18:  # RELEASE
            self.lock(node, struct.unpack_from("<16xQ", body)[0], 2)
            return b""
        if opcode == 21:  # SETXATTR
            name, value = body[8:].split(b"\0", 1)
            node.attributes[name] = value
            return b""
        if opcode in (22, 23):  # GETXATTR, LISTXATTR
            size = struct.unpack_from("<I", body)[0]
            name = body[8:].split(b"\0")[0]
            if opcode == 22 and name not in node.attributes:
                raise OSError(errno.ENODATA, "")
            found = node.attributes[name] if opcode == 22 else b"".join(name + b"\0" for name in node.attributes)
            if 0 < size < len(found):
                raise OSError(errno.ERANGE, "")
            return found if size else struct.pack("<II", len(found), 0)
        if opcode == 24:  # REMOVEXATTR
            if node.attributes.pop(names[0], None) is None:
                raise OSError(errno.ENODATA, "")
            return b""
        if opcode == 26:  # INIT
            flags = BIG_WRITES | FLOCK_LOCKS | MAX_PAGES
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, MAX_WRITE, flags, 16, 12, MAX_WRITE, 1, MAX_WRITE // BLOCK, 0, 0)
        if opcode == 28:
            return self.list(node, *struct.unpack_from("<8xQI", body))
        if opcode in (32, 33):  # SETLK, SETLKW
            owner, kind = struct.unpack_from("<8xQ16xI", body)
            if self.lock(node, owner, kind):
                return b""
            if opcode == 32:
                raise OSError(errno.EAGAIN, "")
            self.waiting.append((unique, node, owner, kind))
            return None
        if opcode in (35, 51):  # CREATE, TMPFILE
            flags, mode, umask = struct.unpack_from("<III", body)
            opened = self.open(flags)
            name = body[16:].split(b"\0")[0]
            made = Node(mode & ~umask, uid, gid) if opcode == 51 else self.make(node, name, mode, umask, uid, gid)
            self.nodes[made.number] = made
            return made.entry() + opened
        if opcode == 43:
            return self.allocate(node, *struct.unpack_from("<8xQQI", body))
        if opcode == 46:
            return self.seek(node, *struct.unpack_from("<8xQI", body))
        if opcode in (20, 25, 27, 29, 30, 34):  # FSYNC, FLUSH, OPENDIR, RELEASEDIR, FSYNCDIR, ACCESS
            return bytes(16) if opcode == 27 else b""
        raise OSError(errno.ENOSYS, "")

    def child(self, node, name):
        if name not in node.names:
            raise OSError(errno.ENOENT, "")
        return node.names[name]

    def set_attributes(self, node, body):
        valid, _, size, _, accessed, changed, _, a, c, _, mode, _, uid, gid, _ = SETATTR.unpack_from(body)
        if valid & FATTR_SIZE:
            self.refuse("ftruncate")
            node.resize(size)
        elif valid & FATTR_MODE:
            self.refuse("chmod")
            node.mode = mode
        elif valid & (FATTR_UID | FATTR_GID):
            self.refuse("chown")
            node.uid = uid if valid & FATTR_UID else node.uid
            node.gid = gid if valid & FATTR_GID else node.gid
        else:
            self.refuse("utimens")
            node.accessed, node.changed = accessed * 10**9 + a, changed * 10**9 + c
        return struct.pack("<QII", 0, 0, 0) + node.attr()

    def rename(self, source, target, names):
        old, new = names[:2]
        moved = self.child(source, old)
        if new in target.names and target.names[new] is not moved:
            target.names[new].links -= 1
        del source.names[old]
        target.names[new] = moved
        return b""

    def open(self, flags):
        if flags & os.O_DIRECT:
            self.refuse("O_DIRECT")
        # The kernel maps no file that it may not cache.
        return struct.pack("<QII", 0, DIRECT_IO if self.call == "mmap" else 0, 0)

    def write(self, node, body):
        at, size = struct.unpack_from("<8xQI", body)
        if at != len(node.data):
            self.refuse("writes out of order")
        if at > len(node.data):
            node.resize(at)
        node.data[at : at + size] = body[40 : 40 + size]
        node.changed = time.time_ns()
        self.written += size
        return struct.pack("<II", size, 0)

    def list(self, node, at, size):
        listed = b""
        for number, (name, child) in list(enumerate(node.names.items(), 1))[at:]:
            entry = struct.pack("<QQII", child.number, number, len(name), stat.S_IFMT(child.mode) >> 12) + name
            entry += bytes(-len(entry) % 8)
            if len(listed) + len(entry) > size:
                break
            listed += entry
        return listed

    def allocate(self, node, at, length, mode):
        self.refuse("fallocate")
        if mode & ~(PUNCH_HOLE | KEEP_SIZE):
            raise OSError(errno.EOPNOTSUPP, "")
        if mode & PUNCH_HOLE:
            end = min(at + length, len(node.data))
            node.data[at:end] = bytes(max(end - at, 0))
        elif not mode & KEEP_SIZE:
            node.resize(max(at + length, len(node.data)))
        return b""

    def seek(self, node, at, whence):
        """Finds data or holes of whole blocks."""
        if at >= len(node.data):
            raise OSError(errno.ENXIO, "")
        while at < len(node.data):
            end = at - at % BLOCK + BLOCK
            if any(node.data[at:end]) == (whence == os.SEEK_DATA):
                return struct.pack("<Q", at)
            at = end
        if whence == os.SEEK_DATA:
            raise OSError(errno.ENXIO, "")
        return struct.pack("<Q", len(node.data))

    def lock(self, node, owner, kind):
        """Takes or changes a lock (0 shared, 1 exclusive, 2 none). Returns false if another owner's lock forbids that."""
        others = [held for other, held in node.locks.items() if other != owner]
        if kind != 2 and (1 in others or (kind == 1 and others)):
            return False
        node.locks[owner] = kind
        if kind == 2:
            del node.locks[owner]
        return True

    def granted(self):
        """Takes the locks that others waited for, and returns the numbers of their requests."""
        waiting, self.waiting = self.waiting, []
        for unique, *wanted in waiting:
            if self.lock(*wanted):
                yield unique
            else:
                self.waiting.append((unique, *wanted))

    def serve(self, device):
        def reply(unique, error, content=b""):
            with contextlib.suppress(OSError):  # the caller has gone
                os.write(device, struct.pack("<IiQ", 16 + len(content), -error, unique) + content)

        while True:
            try:
                request = os.read(device, MAX_WRITE + (64 << 10))
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                return
            _, opcode, unique, number, uid, gid, _ = HEADER.unpack_from(request)
            if opcode in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET
                continue
            try:
                answer = self.answer(opcode, unique, self.nodes.get(number), request[HEADER.size :], uid, gid)
                if answer is not None:
                    reply(unique, 0, answer)
            except OSError as error:
                reply(unique, error.errno)
            for freed in list(self.granted()):
                reply(freed, 0)


def main():
    target = sys.argv[1].encode()
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    if libc.mount(b"refusing", target, b"fuse", 0, options.encode()) != 0:
        sys.exit(f"cannot mount: {os.strerror(ctypes.get_errno())}")
    files = Refusing()
    threading.Thread(target=files.serve, args=[device], daemon=True).start()
    print("mounted", flush=True)
    try:
        for line in sys.stdin:
            call, number = line.rsplit(maxsplit=1)
            files.errno, files.call = int(number), call
            counts = files.refusals, files.written
            files.refusals = files.written = 0
            # The answer says that the line holds from now on.
            print(*counts, flush=True)
    finally:
        libc.umount2(target, 2)


if __name__ == "__main__":
    main()
