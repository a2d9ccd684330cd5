//! A file system that offers `O_DIRECT` and then refuses it.

use std::fs;
use std::io;
use std::thread;

use cufile_tests::bed::{folders, pattern};
use gpufile::{DirectIo, Engine, File, page_cache};

const LEN: usize = (1 << 20) + 777;

/// The descriptors of this process that have `O_DIRECT`.
fn direct_descriptors() -> Vec<libc::c_int> {
    let names = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name());
    let numbers = names.map(|name| name.to_str().unwrap().parse().unwrap());
    // SAFETY: takes integers.
    let flags = |fd| unsafe { libc::fcntl(fd, libc::F_GETFL) };
    numbers.filter(|fd| flags(*fd) >= 0 && flags(*fd) & libc::O_DIRECT != 0).collect()
}

/// Makes reads of a descriptor fail with `EINVAL` in this thread.
fn refuse_reads(fd: libc::c_int) -> io::Result<()> {
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let load = |offset| statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, offset);
    let unless = |k, jf| libc::sock_filter {
        jf,
        ..statement((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, k)
    };
    let answer = |k| statement((libc::BPF_RET | libc::BPF_K) as u16, k);
    // The number of the call is what the filter's data begins with; its first argument comes 16 bytes later.
    let first_argument = 16 + if cfg!(target_endian = "big") { 4 } else { 0 };
    let mut filter = [
        load(0),
        unless(libc::SYS_pread64 as u32, 3),
        load(first_argument),
        unless(fd as u32, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let check = |result| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: takes integers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: the program and its filter are whole, and the kernel copies them.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) })
}

#[test]
fn what_o_direct_refuses_goes_through_the_page_cache_and_later_reads_do_too() {
    let bytes = pattern(LEN);
    for folder in folders() {
        let path = folder.path().join("file");
        fs::write(&path, &bytes).unwrap();
        let options = File::options().read(true).direct_read(DirectIo::Always);
        let file = options.engine(&Engine::builder().build()).open(&path).unwrap();
        let cached = || page_cache::residency(&file, 0..LEN as u64).unwrap().cached;
        let read = || {
            let mut read = vec![0; LEN - 5];
            file.read_at_inline(&mut read, 5).unwrap();
            assert!(read == bytes[5..]);
        };
        page_cache::drop(&file, 0..LEN as u64).unwrap();
        let can_drop = cached() == 0;
        let others = direct_descriptors();
        read();
        let [direct] =
            direct_descriptors().into_iter().filter(|fd| !others.contains(fd)).collect::<Vec<_>>()[..]
        else {
            eprintln!("skipped: {} has no O_DIRECT", folder.path().display());
            continue;
        };
        if can_drop {
            assert_eq!(cached(), 0, "O_DIRECT passes the page cache by");
        }
        let in_thread = || {
            refuse_reads(direct).inspect(|()| {
                read();
                // SAFETY: reads nothing.
                assert_eq!(unsafe { libc::pread(direct, std::ptr::null_mut(), 0, 0) }, -1);
                assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
                page_cache::drop(&file, 0..LEN as u64).unwrap();
            })
        };
        if let Err(error) = thread::scope(|scope| scope.spawn(in_thread).join().unwrap()) {
            eprintln!("skipped: no filter: {error}");
            return;
        }
        read();
        assert!(!can_drop || cached() > 0, "O_DIRECT is not tried again");
    }
}
