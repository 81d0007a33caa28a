//! The side that answers.

use std::io::{self, Write};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use rdma::cm::blocking::{IncomingConnection, Listener};
use rdma::op::{Read, Write as RdmaWrite};
use rdma::{Context, ErrorKind, ExposedRegion, Rc, RemoteAccess};

use super::session::{Arrival, Session, Unconnected};
use super::wire::MESSAGE;
use super::{Advert, LARGEST, Settings, until_nul};
use crate::Failure;

/// Clients that are served at the same time; others are turned away.
const MOST_CLIENTS: usize = 256;
/// What "go ahead" looks like.
const GO_AHEAD: [u8; MESSAGE] = [0; MESSAGE];

/// Answers one client until it disconnects; says how many pings there were.
///
/// # Errors
/// Where none comes in time, if there is one; where the client breaks the connection in the middle of a ping, or the rules.
pub fn serve_one(
    context: &Context,
    settings: &Settings,
    listener: &Listener<Rc>,
    timeout: Option<Duration>,
) -> Result<u64, Failure> {
    settings.step(format_args!("listening on {}", listener.local_addr()));
    let nobody = || Failure::new(format!("no client came within {} s", timeout.unwrap_or_default().as_secs()));
    let request = listener.next_request(timeout)?.ok_or_else(nobody)?;
    serve(context, settings, request)
}

/// Answers any number of clients, each in a thread of its own; returns after `clients` of them, if that is given.
///
/// # Errors
/// At the end, how many clients did not end well: each has been told of on standard error. Where there are no more files, memory or
/// threads for a client, that client is turned away.
pub fn serve_all(
    context: &Context,
    settings: &Settings,
    listener: &Listener<Rc>,
    clients: Option<u64>,
) -> Result<(), Failure> {
    settings.step(format_args!("listening on {}", listener.local_addr()));
    let mut running: Vec<JoinHandle<bool>> = Vec::new();
    let (mut served, mut failed) = (0u64, 0);
    while clients.is_none_or(|clients| served < clients) {
        // Now and then, to forget who has ended.
        let request = match listener.next_request(Some(Duration::from_secs(1))) {
            Ok(request) => request,
            // It was this client's; there is room again for the next one when another has gone.
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
        if running.len() >= MOST_CLIENTS {
            // The client may have gone.
            request.reject(&[]).ok();
            continue;
        }
        let (context, settings) = (context.clone(), settings.clone());
        let client = std::thread::Builder::new().name(format!("client-{served}")).spawn(move || {
            let name = request.peer_addr().map_or_else(|| "a client".to_owned(), |address| address.to_string());
            let result = serve(&context, &settings, request);
            if let Err(failure) = &result {
                complain(&failure.clone().context(name));
            }
            result.is_ok()
        });
        match client {
            Ok(client) => running.push(client),
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

/// Whether this process has too much of something, which may be over soon.
fn is_shortage(error: rdma::Error) -> bool {
    let too_many = |errno| matches!(Errno::from_raw(errno), Errno::EMFILE | Errno::ENFILE);
    error.kind() == ErrorKind::OutOfMemory || error.errno().is_some_and(too_many)
}

fn complain(failure: &Failure) {
    // Nobody has to read standard error.
    drop(writeln!(io::stderr(), "rping: {failure}"));
}

fn serve(context: &Context, settings: &Settings, request: IncomingConnection<Rc>) -> Result<u64, Failure> {
    let access = RemoteAccess::READ | RemoteAccess::WRITE;
    let unconnected = Unconnected::new(context, |qp| Ok(request.init_with(qp, access)?))?;
    // On iWARP what a read fills has to be open to writes.
    let text = unconnected.region(LARGEST, RemoteAccess::WRITE)?;
    let (qp, rest) = unconnected.split();
    let accepted = request.accept(qp, &settings.options(), settings.patience);
    let (connection, qp) = accepted.map_err(|e| Failure::from(e.error).context("cannot accept the client"))?;
    settings.step(format_args!("connected"));
    let mut session = Session::new(connection, qp, rest, "the client", settings.patience);
    let mut number = 0;
    while answer(settings, &mut session, &text).map_err(|e| e.context(format_args!("ping {number}")))? {
        number += 1;
    }
    settings.step(format_args!("the client has disconnected after {number} pings"));
    session.disconnect();
    Ok(number)
}

/// Answers a ping; `false` where the client has disconnected instead.
fn answer(settings: &Settings, session: &mut Session, text: &ExposedRegion) -> Result<bool, Failure> {
    let source = match session.next()? {
        Arrival::Message(message) => Advert::from_bytes(message).slice(1, LARGEST)?,
        Arrival::Gone => return Ok(false),
        Arrival::Data => return Err(Failure::new("a transfer of ours has ended, and there was none")),
    };
    let length = usize::try_from(source.len()).unwrap_or(LARGEST).min(LARGEST);
    session.qp.post_send(Read::new(text.slice(..length)?, source))?;
    let Arrival::Data = session.next()? else { return Err(out_of_turn()) };
    let mut bytes = vec![0; length];
    text.copy_out(0, &mut bytes)?;
    settings.show("server ping data", &bytes)?;
    session.send(GO_AHEAD)?;

    // The text and its zero go back; what follows it does not.
    let answer = (until_nul(&bytes).len() + 1).min(length);
    let sink = match session.next()? {
        Arrival::Message(message) => Advert::from_bytes(message).slice(answer, LARGEST)?,
        _ => return Err(out_of_turn()),
    };
    session.qp.post_send(RdmaWrite::new(text.slice(..answer)?, sink))?;
    let Arrival::Data = session.next()? else { return Err(out_of_turn()) };
    session.send(GO_AHEAD)?;
    Ok(true)
}

fn out_of_turn() -> Failure {
    Failure::new("the client has disconnected, or gone on, in the middle of the ping")
}
