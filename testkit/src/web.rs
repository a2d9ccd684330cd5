//! A server of HTTP on loopback, with ranges, versions and the faults that a test asks for.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::random::Random;

/// A fault of one answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// This status, and the seconds of `Retry-After`.
    Status(u16, Option<u64>),
    /// The whole object with status 200, in place of a range.
    Whole,
    /// A close after this number of bytes of the body.
    Close(usize),
    /// A reset after this number of bytes of the body.
    Reset(usize),
    /// A close before the answer, after the request.
    HangUp,
    /// A range that begins this number of bytes later, as its header says.
    Shifted(u64),
    /// A right range header, and a length with this number of bytes more.
    Longer(u64),
    /// A right but shorter range.
    Shorter,
    /// No header of the range.
    NoRange,
    /// Another length of the object.
    OtherTotal,
    /// A body said to be compressed.
    Compressed,
    /// The body comes in chunks.
    Chunked,
    /// No length of the body.
    NoLength,
    /// Bytes that are no HTTP.
    Garbage,
    /// An endless head.
    EndlessHead,
    /// An endless head, a byte at a time, with this pause between two.
    SlowHead(Duration),
    /// An endless head, a line at a time, with this pause between two.
    SlowLines(Duration),
    /// Endless interim answers.
    EndlessInterim,
    /// Endless interim answers, with this pause between two.
    SlowInterim(Duration),
    /// No bytes for some time, after a number of bytes of the body.
    Stall(usize, Duration),
    /// A byte at a time, with this pause between two.
    Trickle(Duration),
    /// A number of bytes at a time, with a pause between two.
    Paced(usize, Duration),
    /// The right answer after this time.
    Late(Duration),
    /// A right range of the first byte only.
    OneByte,
    /// An interim answer before the right one.
    Interim,
    /// A redirect to this address.
    Redirect(String),
    /// This answer, as it is.
    Raw(Vec<u8>),
    /// A redirect to the same address after this time.
    SlowRedirect(Duration),
    /// Small pieces, and then a close without a warning.
    Pieces,
}

impl Fault {
    /// Unusual answers that are right.
    pub const RIGHT: [Self; 6] =
        [Self::Shorter, Self::NoLength, Self::Interim, Self::Pieces, Self::Whole, Self::Chunked];

    /// Returns the fault at a random place of such a body, if it has a place.
    pub fn moved(&self, random: &mut Random, len_bytes: usize) -> Self {
        match self {
            Self::Close(_) => Self::Close(random.below(len_bytes)),
            Self::Reset(_) => Self::Reset(random.below(len_bytes)),
            Self::Shifted(_) => Self::Shifted(1 + random.below(len_bytes) as u64),
            other => other.clone(),
        }
    }

    /// Returns faults after which the next try succeeds.
    pub fn passing() -> Vec<Self> {
        let statuses = [408, 429, 500, 502, 503, 504].map(|status| Self::Status(status, None));
        let others = [
            Self::Close(0),
            Self::Close(100),
            Self::Close(20_000),
            Self::Reset(0),
            Self::Reset(20_000),
            Self::HangUp,
            Self::Shifted(1),
            Self::Longer(5),
            Self::NoRange,
            Self::Compressed,
            Self::Garbage,
            Self::EndlessHead,
        ];
        statuses.into_iter().chain(others).collect()
    }
}

/// A request that arrived.
#[derive(Debug, Clone)]
pub struct Request {
    /// The number of the connection, from 0.
    pub connection: usize,
    /// The path and the query.
    pub target: String,
    /// The header lines.
    pub headers: Vec<(String, String)>,
    /// The range that was asked for.
    pub range: Option<Range<u64>>,
    /// True if another request came right behind.
    pub is_followed: bool,
}

impl Request {
    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// The server, which stops when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    certificate: Option<String>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    is_stopped: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    bytes: Arc<Vec<u8>>,
    /// Objects by path, if not all paths have the same one.
    files: Option<HashMap<String, Arc<Vec<u8>>>>,
    headers: String,
    etag: Option<String>,
    ignores_conditions: bool,
    faults: VecDeque<Fault>,
    fault_of_all: Option<Fault>,
    /// Answers after which a connection is closed, and whether the last one says so.
    most_answers: Option<(usize, bool)>,
    open: usize,
    requests: Vec<Request>,
    connections: Vec<TcpStream>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Starts a server that sends these bytes for every path, with the ETag `"1"`.
    ///
    /// # Panics
    /// If loopback permits no server.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self::start(bytes, None)
    }

    /// Starts a server with TLS, for the host `localhost`.
    ///
    /// # Panics
    /// If loopback permits no server.
    pub fn encrypted(bytes: Vec<u8>) -> Self {
        Self::start(bytes, Some(certified()))
    }

    /// Returns the certificate of an encrypted server in PEM.
    ///
    /// # Panics
    /// If the server does not encrypt.
    pub fn certificate(&self) -> &str {
        self.certificate.as_ref().expect("an encrypted server")
    }

    fn start(bytes: Vec<u8>, made: Option<Certified>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = listener.local_addr().expect("the address of the port");
        let shared = Arc::new(Shared::default());
        shared.state().bytes = Arc::new(bytes);
        shared.state().etag = Some("\"1\"".to_owned());
        let certificate = made.as_ref().map(|made| made.cert.pem());
        let config = made.map(|made| Arc::new(encryption(made)));
        let server = Self { address, certificate, shared: shared.clone() };
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                if shared.is_stopped.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                if let Ok(copy) = stream.try_clone() {
                    shared.state().connections.push(copy);
                }
                // Otherwise the last byte of a trickle would wait for the one before.
                let _ = stream.set_nodelay(true);
                let (shared, config) = (shared.clone(), config.clone());
                thread::spawn(move || {
                    let Some(config) = config else { return serve(&shared, stream, number) };
                    let session = rustls::ServerConnection::new(config).expect("a session");
                    serve(&shared, rustls::StreamOwned::new(session, stream), number);
                });
            }
        });
        server
    }

    /// Returns the host and the port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of an object.
    pub fn url(&self, path: &str) -> String {
        match self.certificate {
            Some(_) => format!("https://localhost:{}{path}", self.address.port()),
            None => format!("http://{}{path}", self.address),
        }
    }

    /// Sends these objects by path, and no others.
    pub fn set_files(&self, files: impl IntoIterator<Item = (String, Vec<u8>)>) {
        let files = files.into_iter().map(|(path, bytes)| (path, Arc::new(bytes)));
        self.shared.state().files = Some(files.collect());
    }

    /// Replaces the object.
    pub fn set(&self, bytes: Vec<u8>, etag: Option<&str>) {
        let mut state = self.shared.state();
        (state.bytes, state.etag) = (Arc::new(bytes), etag.map(str::to_owned));
    }

    /// Sends these header lines, each with its end, in each answer.
    pub fn set_headers(&self, lines: &str) {
        self.shared.state().headers = lines.to_owned();
    }

    /// Sends the object whatever version was asked for.
    pub fn ignore_conditions(&self) {
        self.shared.state().ignores_conditions = true;
    }

    /// Gives the next answers one fault each.
    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.shared.state().faults.extend(faults);
    }

    /// Gives this fault to all answers without one of their own.
    pub fn fail_always(&self, fault: Option<Fault>) {
        self.shared.state().fault_of_all = fault;
    }

    /// Closes each connection after this number of answers. The last one announces it if `is_polite`.
    pub fn close_after(&self, answers: usize, is_polite: bool) {
        self.shared.state().most_answers = Some((answers, is_polite));
    }

    /// Returns the number of open connections.
    pub fn open_connections(&self) -> usize {
        self.shared.state().open
    }

    /// Forgets faults that no answer had, and returns their number.
    pub fn forget_faults(&self) -> usize {
        let mut state = self.shared.state();
        state.fault_of_all = None;
        let count = state.faults.len();
        state.faults.clear();
        count
    }

    /// Returns the requests since the last call.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.shared.state().requests)
    }

    /// Closes all connections, as a server that restarts.
    pub fn close_connections(&self) {
        for stream in self.shared.state().connections.drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Release);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(self.address);
        self.close_connections();
    }
}

pub(crate) type Certified = rcgen::CertifiedKey<rcgen::KeyPair>;

pub(crate) fn certified() -> Certified {
    rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate")
}

/// Returns a new certificate for `localhost` and its key in PEM, for another server.
///
/// # Panics
/// If there are no random numbers.
pub fn certificate() -> (String, String) {
    let made = certified();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

pub(crate) fn encryption(made: Certified) -> rustls::ServerConfig {
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the usual versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .expect("a certificate with its key")
}

trait Wire: Read + Write {
    fn tcp(&self) -> &TcpStream;
}

impl Wire for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Wire for rustls::StreamOwned<rustls::ServerConnection, TcpStream> {
    fn tcp(&self) -> &TcpStream {
        &self.sock
    }
}

fn serve(shared: &Shared, mut stream: impl Wire, connection: usize) {
    shared.state().open += 1;
    let mut received = Vec::new();
    let mut answers = 0;
    while let Some(request) = receive(&mut stream, &mut received, connection) {
        answers += 1;
        let most = shared.state().most_answers;
        let is_last = most.is_some_and(|(most, _)| answers == most);
        let says_so = is_last && most.is_some_and(|(_, is_polite)| is_polite);
        if !matches!(answer(shared, &mut stream, request, says_so), Ok(true)) || is_last {
            break;
        }
    }
    shared.state().open -= 1;
    let _ = stream.tcp().shutdown(std::net::Shutdown::Both);
}

fn receive(stream: &mut impl Wire, received: &mut Vec<u8>, connection: usize) -> Option<Request> {
    const END: &[u8] = b"\r\n\r\n";
    let end = loop {
        if let Some(end) = received.windows(END.len()).position(|window| window == END) {
            break end;
        }
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(count @ 1..) => received.extend_from_slice(&bytes[..count]),
            _ => return None,
        }
    };
    let head = String::from_utf8_lossy(&received[..end]).into_owned();
    received.drain(..end + END.len());
    let (first, lines) = head.split_once("\r\n").unwrap_or((&head, ""));
    let target = first.strip_prefix("GET ")?.strip_suffix(" HTTP/1.1")?.to_owned();
    let headers: Vec<(String, String)> = lines
        .split("\r\n")
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut request = Request { connection, target, headers, range: None, is_followed: !received.is_empty() };
    let range = request.header("Range").and_then(|range| {
        let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some(first.parse().ok()?..last.parse::<u64>().ok()? + 1)
    });
    request.range = range;
    Some(request)
}

/// Returns whether the connection stays.
fn answer<W: Wire>(shared: &Shared, stream: &mut W, request: Request, is_last: bool) -> io::Result<bool> {
    let (bytes, etag, fault, ignores_conditions, mut more) = {
        let mut state = shared.state();
        state.requests.push(request.clone());
        let fault = state.faults.pop_front().or_else(|| state.fault_of_all.clone());
        let path = request.target.split('?').next().unwrap_or_default();
        let bytes = match &state.files {
            Some(files) => files.get(path).cloned(),
            None => Some(state.bytes.clone()),
        };
        (bytes, state.etag.clone(), fault, state.ignores_conditions, state.headers.clone())
    };
    if let Some(etag) = &etag {
        let _ = write!(more, "ETag: {etag}\r\n");
    }
    if is_last {
        more += "Connection: close\r\n";
    }
    let Some(bytes) = bytes else {
        write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
        return Ok(true);
    };
    let total = bytes.len() as u64;
    let is_other = request.header("If-Match").is_some_and(|wanted| Some(wanted) != etag.as_deref());
    let range = request.range.clone().map(|range| range.start..range.end.min(total));
    let status = |stream: &mut W, status: u16, more: &str| {
        let body = "<Error/>";
        let len_bytes = body.len();
        write!(stream, "HTTP/1.1 {status} Reason\r\n{more}Content-Length: {len_bytes}\r\n\r\n{body}")?;
        Ok(true)
    };
    match &fault {
        Some(Fault::Status(code, retry_after)) => {
            let wait = retry_after.map_or_else(String::new, |wait| format!("Retry-After: {wait}\r\n"));
            return status(stream, *code, &wait);
        }
        Some(Fault::SlowRedirect(time)) => {
            thread::sleep(*time);
            return status(stream, 307, &format!("Location: {}\r\n", request.target));
        }
        Some(Fault::Late(time)) => thread::sleep(*time),
        Some(Fault::Raw(answer)) => {
            stream.write_all(answer)?;
            return Ok(true);
        }
        Some(Fault::Redirect(to)) => return status(stream, 302, &format!("Location: {to}\r\n")),
        Some(Fault::HangUp) => return Ok(false),
        Some(Fault::Garbage) => return stream.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n").map(|()| false),
        Some(Fault::EndlessHead) => {
            stream.write_all(b"HTTP/1.1 206 Partial Content\r\n")?;
            loop {
                stream.write_all(format!("X-More: {}\r\n", "x".repeat(1000)).as_bytes())?;
            }
        }
        Some(Fault::SlowHead(time)) => {
            stream.write_all(b"HTTP/1.1 206 ")?;
            loop {
                stream.write_all(b"x")?;
                thread::sleep(*time);
            }
        }
        Some(Fault::SlowLines(time)) => {
            stream.write_all(b"HTTP/1.1 206 Partial Content\r\n")?;
            loop {
                stream.write_all(b"X-More: x\r\n")?;
                thread::sleep(*time);
            }
        }
        Some(Fault::SlowInterim(time)) => loop {
            stream.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n")?;
            thread::sleep(*time);
        },
        Some(Fault::EndlessInterim) => loop {
            stream.write_all(&b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(50))?;
        },
        Some(Fault::Interim) => stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")?,
        _ if is_other && !ignores_conditions => return status(stream, 412, ""),
        _ => {}
    }
    let range = match range {
        Some(range) if fault != Some(Fault::Whole) => range,
        _ => {
            write!(stream, "HTTP/1.1 200 OK\r\n{more}Content-Length: {total}\r\n\r\n")?;
            stream.write_all(&bytes)?;
            return Ok(true);
        }
    };
    if range.is_empty() {
        return status(stream, 416, &format!("{more}Content-Range: bytes */{total}\r\n"));
    }
    partial(stream, &bytes, range, &more, fault.as_ref())
}

/// Returns whether the connection stays.
fn partial(
    stream: &mut impl Wire,
    bytes: &[u8],
    range: Range<u64>,
    more: &str,
    fault: Option<&Fault>,
) -> io::Result<bool> {
    let total = bytes.len() as u64;
    let range = match fault {
        Some(Fault::Shifted(by)) => range.start.saturating_add(*by).min(total - 1)..total.min(range.end + by),
        Some(Fault::OneByte) => range.start..range.start + 1,
        Some(Fault::Shorter) => range.start..range.start + (range.end - range.start).div_ceil(2),
        _ => range,
    };
    let body = &bytes[range.start as usize..range.end as usize];
    let mut head = format!("HTTP/1.1 206 Partial Content\r\n{more}");
    let (first, last) = (range.start, range.end - 1);
    let _ = match fault {
        Some(Fault::NoRange) => Ok(()),
        Some(Fault::OtherTotal) => write!(head, "Content-Range: bytes {first}-{last}/{}\r\n", total + 1),
        _ => write!(head, "Content-Range: bytes {first}-{last}/{total}\r\n"),
    };
    let len_bytes = match fault {
        Some(Fault::Longer(by)) => body.len() as u64 + by,
        _ => body.len() as u64,
    };
    head += &match fault {
        Some(Fault::Chunked) => "Transfer-Encoding: chunked\r\n".to_owned(),
        Some(Fault::NoLength) => String::new(),
        Some(Fault::Compressed) => format!("Content-Encoding: gzip\r\nContent-Length: {len_bytes}\r\n"),
        _ => format!("Content-Length: {len_bytes}\r\n"),
    };
    head += "\r\n";
    stream.write_all(head.as_bytes())?;
    let first_of = |count: usize| &body[..count.min(body.len())];
    match fault {
        Some(Fault::Close(after)) => stream.write_all(first_of(*after)).map(|()| false),
        Some(Fault::Reset(after)) => {
            stream.write_all(first_of(*after))?;
            reset(stream.tcp());
            Ok(false)
        }
        Some(Fault::Stall(after, time)) => {
            stream.write_all(first_of(*after))?;
            let end = Instant::now() + *time;
            while Instant::now() < end && !is_closed(stream.tcp()) {
                thread::sleep(Duration::from_millis(1));
            }
            Ok(false)
        }
        Some(Fault::Trickle(time)) => paced(stream, body, 1, *time),
        Some(Fault::Paced(count, time)) => paced(stream, body, *count, *time),
        Some(Fault::Chunked) => {
            write!(stream, "{:x}\r\n", body.len())?;
            stream.write_all(body)?;
            stream.write_all(b"\r\n0\r\n\r\n").map(|()| true)
        }
        Some(Fault::Pieces) => {
            for piece in body.chunks(body.len().div_ceil(7).max(1)) {
                stream.write_all(piece)?;
                thread::yield_now();
            }
            Ok(false)
        }
        Some(Fault::NoLength) => stream.write_all(body).map(|()| false),
        _ => stream.write_all(body).map(|()| true),
    }
}

fn paced(stream: &mut impl Wire, body: &[u8], count: usize, time: Duration) -> io::Result<bool> {
    for piece in body.chunks(count) {
        stream.write_all(piece)?;
        thread::sleep(time);
    }
    Ok(true)
}

fn is_closed(stream: &TcpStream) -> bool {
    let mut byte = 0_u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: `byte` outlives the call.
    let count = unsafe { libc::recv(stream.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
    count == 0 || count < 0 && io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock
}

fn reset(stream: &TcpStream) {
    let now = libc::linger { l_onoff: 1, l_linger: 0 };
    let len_bytes = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: `now` outlives the call, which reads as many bytes.
    unsafe {
        let option = (&raw const now).cast();
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, option, len_bytes);
    }
}
