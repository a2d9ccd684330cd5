//! The addresses of the network interfaces.

use std::ffi::CStr;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr;

pub fn all() -> Vec<(String, String)> {
    let mut first = ptr::null_mut();
    // SAFETY: the call writes the pointer to a list that it allocates.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return vec![];
    }
    let (mut found, mut next) = (Vec::new(), first);
    while !next.is_null() {
        // SAFETY: the list is valid until it is freed below, and each entry has a terminated name.
        let (entry, name) = unsafe { (&*next, CStr::from_ptr((*next).ifa_name)) };
        // SAFETY: `getifaddrs` returns a whole address of its family, or a null pointer.
        if let Some(address) = unsafe { address(entry.ifa_addr) } {
            found.push((name.to_string_lossy().into_owned(), address));
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list comes from `getifaddrs`, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// Returns the text of an address of IPv4 or IPv6.
///
/// # Safety
/// The pointer is null or leads to a whole address of its family.
unsafe fn address(address: *const libc::sockaddr) -> Option<String> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller promises an address, of which each kind begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: an address of this family.
            let raw = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr)).to_string())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family.
            let raw = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(raw.sin6_addr.s6_addr).to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_one_of_ip() {
        for (interface, address) in all() {
            assert!(
                !interface.is_empty() && address.parse::<std::net::IpAddr>().is_ok(),
                "{interface} {address}"
            );
        }
        // SAFETY: a null pointer is permitted.
        assert_eq!(unsafe { address(ptr::null()) }, None);
    }
}
