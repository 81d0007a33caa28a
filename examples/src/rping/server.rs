//! The server: the side that answers.

use std::io;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use rdma::cm::blocking::{IncomingConnection, Listener};
use rdma::op;
use rdma::transport::Rc;
use rdma::{Context, ErrorKind, ExposedRegion, RemoteAccess};
use serde_json::json;

use super::session::{Arrival, Nudge, Session};
use super::wire::MESSAGE;
use super::{Advert, LARGEST, Settings, until_nul};
use crate::Failure;
use crate::failure::say;
use crate::waiting::Waiting;
use rdma_collectives::connect::End;

/// Most clients served at the same time; further ones are turned away.
const MOST_CLIENTS: usize = 256;
/// The "go ahead" message.
const GO_AHEAD: [u8; MESSAGE] = [0; MESSAGE];

/// Answers one client until it disconnects; returns the number of pings.
///
/// # Errors
/// If no client comes within `timeout`, or if the client breaks the connection in the middle of a
/// ping or violates the protocol.
pub fn serve_one(
    context: &Context,
    settings: &Settings,
    listener: &Listener<Rc>,
    timeout: Option<Duration>,
) -> Result<u64, Failure> {
    settings.step(format_args!("listening on {}", listener.local_addr()));
    let nobody = || Failure::new(format!("no client came within {} s", timeout.unwrap_or_default().as_secs()));
    let waiting = Waiting::for_peer(format_args!("a client at {}", listener.local_addr()));
    let request = listener.next_request(timeout)?.ok_or_else(nobody)?;
    drop(waiting);
    serve(context, settings, request)
}

/// Answers any number of clients, each in a thread of its own; returns after `clients` of them, if
/// that is given.
///
/// # Errors
/// At the end, the number of clients that did not end well; each was reported on standard error. A
/// shortage of files, memory or threads only turns the client away.
pub fn serve_all(
    context: &Context,
    settings: &Settings,
    listener: &Listener<Rc>,
    clients: Option<u64>,
) -> Result<(), Failure> {
    ClientPool { most: MOST_CLIENTS, start: Builder::spawn }.serve(context, settings, listener, clients)
}

/// The work of a client's thread; returns whether the client ended well.
type Work = Box<dyn FnOnce() -> bool + Send>;

/// Limits of the clients served; further clients are turned away.
struct ClientPool {
    /// Most clients served at the same time.
    most: usize,
    /// Starts a client's thread.
    start: fn(Builder, Work) -> io::Result<JoinHandle<bool>>,
}

impl ClientPool {
    fn serve(
        &self,
        context: &Context,
        settings: &Settings,
        listener: &Listener<Rc>,
        clients: Option<u64>,
    ) -> Result<(), Failure> {
        settings.step(format_args!("listening on {}", listener.local_addr()));
        let mut running: Vec<JoinHandle<bool>> = Vec::new();
        let (mut served, mut failed) = (0u64, 0);
        while clients.is_none_or(|clients| served < clients) {
            // Wakes up every second to join the threads that have ended.
            let request = match listener.next_request(Some(Duration::from_secs(1))) {
                Ok(request) => request,
                // The shortage costs this client its connection; the next one may find resources
                // again.
                Err(error) if is_shortage(error) => {
                    complain(&Failure::from(error).context("a client was turned away"));
                    None
                }
                Err(error) => return Err(error.into()),
            };
            let (ended, still): (Vec<_>, Vec<_>) = running.into_iter().partition(JoinHandle::is_finished);
            running = still;
            failed += ended.into_iter().map(|client| u64::from(!client.join().unwrap_or(false))).sum::<u64>();
            let Some(request) = request else { continue };
            if running.len() >= self.most {
                complain(&Failure::new(format!("a client was turned away, there are {} already", running.len())));
                // Errors are ignored: the client may have gone.
                request.reject(&[]).ok();
                continue;
            }
            let (context, settings) = (context.clone(), settings.clone());
            let work = Box::new(move || {
                let name = request.peer_addr().map_or_else(|| "a client".to_owned(), |address| address.to_string());
                let result = serve(&context, &settings, request);
                if let Err(failure) = &result {
                    complain(&failure.clone().context(name));
                }
                result.is_ok()
            });
            match (self.start)(Builder::new().name(format!("client-{served}")), work) {
                Ok(client) => running.push(client),
                // The request is dropped with its work, which rejects it.
                Err(error) => {
                    complain(&Failure::from(error).context("a client was turned away, there is no thread for it"));
                    continue;
                }
            }
            served += 1;
        }
        for client in running {
            failed += u64::from(!client.join().unwrap_or(false));
        }
        if failed > 0 { Err(Failure::new(format!("{failed} of {served} clients did not end well"))) } else { Ok(()) }
    }
}

/// Whether this process has run out of a resource, perhaps only for a while.
fn is_shortage(error: rdma::Error) -> bool {
    let too_many = |errno| matches!(Errno::from_raw(errno), Errno::EMFILE | Errno::ENFILE);
    error.kind() == ErrorKind::OutOfMemory || error.errno().is_some_and(too_many)
}

fn complain(failure: &Failure) {
    say(&format!("rping: {failure}"));
}

fn serve(context: &Context, settings: &Settings, request: IncomingConnection<Rc>) -> Result<u64, Failure> {
    let client = request.peer_addr().map(|address| address.to_string());
    let how = (&settings.options(), settings.patience());
    let session = Session::open(context, End::Passive(request), "the client", how);
    let mut session = session.map_err(|failure| failure.context("cannot accept the client"))?;
    settings.step(format_args!("connected"));
    // On iWARP the destination of a read must be open to remote writes.
    let text = session.region(LARGEST, RemoteAccess::WRITE)?;
    if context.capabilities().active_side_sends_first {
        session.nudge_by(Nudge::Read(text.slice(..0)?));
    }
    let mut number = 0;
    while answer(settings, &mut session, &text).map_err(|e| e.context(format_args!("ping {number}")))? {
        number += 1;
    }
    settings.step(format_args!("the client has disconnected after {number} pings"));
    session.disconnect();
    settings.report(context, number, json!({ "side": "server", "client": client }))?;
    Ok(number)
}

/// Answers a ping; returns `false` if the client has disconnected instead.
fn answer(settings: &Settings, session: &mut Session, text: &ExposedRegion) -> Result<bool, Failure> {
    let source = match session.next()? {
        Arrival::Message(message) => Advert::from_bytes(message).slice(1, LARGEST)?,
        Arrival::Gone => return Ok(false),
        Arrival::Data => return Err(Failure::new("a transfer of ours has ended, and there was none")),
    };
    let length = usize::try_from(source.len()).unwrap_or(LARGEST).min(LARGEST);
    session.qp.post_send(op::read(text.slice(..length)?, source))?;
    let Arrival::Data = session.next()? else { return Err(out_of_turn()) };
    let mut bytes = vec![0; length];
    text.copy_out(0, &mut bytes)?;
    settings.show("server ping data", &bytes)?;
    session.send(GO_AHEAD)?;

    // Only the text and its NUL go back, not the bytes after them.
    let answer = (until_nul(&bytes).len() + 1).min(length);
    let sink = match session.next()? {
        Arrival::Message(message) => Advert::from_bytes(message).slice(answer, LARGEST)?,
        _ => return Err(out_of_turn()),
    };
    session.qp.post_send(op::write(text.slice(..answer)?, sink))?;
    let Arrival::Data = session.next()? else { return Err(out_of_turn()) };
    session.send(GO_AHEAD)?;
    Ok(true)
}

fn out_of_turn() -> Failure {
    Failure::new("the client has disconnected, or gone on, in the middle of the ping")
}

#[cfg(test)]
mod tests;
