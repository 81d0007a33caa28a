//! The side that connects, and measures.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Instant;

use rdma::cm::{ConnOptions, Event, EventChannel, EventKind, Id, IdKey};
use rdma::{Context, Error, InitializedQueuePair, QueuePair, Rc, RemoteAccess};

use super::pool::Pool;
use super::steps::Clock;
use super::{Announcement, Round, Settings, Step, options};
use crate::Failure;

/// A connection, and where it stands.
#[derive(Debug)]
struct Connection {
    id: Id<Rc>,
    stage: Stage,
    /// When it was begun.
    begun: Instant,
    /// When its present step was begun.
    since: Instant,
    /// How often the present step may be tried again.
    retries: u32,
}

#[derive(Debug)]
enum Stage {
    Address,
    Route,
    Connecting(InitializedQueuePair<Rc>),
    Up(QueuePair<Rc>),
    Leaving(QueuePair<Rc>),
    Down(QueuePair<Rc>),
    /// A step has failed, and so has the whole round.
    Broken,
}

/// A round under way.
struct Client<'a> {
    settings: &'a Settings,
    server: SocketAddr,
    source: Option<SocketAddr>,
    options: ConnOptions,
    channel: EventChannel,
    pool: Pool,
    clock: Clock,
    connections: HashMap<IdKey, Connection>,
    /// In the order in which they asked the server.
    asked: Vec<IdKey>,
}

/// Makes all connections of a round, at most `in_flight` at a time, then ends them; `total` is how
/// many all rounds make.
///
/// # Errors
/// Where one cannot be made, breaks, or nothing happens for too long.
pub fn run(
    context: &Context,
    settings: &Settings,
    (server, source): (SocketAddr, Option<SocketAddr>),
    in_flight: usize,
    total: u32,
) -> Result<Round, Failure> {
    let mut client = Client {
        settings,
        server,
        source,
        options: options().private_data(&Announcement { total }.to_bytes()),
        channel: EventChannel::new(context)?,
        pool: Pool::new(context)?,
        clock: Clock::default(),
        connections: HashMap::new(),
        asked: Vec::new(),
    };
    let count = settings.connections;
    let mut up = 0;
    while up < count {
        while client.connections.len() < count && client.connections.len() - up < in_flight {
            client.begin().map_err(|e| client.cannot_connect(e))?;
        }
        up += usize::from(client.next_event()?);
    }
    client.leave(in_flight)?;
    client.destroy()?;
    Ok(Round::new(count, in_flight, &client.clock))
}

impl Client<'_> {
    /// Starts a connection.
    fn begin(&mut self) -> Result<(), Error> {
        let begun = Instant::now();
        let id = self.channel.create_id::<Rc>()?;
        let mut since = self.clock.ended(Step::CreateId, begun);
        if let Some(source) = self.source {
            id.bind_addr(source)?;
            since = self.clock.ended(Step::BindAddr, since);
        }
        id.resolve_addr(None, self.server, self.settings.resolution)?;
        let connection = Connection { stage: Stage::Address, begun, since, retries: self.settings.retries, id };
        self.connections.insert(connection.id.key(), connection);
        Ok(())
    }

    /// Handles an event; whether it made a connection, or ended one.
    fn next_event(&mut self) -> Result<bool, Failure> {
        let patience = self.settings.patience;
        let silent = || Failure::new(format!("nothing has come from {} for {} s", self.server, patience.as_secs()));
        let event = self.channel.next_event(Some(patience))?.ok_or_else(silent)?;
        let Event { id, kind, .. } = event;
        // Events of what was destroyed, or of nothing, are not ours.
        let Some(mut connection) = self.connections.remove(&id) else { return Ok(false) };
        let done = self.handle(&mut connection, kind);
        self.connections.insert(id, connection);
        done
    }

    fn handle(&mut self, connection: &mut Connection, kind: EventKind) -> Result<bool, Failure> {
        let stage = std::mem::replace(&mut connection.stage, Stage::Broken);
        let (stage, done) = match (stage, kind) {
            (Stage::Address, EventKind::AddrResolved) => {
                connection.since = self.clock.ended(Step::ResolveAddr, connection.since);
                connection.retries = self.settings.retries;
                let asked = connection.id.resolve_route(self.settings.resolution);
                asked.map_err(|error| self.cannot_connect(error))?;
                (Stage::Route, false)
            }
            (Stage::Address, EventKind::AddrError(error)) => {
                self.again(connection, error, |id| id.resolve_addr(None, self.server, self.settings.resolution))?;
                (Stage::Address, false)
            }
            (Stage::Route, EventKind::RouteError(error)) => {
                self.again(connection, error, |id| id.resolve_route(self.settings.resolution))?;
                (Stage::Route, false)
            }
            (Stage::Route, EventKind::RouteResolved) => {
                connection.since = self.clock.ended(Step::ResolveRoute, connection.since);
                let qp = self.request(connection).map_err(|error| self.cannot_connect(error))?;
                (Stage::Connecting(qp), false)
            }
            // InfiniBand and RoCE answer; iWARP is established at once.
            (Stage::Connecting(qp), EventKind::ConnectResponse(_) | EventKind::Established(_)) => {
                connection.since = self.clock.ended(Step::Connect, connection.since);
                let qp = connection.id.establish(qp, &self.options);
                let qp = qp.map_err(|failed| self.cannot_connect(failed.error))?;
                self.clock.ended(Step::Establish, connection.since);
                self.clock.ended(Step::FullConnect, connection.begun);
                (Stage::Up(qp), true)
            }
            (Stage::Connecting(_), EventKind::Rejected(rejection)) => {
                return Err(self.cannot_connect(rejection.to_error()));
            }
            (Stage::Connecting(_), EventKind::Unreachable(error) | EventKind::ConnectError(error)) => {
                return Err(self.cannot_connect(error));
            }
            (Stage::Leaving(qp), EventKind::Disconnected) => {
                self.clock.ended(Step::Disconnect, connection.since);
                (Stage::Down(qp), true)
            }
            (Stage::Up(_), EventKind::Disconnected) => {
                return Err(Failure::new(format!("{} has ended a connection", self.server)));
            }
            (_, EventKind::DeviceRemoval) => return Err(Failure::new("the device is gone")),
            // The others mean nothing here: the wait after a connection's end, the end of one that
            // has ended.
            (stage, _) => (stage, false),
        };
        connection.stage = stage;
        Ok(done)
    }

    /// Tries a step again, if it may be.
    fn again(
        &self,
        connection: &mut Connection,
        error: Error,
        step: impl FnOnce(&Id<Rc>) -> Result<(), Error>,
    ) -> Result<(), Failure> {
        let left = connection.retries.checked_sub(1).ok_or_else(|| self.cannot_connect(error))?;
        connection.retries = left;
        step(&connection.id).map_err(|error| self.cannot_connect(error))
    }

    /// Makes the queue pair, and asks the server.
    fn request(&mut self, connection: &mut Connection) -> Result<InitializedQueuePair<Rc>, Error> {
        let qp = self.pool.queue_pair()?;
        connection.since = self.clock.ended(Step::CreateQp, connection.since);
        let qp = connection.id.init(qp, RemoteAccess::empty())?;
        connection.since = self.clock.ended(Step::InitQp, connection.since);
        connection.id.connect(&qp, &self.options)?;
        self.asked.push(connection.id.key());
        Ok(qp)
    }

    /// Ends all connections, the first one first: cmtime of rdmacm-utils 44 has the completion
    /// queues of all others from the first one that it accepts. While others use them, they outlast
    /// it; when it is the last to go, so do they, and every connection after that is refused.
    fn leave(&mut self, in_flight: usize) -> Result<(), Failure> {
        let keys = std::mem::take(&mut self.asked);
        let (mut begun, mut down) = (0, 0);
        while down < keys.len() {
            while begun < keys.len() && begun - down < in_flight {
                if let Some(connection) = self.connections.get_mut(&keys[begun]) {
                    goodbye(connection)?;
                }
                begun += 1;
            }
            down += usize::from(self.next_event()?);
        }
        Ok(())
    }

    /// Destroys what is left of the connections.
    fn destroy(&mut self) -> Result<(), Failure> {
        for (_, Connection { id, stage, .. }) in self.connections.drain() {
            let mut since = Instant::now();
            if let Stage::Down(qp) = stage {
                qp.close()?;
                since = self.clock.ended(Step::DestroyQp, since);
            }
            drop(id);
            self.clock.ended(Step::DestroyId, since);
        }
        Ok(())
    }

    fn cannot_connect(&self, error: Error) -> Failure {
        Failure::from(error).context(format_args!("cannot connect to {}", self.server))
    }
}

fn goodbye(connection: &mut Connection) -> Result<(), Failure> {
    match std::mem::replace(&mut connection.stage, Stage::Broken) {
        Stage::Up(qp) => {
            connection.since = Instant::now();
            connection.id.disconnect(&qp)?;
            connection.stage = Stage::Leaving(qp);
            Ok(())
        }
        // Connections end only after all are up.
        other => {
            connection.stage = other;
            Err(Failure::new("a connection was to be ended that is not there"))
        }
    }
}
