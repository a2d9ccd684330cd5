//! A proxy of HTTP on loopback, which passes on bytes as they are.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The proxy, which stops accepting when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    is_stopped: AtomicBool,
    /// The status of all answers.
    status: Option<u16>,
    /// Bytes of a server that pass at once; others come one by one.
    fast_bytes: Option<u64>,
    heads: Mutex<Vec<String>>,
}

impl Proxy {
    /// Starts a proxy, which refuses each connection with a status if there is one.
    ///
    /// # Panics
    /// If loopback permits no server.
    pub fn new(status: Option<u16>) -> Self {
        Self::start(Shared { status, ..Shared::default() })
    }

    /// Starts a proxy that passes on the first `bytes` bytes of each server connection at once, and then 2,000 a
    /// second, one by one.
    ///
    /// # Panics
    /// If loopback permits no server.
    pub fn slow_after(bytes: u64) -> Self {
        Self::start(Shared { fast_bytes: Some(bytes), ..Shared::default() })
    }

    fn start(shared: Shared) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = listener.local_addr().expect("the address of the port");
        let shared = Arc::new(shared);
        let proxy = Self { address, shared: shared.clone() };
        thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.is_stopped.load(Ordering::Acquire) {
                    return;
                }
                let (Ok(stream), shared) = (stream, shared.clone()) else { continue };
                // A connection that fails is closed, which the test finds.
                thread::spawn(move || shared.serve(stream));
            }
        });
        proxy
    }

    /// Returns the host and the port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the first head of each connection since the last call.
    pub fn heads(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.heads.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Release);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let text = String::from_utf8_lossy(&head).into_owned();
        self.heads.lock().unwrap_or_else(PoisonError::into_inner).push(text.clone());
        if let Some(status) = self.status {
            return write!(stream, "HTTP/1.1 {status} Refused\r\nContent-Length: 0\r\n\r\n");
        }
        let target = text.split(' ').nth(1).unwrap_or_default();
        let to = target.strip_prefix("http://").unwrap_or(target).split('/').next().unwrap_or_default();
        let mut server = TcpStream::connect(to)?;
        if text.starts_with("CONNECT ") {
            stream.write_all(b"HTTP/1.1 200 Connection established\r\nX-Proxy: yes\r\n\r\n")?;
        } else {
            server.write_all(&head)?;
        }
        let (from, into) = (stream.try_clone()?, server.try_clone()?);
        thread::spawn(move || pass_on(from, into, None));
        pass_on(server, stream, self.fast_bytes);
        Ok(())
    }
}

fn pass_on(mut from: TcpStream, mut into: TcpStream, fast_bytes: Option<u64>) {
    let mut pass = || match fast_bytes {
        None => io::copy(&mut from, &mut into).map(|_| ()),
        Some(count) => {
            into.set_nodelay(true)?;
            io::copy(&mut (&from).take(count), &mut into)?;
            BufReader::new(&from).bytes().try_for_each(|byte| {
                thread::sleep(Duration::from_micros(400));
                into.write_all(&[byte?])
            })
        }
    };
    // A failure is an end, too.
    let _ = pass();
    let _ = into.shutdown(Shutdown::Write);
}
