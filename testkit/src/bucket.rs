//! A server of S3 and Google Cloud Storage on loopback with one bucket that takes objects, whole and in parts, and
//! gives ranges of them, with the faults that a test asks for.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use percent_encoding::percent_decode_str;

use crate::{amazon, google};

/// A step of a client, for which a fault can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Begins an object of several parts.
    Begin,
    /// Sends the part of this number, from 1.
    Part(usize),
    /// Lets the parts appear as an object.
    Complete,
    /// Sends a whole object.
    Put,
    /// Removes the parts of an object.
    Abort,
}

/// The server, which stops accepting when it is dropped.
#[derive(Debug)]
pub struct Bucket {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    is_stopped: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

/// The status of the next `times` answers to a step, after `after` others.
#[derive(Debug)]
struct Fault {
    status: u16,
    after: usize,
    times: usize,
}

#[derive(Debug, Default)]
struct State {
    objects: HashMap<String, Vec<u8>>,
    /// Parts by the number of the upload.
    uploads: BTreeMap<usize, BTreeMap<usize, Vec<u8>>>,
    begun: usize,
    faults: HashMap<Step, Fault>,
    /// The address of redirects.
    location: String,
    steps: Vec<Step>,
    /// Parts that are received at once now, and at most.
    at_once: [usize; 2],
    is_held: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bucket {
    /// Starts a server with an empty bucket.
    ///
    /// # Panics
    /// If loopback permits no server.
    #[expect(clippy::new_without_default, reason = "it starts a server")]
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = listener.local_addr().expect("the address of the port");
        let shared = Arc::new(Shared::default());
        let bucket = Self { address, shared: shared.clone() };
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
        bucket
    }

    /// Returns the environment of a client of S3.
    pub fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "eu-north-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "KEY".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", amazon::SECRET.to_owned()),
        ]
    }

    /// Returns the environment of a client of Google Cloud Storage.
    pub fn google_variables(&self) -> [(&'static str, String); 3] {
        google::variables(&format!("http://{}", self.address))
    }

    /// Returns the object's bytes; the name begins with the bucket's.
    pub fn object(&self, name: &str) -> Option<Vec<u8>> {
        self.shared.state().objects.get(name).cloned()
    }

    /// Returns the names of all objects, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.shared.state().objects.keys().cloned().collect();
        names.sort();
        names
    }

    /// Puts an object.
    pub fn set(&self, name: &str, bytes: Vec<u8>) {
        self.shared.state().objects.insert(name.to_owned(), bytes);
    }

    /// Returns the number of objects that were begun, and neither completed nor aborted.
    pub fn unfinished(&self) -> usize {
        self.shared.state().uploads.len()
    }

    /// Answers a step with this status the next `times` times.
    pub fn fail(&self, step: Step, status: u16, times: usize) {
        self.shared.state().faults.insert(step, Fault { status, after: 0, times });
    }

    /// Answers a step with this status, except for the first times.
    pub fn fail_after(&self, step: Step, after: usize, status: u16) {
        self.shared.state().faults.insert(step, Fault { status, after, times: usize::MAX });
    }

    /// Redirects a step to this address of another server.
    pub fn redirect(&self, step: Step, status: u16, location: String) {
        self.shared.state().location = location;
        self.fail(step, status, usize::MAX);
    }

    /// Holds all parts without an answer.
    pub fn hold(&self, is_held: bool) {
        self.shared.state().is_held = is_held;
        self.shared.changed.notify_all();
    }

    /// Waits until `count` parts are held.
    ///
    /// # Panics
    /// If that takes more than 30 seconds.
    pub fn wait_for_held(&self, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.shared.state().at_once[0] < count {
            assert!(Instant::now() < deadline, "too few parts came");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the steps since the last call.
    pub fn steps(&self) -> Vec<Step> {
        std::mem::take(&mut self.shared.state().steps)
    }

    /// Returns the most parts that were received at once.
    pub fn most_at_once(&self) -> usize {
        self.shared.state().at_once[1]
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Release);
        self.hold(false);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(self.address);
    }
}

struct Request {
    method: String,
    /// The path without the first slash and escapes.
    name: String,
    query: HashMap<String, String>,
    token: Option<String>,
    /// False if an account's signature is wrong.
    is_signed: bool,
    range: Option<(usize, usize)>,
    body: Vec<u8>,
}

impl Shared {
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        while let Some(request) = receive(&mut reader)? {
            if !request.is_signed {
                write!(&stream, "HTTP/1.1 403 Reason\r\nContent-Length: 0\r\n\r\n")?;
                continue;
            }
            if request.method == "GET" && !request.query.contains_key("list-type") {
                self.give(&stream, &request)?;
                continue;
            }
            let (status, more, body) = self.answer(request);
            let len_bytes = body.len();
            let more = match status {
                300..400 => format!("Location: {}\r\n", self.state().location),
                _ => more.to_owned(),
            };
            write!(&stream, "HTTP/1.1 {status} Reason\r\n{more}Content-Length: {len_bytes}\r\n\r\n{body}")?;
        }
        Ok(())
    }

    fn give(&self, mut stream: &TcpStream, request: &Request) -> io::Result<()> {
        let object = self.state().objects.get(&request.name).cloned();
        let (Some(object), Some((first, last))) = (object, request.range) else {
            return stream.write_all(b"HTTP/1.1 404 Reason\r\nContent-Length: 0\r\n\r\n");
        };
        let some = object.get(first..object.len().min(last + 1)).unwrap_or_default();
        write!(
            stream,
            "HTTP/1.1 206 Reason\r\nETag: \"1\"\r\nContent-Range: bytes {first}-{}/{}\r\nContent-Length: {}\r\n\r\n",
            (first + some.len()).saturating_sub(1),
            object.len(),
            some.len()
        )?;
        stream.write_all(some)
    }

    /// Lists the objects of a folder, two at a time.
    fn list(&self, bucket: &str, query: &HashMap<String, String>) -> String {
        let value = |name: &str| {
            let text = query.get(name).map_or("", String::as_str).replace('+', " ");
            percent_decode_str(&text).decode_utf8_lossy().into_owned()
        };
        let (prefix, after) = (format!("{bucket}/{}", value("prefix")), value("continuation-token"));
        let state = self.state();
        let inside = |name: &&String| name.strip_prefix(&prefix).is_some_and(|name| !name.contains('/'));
        let keys = state.objects.keys().filter(inside).map(|name| &name[bucket.len() + 1..]);
        let mut keys: Vec<_> = keys.filter(|key| *key > after.as_str()).collect();
        keys.sort_unstable();
        let token = keys
            .get(2)
            .map_or(String::new(), |_| format!("<NextContinuationToken>{}</NextContinuationToken>", keys[1]));
        let object = |key: &&str| {
            format!(
                "<Contents><Key>{key}</Key><LastModified>2026-11-30T10:00:00.000Z</LastModified><Size>1</Size></Contents>"
            )
        };
        let objects: String = keys.iter().take(2).map(object).collect();
        format!("<ListBucketResult>{objects}{token}</ListBucketResult>")
    }

    fn answer(&self, request: Request) -> (u16, &'static str, String) {
        const ETAG: &str = "ETag: \"1\"\r\n";
        let Request { method, name, query, token, body, .. } = request;
        if token.is_some_and(|token| !google::is_token(&token)) {
            return (401, "", "<Error/>".to_owned());
        }
        if query.contains_key("list-type") {
            return (200, "", self.list(&name, &query));
        }
        let upload = query.get("uploadId").and_then(|number| number.parse::<usize>().ok());
        let part = query.get("partNumber").and_then(|number| number.parse().ok());
        let step = match (method.as_str(), upload, part) {
            ("POST", None, _) if query.contains_key("uploads") => Step::Begin,
            ("PUT", Some(_), Some(part)) => Step::Part(part),
            ("POST", Some(_), _) => Step::Complete,
            ("DELETE", Some(_), _) => Step::Abort,
            ("PUT", None, _) => Step::Put,
            ("DELETE", None, _) => {
                self.state().objects.remove(&name);
                return (204, "", String::new());
            }
            // S3 removes several objects of a bucket at once.
            ("POST", None, _) if query.contains_key("delete") => {
                for key in keys(&String::from_utf8_lossy(&body)) {
                    self.state().objects.remove(&format!("{name}/{key}"));
                }
                return (200, "", "<DeleteResult><Deleted><Key/></Deleted></DeleteResult>".to_owned());
            }
            _ => return (400, "", "<Error/>".to_owned()),
        };
        let mut state = self.state();
        state.steps.push(step);
        if let Some(Fault { after: after @ 1.., .. }) = state.faults.get_mut(&step) {
            *after -= 1;
        } else if let Some(Fault { status, times: left @ 1.., .. }) = state.faults.get_mut(&step) {
            *left -= 1;
            // Real servers show the signature of a request that they refuse.
            let body = "<Error><StringToSign>hidden signature</StringToSign></Error>";
            return (*status, "", body.to_owned());
        }
        if let Step::Part(_) = step {
            state.at_once[0] += 1;
            state.at_once[1] = state.at_once[1].max(state.at_once[0]);
            state =
                self.changed.wait_while(state, |state| state.is_held).unwrap_or_else(PoisonError::into_inner);
            state.at_once[0] -= 1;
        }
        let upload = upload.unwrap_or_default();
        match step {
            Step::Begin => {
                let number = state.begun;
                state.begun += 1;
                state.uploads.insert(number, BTreeMap::new());
                let text = format!(
                    "<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>"
                );
                return (200, "", text);
            }
            Step::Put => {
                state.objects.insert(name, body);
            }
            Step::Part(number) => match state.uploads.get_mut(&upload) {
                Some(parts) => drop(parts.insert(number, body)),
                None => return (404, "", "<Error/>".to_owned()),
            },
            Step::Abort => {
                state.uploads.remove(&upload);
                return (204, "", String::new());
            }
            Step::Complete => {
                let Some(parts) = state.uploads.remove(&upload) else {
                    return (404, "", "<Error/>".to_owned());
                };
                // S3 refuses shorter parts, except the last one.
                let last = parts.len();
                if parts.iter().any(|(number, bytes)| *number < last && bytes.len() < 5 << 20) {
                    return (400, "", "<Error/>".to_owned());
                }
                state.objects.insert(name, parts.into_values().flatten().collect());
                let text =
                    "<CompleteMultipartUploadResult><ETag>\"1\"</ETag></CompleteMultipartUploadResult>";
                return (200, "", text.to_owned());
            }
        }
        (200, ETAG, String::new())
    }
}

fn keys(list: &str) -> impl Iterator<Item = &str> {
    list.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next())
}

fn receive(reader: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(None);
        }
    }
    let mut first = head.split(' ');
    let (method, target) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name.to_owned(), value.to_owned())
    };
    let header = |wanted: &str| {
        let pairs = head.lines().filter_map(|line| line.split_once(": "));
        pairs.filter(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value).next()
    };
    let is_of_s3 = query.contains("X-Amz-Signature=")
        || header("authorization").is_some_and(|value| value.starts_with("AWS4"));
    let is_signed =
        !is_of_s3 || amazon::is_signed(method, target, |name| header(name).unwrap_or_default().to_owned());
    let range = header("range").and_then(|range| range.trim().strip_prefix("bytes=")?.split_once('-'));
    let range = range.and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    let length = header("content-length").and_then(|value| value.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    Ok(Some(Request {
        method: method.to_owned(),
        name: percent_decode_str(path.trim_start_matches('/')).decode_utf8_lossy().into_owned(),
        query: query.split('&').map(pair).collect(),
        token: header("authorization").and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned),
        is_signed,
        range,
        body,
    }))
}
