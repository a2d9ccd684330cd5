use std::io;

/// Returns whether these are the 16 hexadecimal digits of a number from [`random`].
pub(super) fn is_random(digits: &[u8]) -> bool {
    digits.len() == 16 && digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns a random number from the kernel. Forked processes get different ones.
pub(super) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // By its number: the function is in glibc 2.25 and newer only.
    // SAFETY: the kernel writes as many bytes as the array has.
    let got = unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
    match got {
        8 => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(io::Error::last_os_error()),
    }
}
