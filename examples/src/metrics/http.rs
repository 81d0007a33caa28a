//! As much of HTTP/1.1 as a scraper needs: one request for each connection, then it is closed.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Time of one client, from its connection to the last byte of the answer.
const CLIENT_TIME: Duration = Duration::from_secs(2);
/// Longest request, with its headers.
const LONGEST_REQUEST: usize = 8 << 10;
/// Time after which a client is accepted that could not be, for lack of files.
const SHORTAGE: Duration = Duration::from_millis(50);
/// The type of the page.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Answers all clients of a listener, for ever. Without a page, the service has ended.
pub(super) fn answer_all(listener: &TcpListener, page: impl Fn() -> Option<String>) {
    loop {
        match listener.accept() {
            // A client that fails is its own matter.
            Ok((stream, _)) => drop(answer(stream, &page)),
            Err(_) => thread::sleep(SHORTAGE),
        }
    }
}

fn answer(mut stream: TcpStream, page: impl Fn() -> Option<String>) -> io::Result<()> {
    let deadline = Instant::now() + CLIENT_TIME;
    let request = match read(&mut stream, deadline) {
        Ok(request) => request,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            write(&mut stream, deadline, &response("431 Request Header Fields Too Large", "", "", true))?;
            return drain(&mut stream, deadline);
        }
        Err(error) => return Err(error),
    };
    write(&mut stream, deadline, &respond(&request, page))
}

/// Reads what a client still sends: closing before would reset the connection, and the client might
/// lose the answer.
fn drain(stream: &mut TcpStream, deadline: Instant) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let mut piece = [0; 1024];
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        if stream.read(&mut piece)? == 0 {
            return Ok(());
        }
    }
}

/// The response to the head of a request.
fn respond(request: &[u8], page: impl Fn() -> Option<String>) -> String {
    let line = request.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let words: Vec<_> = line.trim_end().split(' ').collect();
    let [method, target, version] = words[..] else { return response("400 Bad Request", "", "", true) };
    let path = target.split('?').next().unwrap_or_default();
    match (version.starts_with("HTTP/1."), method, path) {
        (false, ..) => response("400 Bad Request", "", "", true),
        (_, "GET" | "HEAD", "/metrics") => match page() {
            Some(page) => response("200 OK", "", &page, method == "GET"),
            None => response("503 Service Unavailable", "", "the service has ended\n", method == "GET"),
        },
        (_, "GET" | "HEAD", _) => response("404 Not Found", "", "the metrics are at /metrics\n", method == "GET"),
        _ => response("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "", true),
    }
}

fn response(status: &str, header: &str, body: &str, has_body: bool) -> String {
    let (len, sent) = (body.len(), if has_body { body } else { "" });
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {TEXT}\r\nContent-Length: {len}\r\n{header}Connection: close\r\n\r\n{sent}"
    )
}

/// Reads the head of a request.
fn read(stream: &mut TcpStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The end may lie across two pieces.
        let from = request.len().saturating_sub(3);
        request.extend_from_slice(&piece[..count]);
        if request[from..].windows(4).any(|end| end == b"\r\n\r\n") {
            return Ok(request);
        }
        if request.len() >= LONGEST_REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

fn write(stream: &mut TcpStream, deadline: Instant, response: &str) -> io::Result<()> {
    let mut rest = response.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        let count = stream.write(rest)?;
        rest = &rest[count..];
    }
    Ok(())
}

/// The time until the deadline, which is not zero.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &str) -> String {
        let response = respond(request.as_bytes(), || Some("page\n".to_owned()));
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        let is_head = request.starts_with("HEAD");
        assert!(is_head && body.is_empty() || len == body.len().to_string(), "{response}");
        head.lines().next().unwrap().to_owned()
    }

    #[test]
    fn a_request_is_answered_by_its_method_and_its_path() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), "HTTP/1.1 200 OK");
        assert_eq!(status("GET /metrics?name=x HTTP/1.0\r\n\r\n"), "HTTP/1.1 200 OK");
        assert_eq!(status("HEAD /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
        assert_eq!(status("GET /metrics/ HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
        for bad in ["\r\n\r\n", "GET /metrics\r\n\r\n", "GET /metrics SMTP\r\n\r\n", "\u{fffd} \r\n\r\n"] {
            assert_eq!(status(bad), "HTTP/1.1 400 Bad Request", "{bad:?}");
        }
    }

    #[test]
    fn a_request_that_is_too_long_is_answered_although_more_of_it_comes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = thread::spawn(move || answer(listener.accept().unwrap().0, || None));
        let header = ["GET /metrics HTTP/1.1\r\nX: ", &"x".repeat(64 << 10)].concat();
        client.write_all(header.as_bytes()).unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{response}");
        drop(client);
        server.join().unwrap().unwrap();
    }
}
