//! Requests to other hosts. A call to another host may take seconds, so threads make it.

use super::entry::{Entry, Link, Role};
use super::port;
use super::service::{Service, State};
use super::transport::{Call, Far, Transport, Undelivered};
use super::wire::Message;
use crate::link::hello::HelloError;
use crate::link::packets::Packets;
use crate::log::log;
use crate::node::ports;
use crate::os::socket::Socket;
use crate::os::{self, now, thread};

/// Limit of the threads that call other hosts. Further calls wait for one of them.
const MAX_THREADS: usize = 16;

/// Makes the calls that wait.
fn run() {
    let Ok(service) = Service::get() else { return };
    while let Some(call) = service.with(State::next_call) {
        let outcome = ports::call(call.space, call.peer);
        service.with(|state| state.called(&call, outcome));
    }
}

impl State {
    /// Connects an id to its peer's listener on another host and sends the request, in a thread.
    /// Does nothing while a call of the id is under way.
    pub(super) fn dial_host(&mut self, key: u64, request: &Message) -> Result<(), Undelivered> {
        let entry = self.entry(key)?;
        let (Some(local), Some(peer)) = (entry.local, entry.peer) else { return Err(Undelivered::Lost) };
        let (space, own) = (entry.space, entry.bind_request(local));
        let Role::Connected { link, .. } = &mut entry.role else { return Err(Undelivered::Lost) };
        let name = match std::mem::replace(link, Link::None) {
            under_way @ Link::Dialling(_) => {
                *link = under_way;
                return Ok(());
            }
            Link::Bound(name) => name,
            _ => port::rebind(own)?.socket,
        };
        *link = Link::Dialling(name);
        self.dialler.waiting.push_back(Call { key, space, peer, request: request.clone() });
        if self.dialler.threads >= MAX_THREADS {
            return Ok(());
        }
        match thread::spawn("rdma-soft-cm-dial", run) {
            Ok(()) => self.dialler.threads += 1,
            // The threads that there are take this call, too.
            Err(_) if self.dialler.threads > 0 => {}
            Err(error) => {
                log!(WARN, %error, "soft0: no thread to call another host");
                self.dialler.waiting.clear();
                self.end_dialling(key);
                return Err(Undelivered::Lost);
            }
        }
        Ok(())
    }

    /// The next call of an id that still waits for it. Without one, the thread ends.
    fn next_call(&mut self) -> Option<Call> {
        while let Some(call) = self.dialler.waiting.pop_front() {
            let role = self.entries.get(&call.key).map(|entry| &entry.role);
            if matches!(role, Some(Role::Connected { link: Link::Dialling(_), .. })) {
                return Some(call);
            }
        }
        self.dialler.threads -= 1;
        None
    }

    /// Ends the wait of an id for its call. Returns the socket with the id's name; `None` if the id
    /// has not waited.
    fn end_dialling(&mut self, key: u64) -> Option<Socket> {
        let Ok(Entry { role: Role::Connected { link, .. }, .. }) = self.entry(key) else { return None };
        match std::mem::replace(link, Link::None) {
            Link::Dialling(name) => Some(name),
            other => {
                *link = other;
                None
            }
        }
    }

    /// Handles the outcome of a call. The id may have ended meanwhile.
    fn called(&mut self, call: &Call, outcome: Result<Packets, HelloError>) {
        let Some(name) = self.end_dialling(call.key) else { return };
        match outcome {
            Ok(packets) => {
                if let Err(error) = self.be_connected(call, packets, name) {
                    log!(DEBUG, %error, "soft0: a connection to another host ends at once");
                }
            }
            Err(HelloError::Nobody) => {
                self.set_link(call.key, Link::Bound(name));
                self.step(call.key, |machine, out| machine.on_refused(now(), out));
            }
            Err(error) => {
                let peer = call.peer;
                log!(WARN, "soft0: no connection to {peer}: {error}");
                let errno = match error {
                    HelloError::System(error) => error.errno as i32,
                    HelloError::Proof | HelloError::Unconfirmed => libc::EACCES,
                    HelloError::Busy => libc::ETIMEDOUT,
                    _ => libc::EPROTO,
                };
                self.step(call.key, |machine, out| machine.on_unreachable(errno, out));
            }
        }
    }

    /// Uses a new connection for an id. If this fails the request is lost, and the machine repeats
    /// it.
    fn be_connected(&mut self, call: &Call, packets: Packets, name: Socket) -> os::Result<()> {
        let (peer, local) = packets.addresses()?;
        let mut link = Transport::Far(Box::new(Far { packets, peer, local, name: Some(name) }));
        self.watch(call.key, &link)?;
        let _lost = link.send(&call.request.encode());
        self.set_link(call.key, Link::Up(link));
        Ok(())
    }
}
