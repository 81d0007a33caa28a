//! The server: the side that answers.

use std::io;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use rdma::cm::blocking::{IncomingConnection, Listener};
use rdma::op::{Read, Write as RdmaWrite};
use rdma::{Context, ErrorKind, ExposedRegion, Rc, RemoteAccess};
use serde_json::json;

use super::session::{Arrival, Nudge, Session};
use super::wire::MESSAGE;
use super::{Advert, LARGEST, Settings, until_nul};
use crate::Failure;
use crate::connect::End;
use crate::failure::say;

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
    let request = listener.next_request(timeout)?.ok_or_else(nobody)?;
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
    session.qp.post_send(Read::new(text.slice(..length)?, source))?;
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
    session.qp.post_send(RdmaWrite::new(text.slice(..answer)?, sink))?;
    let Arrival::Data = session.next()? else { return Err(out_of_turn()) };
    session.send(GO_AHEAD)?;
    Ok(true)
}

fn out_of_turn() -> Failure {
    Failure::new("the client has disconnected, or gone on, in the middle of the ping")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rdma::cm::blocking::{self, ListenOptions};
    use rdma::{DeviceSelector, RemoteAccess};

    use super::*;
    use crate::rping::ping_text;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn settings() -> Settings {
        let (verbose, json, debug) = (false, false, false);
        Settings { size: 64, count: Some(3), validate: true, verbose, json, debug, timeout: Some(PATIENCE) }
    }

    fn soft0() -> Context {
        rdma::open(&"soft0".parse::<DeviceSelector>().unwrap()).unwrap().context
    }

    /// A client that has connected and waits.
    struct Guest {
        session: Session,
        text: ExposedRegion,
        answer: ExposedRegion,
    }

    impl Guest {
        fn enter(context: &Context, server: SocketAddr) -> Result<Self, Failure> {
            let route = blocking::resolve::<Rc>(context, None, server, PATIENCE)?;
            let how = (&settings().options(), PATIENCE);
            let session = Session::open(context, End::Active(route), "the server", how)?;
            let region = |access| session.region(64, access).unwrap();
            let (text, answer) = (region(RemoteAccess::READ), region(RemoteAccess::READ | RemoteAccess::WRITE));
            Ok(Self { session, text, answer })
        }

        fn ping(&mut self, number: u64) {
            let expected = ping_text(number, 64);
            self.text.copy_in(0, &expected).unwrap();
            for region in [&self.text, &self.answer] {
                self.session.send(Advert::of(&region.remote(..).unwrap()).unwrap().to_bytes()).unwrap();
                assert!(matches!(self.session.next(), Ok(Arrival::Message(_))));
            }
            let mut came = vec![0; 64];
            self.answer.copy_out(0, &mut came).unwrap();
            assert_eq!(came, expected);
        }
    }

    fn is_rejected(entered: Result<Guest, Failure>) -> bool {
        entered.is_err_and(|failure| failure.to_string().contains("rejected by the peer"))
    }

    fn serving(pool: ClientPool, clients: u64, guests: impl FnOnce(&Context, SocketAddr)) {
        let context = soft0();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Listener::bind(&context, any, &ListenOptions::new()).unwrap();
        let address = listener.local_addr();
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| pool.serve(&context, &settings(), &listener, Some(clients)));
            guests(&context, address);
            serving.join().unwrap().unwrap();
        });
    }

    #[test]
    fn clients_beyond_the_limit_are_rejected_and_others_go_on() {
        serving(ClientPool { most: 2, start: Builder::spawn }, 3, |context, server| {
            let mut guests = [(); 2].map(|()| Guest::enter(context, server).unwrap());
            for number in 0..3 {
                assert!(is_rejected(Guest::enter(context, server)), "there is room for two");
                guests.iter_mut().for_each(|guest| guest.ping(number));
            }
            let [leaving, mut staying] = guests;
            leaving.session.disconnect();
            // The thread of the client that left may take a moment to end.
            let mut late = loop {
                match Guest::enter(context, server) {
                    Ok(guest) => break guest,
                    rejected => assert!(is_rejected(rejected)),
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            late.ping(0);
            staying.ping(9);
            late.session.disconnect();
            staying.session.disconnect();
        });
    }

    #[test]
    fn without_a_thread_a_client_is_rejected_and_others_go_on() {
        static SHORT: AtomicBool = AtomicBool::new(false);
        fn start(builder: Builder, work: Work) -> io::Result<JoinHandle<bool>> {
            if SHORT.load(Ordering::Relaxed) { Err(io::Error::from_raw_os_error(11)) } else { builder.spawn(work) }
        }
        serving(ClientPool { most: 9, start }, 2, |context, server| {
            let mut early = Guest::enter(context, server).unwrap();
            early.ping(0);
            SHORT.store(true, Ordering::Relaxed);
            assert!(is_rejected(Guest::enter(context, server)), "there is no thread");
            early.ping(1);
            SHORT.store(false, Ordering::Relaxed);
            let mut late = Guest::enter(context, server).unwrap();
            late.ping(0);
            early.session.disconnect();
            late.session.disconnect();
        });
    }
}
