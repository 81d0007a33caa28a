//! The exchange of addresses over TCP, from either side.
//!
//! The client sends its addresses first, and the server answers when it is ready to receive. The
//! client's last message confirms the answer; after it both sides close. Most C programs read each
//! message with a single call, so each is written with one.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use socket2::Socket;

use super::wire::{self, Address, DONE, Quoted};
use crate::Failure;
use crate::waiting::Waiting;
use rdma_collectives::bootstrap::{self, Until, is_timeout};

/// Advice about an option that users of the C program forget.
const GID_HINT: &str = "on RoCE, the C program needs -g with the index of its GID";

/// The server's half: waits for one client, lets `connect` take its addresses, and only then sends
/// this side's lines.
pub(super) fn serve<T>(
    listener: &Socket,
    own: &[u8],
    timeout: Duration,
    connect: impl FnOnce(&[Address]) -> Result<T, Failure>,
) -> Result<(T, Vec<Address>), Failure> {
    let deadline = Instant::now() + timeout;
    let at = listener.local_addr()?.as_socket().map_or_else(String::new, |address| format!(" at {address}"));
    let waiting = Waiting::for_peer(format_args!("a client{at}"));
    let (stream, who) = accept(listener, deadline, timeout)?;
    drop(waiting);
    let remote = receive_addresses(&stream, own.len(), deadline, &who, "")?;
    let connected = connect(&remote)?;
    send(&stream, own, deadline).map_err(|error| gone(&who, &error))?;
    let mut word = [0; DONE.len()];
    Until(&stream, deadline).read_exact(&mut word).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Failure::lost(format!("{who} left when it had heard our address; its message says why ({GID_HINT})"))
        }
        _ => gone(&who, &error),
    })?;
    if word != DONE {
        return Err(Failure::new(format!(
            "{who} is no pingpong of rdma-core, or ibv_srq_pingpong, which needs --srq: it ended with {:?}",
            Quoted(&word)
        )));
    }
    Ok((connected, remote))
}

/// The client's half: sends this side's lines to the server and returns the server's addresses. The
/// server can receive by then.
pub(super) fn join(address: &str, own: &[u8], timeout: Duration) -> Result<Vec<Address>, Failure> {
    let deadline = Instant::now() + timeout;
    let _waiting = Waiting::for_peer(address);
    let stream = bootstrap::connect(address, "the server", timeout)?;
    let who = format!("the server at {address}");
    stream.set_tcp_nodelay(true).ok();
    send(&stream, own, deadline).map_err(|error| gone(&who, &error))?;
    let hint = format!("; its message says why ({GID_HINT})");
    let remote = receive_addresses(&stream, own.len(), deadline, &who, &hint)?;
    send(&stream, &DONE, deadline).map_err(|error| gone(&who, &error))?;
    Ok(remote)
}

/// Accepts the next connection; also returns the name of its other side for messages.
fn accept(listener: &Socket, deadline: Instant, timeout: Duration) -> Result<(Socket, String), Failure> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, from)) => {
                stream.set_nonblocking(false)?;
                let at = from.as_socket().map_or_else(String::new, |from| format!(" at {from}"));
                return Ok((stream, format!("the client{at}")));
            }
            Err(error) if is_timeout(&error) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::from(error).context("cannot accept the client's connection")),
        }
        if Instant::now() >= deadline {
            let seconds = timeout.as_secs();
            return Err(Failure::new(format!(
                "no client came within {seconds} s; start the C program, or pingpong --compat, with this host's address"
            )));
        }
    }
}

/// Receives the peer's lines, which have `due` bytes together, as this side's have.
fn receive_addresses(
    stream: &Socket,
    due: usize,
    deadline: Instant,
    who: &str,
    hint: &str,
) -> Result<Vec<Address>, Failure> {
    let mut lines = vec![0; due];
    let mut have = 0;
    let mut input = Until(stream, deadline);
    while have < due {
        match input.read(&mut lines[have..]) {
            Ok(0) if have == 0 => {
                return Err(Failure::lost(format!("{who} closed the connection and sent no address{hint}")));
            }
            Ok(0) => {
                return Err(Failure::new(format!(
                    "{who} is no pingpong of rdma-core: it sent {:?}, {have} bytes where {due} are due",
                    Quoted(&lines[..have])
                )));
            }
            Ok(more) => have += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) && have > 0 => {
                return Err(Failure::new(format!(
                    "{who} has sent {have} bytes where {due} are due: is it another program? \
                     ibv_srq_pingpong needs --srq, and the others need to be without it"
                )));
            }
            Err(error) => return Err(gone(who, &error)),
        }
    }
    wire::from_lines(&lines).map_err(|why| Failure::new(format!("{who} is no pingpong of rdma-core: {why}")))
}

fn send(mut stream: &Socket, bytes: &[u8], deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    stream.set_write_timeout(Some(left))?;
    stream.write_all(bytes)
}

fn gone(who: &str, error: &io::Error) -> Failure {
    match error.kind() {
        _ if is_timeout(error) => {
            Failure::new(format!("{who} says nothing: is it the C program, or pingpong --compat?"))
        }
        _ => Failure::lost(format!("{who} has gone: {error}")),
    }
}

#[cfg(test)]
mod tests;
