//! The two ways to set up a connection behind one interface: the connection manager, and an
//! exchange over TCP.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rdma::cm::{ConnOptions, ConnectRequest, EventChannel, Id, IdKey};
use rdma::transport::Rc;
use rdma::{
    ConnectOptions, Context, Endpoint, Error, ErrorKind, Failed, InitOptions, InitializedQueuePair, PreparedQueuePair,
    RemoteAccess, Result, Verb,
};

use super::link::{Link, LinkEnd, Remains, failed};
use super::options::{Exchange, NodeOptions};
use super::protocol::Refuse;
use super::shared::Shared;
use super::tcp::{self, Kind, Sockets, offer};

/// The source of a node's events.
pub(super) enum Events {
    Manager(EventChannel),
    Tcp(Arc<Sockets>),
}

impl Events {
    pub(super) fn new(context: &Context, options: &NodeOptions) -> Result<Self> {
        match options.exchange {
            Exchange::ConnectionManager => Ok(Self::Manager(EventChannel::of(context)?)),
            Exchange::Tcp if context.capabilities().manual_connect => Ok(Self::Tcp(Arc::new(Sockets::new()?))),
            Exchange::Tcp => Err(Error::new(Verb::ConnectTcp, ErrorKind::NotSupported)),
        }
    }

    /// Whether both are of the same kind.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Manager(_), Self::Manager(_)) | (Self::Tcp(_), Self::Tcp(_)))
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Manager(events) => events.as_fd(),
            Self::Tcp(sockets) => sockets.as_fd(),
        }
    }
}

/// A listening id or socket.
pub(super) enum Listening {
    Manager(Id<Rc>),
    Tcp(tcp::End),
}

impl Listening {
    pub(super) fn key(&self) -> IdKey {
        match self {
            Self::Manager(id) => id.key(),
            Self::Tcp(end) => end.key,
        }
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Manager(id) => id.local_addr(),
            Self::Tcp(end) => end.local_addr,
        }
    }
}

/// A peer's request to connect.
pub(super) enum Request {
    Manager(ConnectRequest<Rc>),
    Tcp(tcp::Request),
}

impl Request {
    pub(super) fn key(&self) -> IdKey {
        match self {
            Self::Manager(request) => request.key(),
            Self::Tcp(request) => request.end.key,
        }
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Manager(request) => request.local_addr(),
            Self::Tcp(request) => request.end.local_addr,
        }
    }

    pub(super) fn peer_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Manager(request) => request.peer_addr(),
            Self::Tcp(request) => request.end.peer_addr,
        }
    }

    /// The device that the request arrived on; a request over TCP does not tell it.
    pub(super) fn device_name(&self) -> Option<String> {
        match self {
            Self::Manager(request) => request.device_name(),
            Self::Tcp(_) => None,
        }
    }

    /// Moves the request to the events of another driver.
    pub(super) fn move_to(&mut self, events: &Events) -> Result<()> {
        match (self, events) {
            (Self::Manager(request), Events::Manager(channel)) => request.migrate(channel),
            (Self::Tcp(request), Events::Tcp(sockets)) => request.end.migrate(sockets),
            _ => Ok(()),
        }
    }

    /// The bytes of the peer's HELLO.
    pub(super) fn hello(&self) -> &[u8] {
        match self {
            Self::Manager(request) => request.private_data(),
            Self::Tcp(request) => &request.hello,
        }
    }

    pub(super) fn reject(self, refuse: &Refuse) -> Result<()> {
        match self {
            Self::Manager(request) => request.reject(&refuse.to_bytes()),
            Self::Tcp(request) => request.end.send(Kind::Refuse, &refuse.to_bytes()),
        }
    }

    pub(super) fn init(
        &self,
        shared: &Shared,
        qp: PreparedQueuePair<Rc>,
        access: RemoteAccess,
    ) -> Result<InitializedQueuePair<Rc>, Failed<PreparedQueuePair<Rc>>> {
        match self {
            Self::Manager(request) => request.init(qp, access),
            Self::Tcp(_) => qp.init(&init_options(shared, access)),
        }
    }

    /// Connects the queue pair, and tells the peer.
    pub(super) fn accept(
        self,
        shared: &Shared,
        qp: InitializedQueuePair<Rc>,
        shares: bool,
    ) -> Result<Link, Failed<Remains>> {
        match self {
            Self::Manager(request) => match request.accept(qp, &conn_options(shared, shares)) {
                Ok((id, qp)) => Ok(Link { end: LinkEnd::Manager(id), qp }),
                Err(Failed { error, object, .. }) => Err(failed(error, object)),
            },
            Self::Tcp(tcp::Request { end, endpoint, .. }) => {
                let answer = offer(&qp.endpoint(), &shared.hello(shares).to_bytes());
                bring_up(shared, end, qp, &endpoint, Kind::Answer, &answer)
            }
        }
    }
}

/// The options of the connection manager at both sides.
pub(super) fn conn_options(shared: &Shared, shares: bool) -> ConnOptions {
    let hello = shared.hello(shares).to_bytes();
    ConnOptions::new().private_data(&hello).path(shared.options.path_options())
}

/// The options of a queue pair that an exchange over TCP connects.
pub(super) fn init_options(shared: &Shared, access: RemoteAccess) -> InitOptions {
    shared.options.init_options.remote_access(access)
}

/// Connects a queue pair to the endpoint of an exchange over TCP, and tells the peer.
pub(super) fn bring_up(
    shared: &Shared,
    end: tcp::End,
    qp: InitializedQueuePair<Rc>,
    peer: &Endpoint,
    kind: Kind,
    body: &[u8],
) -> Result<Link, Failed<Remains>> {
    let options = ConnectOptions::new().path(shared.options.path_options());
    let qp = match qp.connect(peer, &options) {
        Ok(qp) => qp,
        Err(Failed { error, object, .. }) => return Err(failed(error, (end, object))),
    };
    match end.send(kind, body) {
        Ok(()) => Ok(Link { end: LinkEnd::Tcp(end), qp }),
        Err(error) => Err(failed(error, (end, qp))),
    }
}
