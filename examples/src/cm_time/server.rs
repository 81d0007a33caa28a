//! The server: the side that accepts.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use rdma::cm::{ConnectRequest, EventChannel, EventKind, Id, IdKey};
use rdma::transport::Rc;
use rdma::{Context, Error, QueuePair, RemoteAccess};

use super::pool::Pool;
use super::{Announcement, Settings, options};
use crate::Failure;

/// Most requests that wait for an answer: the kernel's own limit.
const BACKLOG: u32 = 1024;

/// Accepts connections, and ends each after the client did.
#[derive(Debug)]
pub struct Server {
    /// Dropped first, so that no request is accepted while connections end.
    _listener: Id<Rc>,
    channel: EventChannel,
    address: SocketAddr,
    pool: Pool,
    /// Established connections, and those being set up.
    open: HashMap<IdKey, (Id<Rc>, QueuePair<Rc>)>,
    accepted: usize,
    ended: usize,
}

impl Server {
    /// Binds the listener.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub fn bind(context: &Context, address: SocketAddr) -> Result<Self, Failure> {
        let listen = || {
            let channel = EventChannel::of(context)?;
            let listener = channel.create_id::<Rc>()?;
            listener.set_reuse_addr(true)?;
            listener.bind_addr(address)?;
            listener.listen(BACKLOG)?;
            let bound = listener.local_addr().unwrap_or(address);
            Ok((channel, listener, bound))
        };
        let cannot = |error: Error| Failure::from(error).context(format_args!("cannot listen on {address}"));
        let (channel, listener, address) = listen().map_err(cannot)?;
        let pool = Pool::new(context)?;
        Ok(Self { _listener: listener, channel, address, pool, open: HashMap::new(), accepted: 0, ended: 0 })
    }

    /// The address of the listener.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Accepts connections until one client has made and ended all that it announced; without an
    /// announcement, the number in the settings. The wait for the first request has no limit: a
    /// client may resolve thousands of addresses before it sends one.
    ///
    /// # Errors
    /// If the client leaves early, or if no event comes for too long.
    pub fn serve(&mut self, settings: &Settings) -> Result<usize, Failure> {
        let mut expected = settings.connections;
        while self.ended < expected {
            let patience = (self.accepted > 0).then_some(settings.patience);
            let Some(event) = self.channel.next_event(patience)? else {
                return Err(self.silence(expected, settings.patience));
            };
            match event.kind {
                EventKind::ConnectRequest(request) => {
                    if let Some(announced) = Announcement::from_bytes(request.private_data()) {
                        expected = usize::try_from(announced.total).unwrap_or(usize::MAX);
                    }
                    self.accept(request).map_err(|e| Failure::from(e).context("cannot accept a connection"))?;
                }
                EventKind::Disconnected => {
                    let Some((id, qp)) = self.open.remove(&event.id) else { continue };
                    // The client's side is disconnected already; this call disconnects the local
                    // side.
                    id.disconnect(&qp).ok();
                    self.ended += 1;
                }
                EventKind::Rejected(rejection) => return Err(self.broken(event.id, rejection.to_error())),
                EventKind::Unreachable(error) | EventKind::ConnectError(error) => {
                    return Err(self.broken(event.id, error));
                }
                EventKind::DeviceRemoval => return Err(Failure::new("the device is gone")),
                // `Established` and the end of TIMEWAIT need no action.
                _ => {}
            }
        }
        Ok(self.ended)
    }

    fn accept(&mut self, request: ConnectRequest<Rc>) -> Result<(), Error> {
        let qp = request.init(self.pool.queue_pair()?, RemoteAccess::empty())?;
        let (id, qp) = request.accept(qp, &options()).map_err(|failed| failed.error)?;
        self.open.insert(id.key(), (id, qp));
        self.accepted += 1;
        Ok(())
    }

    fn broken(&mut self, id: IdKey, error: Error) -> Failure {
        self.open.remove(&id);
        Failure::from(error).context(format_args!("connection {} broke while it was made", self.accepted))
    }

    fn silence(&self, expected: usize, patience: Duration) -> Failure {
        let (accepted, ended, seconds) = (self.accepted, self.ended, patience.as_secs());
        Failure::new(format!(
            "the client has been silent for {seconds} s, with {accepted} of {expected} connections made and {ended} ended"
        ))
    }
}
