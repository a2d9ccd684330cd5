//! A server of HTTP/2 with TLS on loopback, which passes each request on to a [`Server`] of HTTP/1.1, with its faults.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use crate::web::{Server, certified, encryption};

/// The time for which a connection that is to be closed goes on.
const MOMENT: Duration = Duration::from_millis(20);

/// The most bytes of a part of a body.
const PART_BYTES: usize = 20_000;

/// The choices of a gateway.
#[derive(Debug, Clone, Copy, Default)]
pub struct Choices {
    /// The most requests of a connection at a time.
    pub most_open: Option<u32>,
    /// The number of requests after which a connection takes no more, as it says.
    pub most_requests: Option<usize>,
    /// The number of requests after which a connection is closed without a word, a moment later.
    pub closes_after: Option<usize>,
    /// True if an empty part ends each body.
    pub ends_separately: bool,
}

/// The gateway. It stops when it is dropped.
#[derive(Debug)]
pub struct Gateway {
    port: u16,
    certificate: String,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    behind: SocketAddr,
    choices: Choices,
    connections: AtomicUsize,
    most_open: AtomicUsize,
}

impl Gateway {
    /// Starts a gateway to a server without TLS.
    ///
    /// # Panics
    /// If loopback permits no server.
    pub fn new(server: &Server, choices: Choices) -> Self {
        let made = certified();
        let certificate = made.cert.pem();
        let mut config = encryption(made);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port of loopback");
        let port = listener.local_addr().expect("the address of the port").port();
        let (connections, most_open) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let shared = Arc::new(Shared { behind: server.address(), choices, connections, most_open });
        let (stop, stopped) = oneshot::channel();
        let accept = accept(listener, acceptor, shared.clone());
        let thread = thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept => {}
                    _ = stopped => {}
                }
            });
        });
        Self { port, certificate, shared, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns the address of an object.
    pub fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.port)
    }

    /// Returns the certificate in the format PEM.
    pub fn certificate(&self) -> &[u8] {
        self.certificate.as_bytes()
    }

    /// Returns the number of connections that were made.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Returns the most requests of a connection that were open at a time.
    pub fn most_open(&self) -> usize {
        self.shared.most_open.load(Ordering::Relaxed)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the gateway has failed the test already.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, shared) = (acceptor.clone(), shared.clone());
        // Clients that break off are none of the gateway's failures.
        tokio::spawn(async move { serve(stream, acceptor, shared).await.ok() });
    }
}

/// Answers the requests of a connection.
async fn serve(stream: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) -> Result<(), h2::Error> {
    let _ = stream.set_nodelay(true);
    let Ok(stream) = acceptor.accept(stream).await else { return Ok(()) };
    shared.connections.fetch_add(1, Ordering::Relaxed);
    let mut builder = h2::server::Builder::new();
    if let Some(most) = shared.choices.most_open {
        builder.max_concurrent_streams(most);
    }
    let mut connection = builder.handshake(stream).await?;
    let (mut requests, open) = (0, Arc::new(AtomicUsize::new(0)));
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        requests += 1;
        tokio::spawn(answer(request, respond, open.clone(), shared.clone()));
        if shared.choices.closes_after == Some(requests) {
            // Meanwhile, answers are sent.
            let more = async { while connection.accept().await.is_some() {} };
            let _ = tokio::time::timeout(MOMENT, more).await;
            return Ok(());
        }
        if shared.choices.most_requests == Some(requests) {
            connection.graceful_shutdown();
        }
    }
    Ok(())
}

/// Answers one request.
async fn answer(
    request: http::Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    open: Arc<AtomicUsize>,
    shared: Arc<Shared>,
) {
    let count = open.fetch_add(1, Ordering::Relaxed) + 1;
    shared.most_open.fetch_max(count, Ordering::Relaxed);
    match ask(&request, shared.behind).await {
        None => respond.send_reset(Reason::INTERNAL_ERROR),
        Some(Answer { head, stream, early }) => {
            if let Ok(mut body) = respond.send_response(head, false)
                && pass_on(stream, early, &mut body, shared.choices).await.is_none()
            {
                body.send_reset(Reason::INTERNAL_ERROR);
            }
        }
    }
    open.fetch_sub(1, Ordering::Relaxed);
}

/// The start of an answer.
struct Answer {
    head: http::Response<()>,
    /// The rest of the body.
    stream: tokio::io::Take<TcpStream>,
    /// The bytes of the body that came with the head.
    early: Vec<u8>,
}

/// Passes a request on. Returns `None` if no answer comes that HTTP/2 can have.
async fn ask(request: &http::Request<RecvStream>, behind: SocketAddr) -> Option<Answer> {
    let mut stream = TcpStream::connect(behind).await.ok()?;
    let target = request.uri().path_and_query()?.as_str();
    let mut text = format!("GET {target} HTTP/1.1\r\n");
    for (name, value) in request.headers() {
        text += &format!("{name}: {}\r\n", value.to_str().ok()?);
    }
    stream.write_all((text + "\r\n").as_bytes()).await.ok()?;
    let mut received = Vec::new();
    loop {
        let mut lines = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Response::new(&mut lines);
        if let httparse::Status::Complete(len_bytes) = head.parse(&received).ok()? {
            let status = head.code?;
            if status < 200 {
                received.drain(..len_bytes);
                continue;
            }
            let mut response = http::Response::builder().status(status);
            for line in head.headers.iter() {
                match line.name.to_ascii_lowercase().as_str() {
                    "connection" => {}
                    "transfer-encoding" => return None,
                    name => response = response.header(name, line.value),
                }
            }
            let head = response.body(()).ok()?;
            let early = received.split_off(len_bytes);
            let length =
                head.headers().get("content-length").map(|length| length.to_str().ok()?.parse().ok());
            let left = length.map_or(Some(u64::MAX), |length: Option<u64>| length)?;
            return Some(Answer {
                head,
                stream: stream.take(left.saturating_sub(early.len() as u64)),
                early,
            });
        }
        if received.len() > 64 << 10 || stream.read_buf(&mut received).await.ok()? == 0 {
            return None;
        }
    }
}

/// Passes a body on. Returns `None` if it ends too early.
async fn pass_on(
    mut stream: tokio::io::Take<TcpStream>,
    mut part: Vec<u8>,
    body: &mut SendStream<Bytes>,
    choices: Choices,
) -> Option<()> {
    let has_end = stream.limit() < u64::MAX / 2;
    loop {
        let is_last = has_end && stream.limit() == 0;
        let ends = is_last && !choices.ends_separately;
        body.send_data(std::mem::take(&mut part).into(), ends).ok()?;
        if is_last {
            break;
        }
        part.reserve(PART_BYTES);
        if stream.read_buf(&mut part).await.ok()? == 0 {
            if has_end {
                return None;
            }
            break;
        }
    }
    if !has_end || choices.ends_separately {
        body.send_data(Bytes::new(), true).ok()?;
    }
    Some(())
}
