//! A web server with one object, which answers requests for ranges.

use std::io::{BufRead, BufReader, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// Starts a server that sends these bytes for every path, until the process ends. Returns the address of a model.
pub fn serve(bytes: Vec<u8>) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}/model.safetensors", listener.local_addr()?);
    let bytes = Arc::new(bytes);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let bytes = bytes.clone();
            // A client that is gone ends its connection alone.
            thread::spawn(move || answer(client, &bytes).ok());
        }
    });
    Ok(address)
}

/// Answers the requests of one connection.
fn answer(client: TcpStream, bytes: &[u8]) -> Result<()> {
    let (mut lines, mut client) = (BufReader::new(client.try_clone()?).lines(), client);
    while let Some(request) = lines.next().transpose()? {
        let mut range = None;
        for line in lines.by_ref() {
            let line = line?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            let ends = line.strip_prefix("range: bytes=").and_then(|range| range.split_once('-'));
            range =
                range.or(ends.map(|(start, end)| (start.parse::<usize>().ok(), end.parse::<usize>().ok())));
        }
        let end_of = |end: Option<usize>| end.map_or(bytes.len(), |last| bytes.len().min(last + 1));
        let part = match range {
            Some((Some(start), end)) if start < end_of(end) => start..end_of(end),
            Some((None, Some(last))) => bytes.len().saturating_sub(last)..bytes.len(),
            _ => 0..bytes.len(),
        };
        let status = if range.is_some() { "206 Partial Content" } else { "200 OK" };
        write!(
            client,
            "HTTP/1.1 {status}\r\nETag: \"1\"\r\nAccept-Ranges: bytes\r\nContent-Length: {}\r\n",
            part.len()
        )?;
        if range.is_some() && !part.is_empty() {
            write!(client, "Content-Range: bytes {}-{}/{}\r\n", part.start, part.end - 1, bytes.len())?;
        }
        client.write_all(b"\r\n")?;
        if !request.starts_with("HEAD") {
            client.write_all(&bytes[part])?;
        }
    }
    Ok(())
}
