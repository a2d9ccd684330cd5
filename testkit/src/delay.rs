//! A proxy of TCP on loopback that stands for a long link: it passes on all bytes, each some time after it came.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

const MOST_AT_ONCE: usize = 256 << 10;

/// A link, which stops accepting when it is dropped.
///
/// The delay is that of a long way and not of a slow one: bytes do not wait for those before them. A window bounds what is on
/// its way, as in TCP: a connection carries a window in each round trip.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    is_stopped: Arc<AtomicBool>,
}

struct Piece {
    at: Instant,
    bytes: Vec<u8>,
}

impl Link {
    /// Starts a link to a server. Bytes and their acknowledgements take half of the round trip each. At most `window` bytes
    /// of a connection are on their way in each direction, or any number.
    ///
    /// # Panics
    /// If loopback permits no server.
    pub fn new(to: SocketAddr, round_trip: Duration, window: Option<usize>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = listener.local_addr().expect("the address of the port");
        let is_stopped = Arc::new(AtomicBool::new(false));
        let link = Self { address, is_stopped: is_stopped.clone() };
        thread::spawn(move || {
            for stream in listener.incoming() {
                if is_stopped.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                // A connection that fails is closed, which the test finds.
                thread::spawn(move || serve(stream, to, round_trip, window));
            }
        });
        link
    }

    /// Returns the host and the port that stand for those of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a server's address with this link on the way.
    ///
    /// # Panics
    /// If the text is no address with a host.
    pub fn url(&self, url: &str) -> String {
        let (scheme, rest) = url.split_once("://").expect("an address");
        let path = rest.find('/').map_or("", |at| &rest[at..]);
        format!("{scheme}://{}{path}", self.address)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Release);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(client: TcpStream, to: SocketAddr, round_trip: Duration, window: Option<usize>) -> io::Result<()> {
    // The client's request would follow the answer to its first packet.
    thread::sleep(round_trip);
    let server = TcpStream::connect(to)?;
    let (from, into) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || pass_on(from, into, round_trip, window));
    pass_on(server, client, round_trip, window);
    Ok(())
}

fn pass_on(mut from: TcpStream, into: TcpStream, round_trip: Duration, window: Option<usize>) {
    let (pieces, arriving) = channel();
    let (acknowledge, acknowledged) = channel();
    // Without it, the kernel would add a delay.
    let _ = into.set_nodelay(true);
    let writer = thread::spawn(move || deliver(into, &arriving, &acknowledge, round_trip / 2));
    let piece_bytes = window.map_or(MOST_AT_ONCE, |window| (window / 4).clamp(1, MOST_AT_ONCE));
    let mut on_way = 0;
    let mut buffer = vec![0; piece_bytes];
    loop {
        while window.is_some_and(|window| on_way > 0 && on_way + piece_bytes > window) {
            let Ok((at, count)) = acknowledged.recv() else { break };
            wait_until(at);
            on_way -= count;
        }
        let Ok(count @ 1..) = from.read(&mut buffer) else { break };
        let piece = Piece { at: Instant::now() + round_trip / 2, bytes: buffer[..count].to_vec() };
        if pieces.send(piece).is_err() {
            break;
        }
        on_way += count;
    }
    drop(pieces);
    let _ = writer.join();
    // The sender learns that nobody receives its bytes any more.
    let _ = from.shutdown(Shutdown::Read);
}

fn deliver(
    mut into: TcpStream,
    arriving: &Receiver<Piece>,
    acknowledge: &Sender<(Instant, usize)>,
    delay: Duration,
) {
    for Piece { at, bytes } in arriving {
        wait_until(at);
        if into.write_all(&bytes).is_err() {
            // Ends the thread that reads for this one.
            let _ = into.shutdown(Shutdown::Both);
            return;
        }
        // The reader may need no more acknowledgements.
        let _ = acknowledge.send((Instant::now() + delay, bytes.len()));
    }
    let _ = into.shutdown(Shutdown::Write);
}

fn wait_until(at: Instant) {
    thread::sleep(at.saturating_duration_since(Instant::now()));
}
