//! The client: the side that connects and measures.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Instant;

use rdma::cm::{ConnOptions, Event, EventChannel, EventKind, Id, IdKey};
use rdma::transport::Rc;
use rdma::{Context, Error, InitializedQueuePair, QueuePair, RemoteAccess};

use super::pool::Pool;
use super::steps::Clock;
use super::{Announcement, Round, Settings, Step, options};
use crate::Failure;
use crate::waiting::Waiting;

/// A connection and its stage.
#[derive(Debug)]
struct Connection {
    id: Id<Rc>,
    stage: Stage,
    /// Start of the connection.
    begun: Instant,
    /// Start of the present step.
    since: Instant,
    /// How often the present step may still be tried again.
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

/// A round in progress.
struct Client<'a> {
    settings: &'a Settings,
    server: SocketAddr,
    source: Option<SocketAddr>,
    options: ConnOptions,
    channel: EventChannel,
    pool: Pool,
    clock: Clock,
    connections: HashMap<IdKey, Connection>,
    /// Keys of the connections, in the order in which their requests went to the server.
    asked: Vec<IdKey>,
}

/// Makes all connections of a round, at most `in_flight` at a time, then ends them. `total` is the
/// number of connections of all rounds.
///
/// # Errors
/// If a connection cannot be made or breaks, or if no event comes for too long.
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
        channel: EventChannel::of(context)?,
        pool: Pool::new(context)?,
        clock: Clock::default(),
        connections: HashMap::new(),
        asked: Vec::new(),
    };
    let count = settings.connections;
    let mut up = 0;
    let mut waiting = Some(Waiting::for_peer(server));
    while up < count {
        while client.connections.len() < count && client.connections.len() - up < in_flight {
            client.begin().map_err(|e| client.cannot_connect(e))?;
        }
        up += usize::from(client.next_event()?);
        waiting = waiting.filter(|_| up == 0);
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

    /// Handles one event; returns whether it completed the setup or the end of a connection.
    fn next_event(&mut self) -> Result<bool, Failure> {
        let patience = self.settings.patience;
        let silent = || Failure::new(format!("nothing has come from {} for {} s", self.server, patience.as_secs()));
        let event = self.channel.next_event(Some(patience))?.ok_or_else(silent)?;
        let Event { id, kind, .. } = event;
        // Events of a destroyed identifier, or of none, concern no connection of this round.
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
            // On InfiniBand and RoCE a response comes first; iWARP reports the connection as
            // established.
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
            // Other events need no action: the end of TIMEWAIT, or a second end of a connection.
            (stage, _) => (stage, false),
        };
        connection.stage = stage;
        Ok(done)
    }

    /// Tries a step again if retries are left.
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

    /// Creates the queue pair and sends the connection request.
    fn request(&mut self, connection: &mut Connection) -> Result<InitializedQueuePair<Rc>, Error> {
        let qp = self.pool.queue_pair()?;
        connection.since = self.clock.ended(Step::CreateQp, connection.since);
        let qp = connection.id.init(qp, RemoteAccess::empty())?;
        connection.since = self.clock.ended(Step::InitQp, connection.since);
        connection.id.connect(&qp, &self.options)?;
        self.asked.push(connection.id.key());
        Ok(qp)
    }

    /// Ends all connections in the order of their requests. cmtime of rdmacm-utils 44 takes the
    /// completion queues of all its connections from the first one that it accepted. While other
    /// connections use these queues, they outlast that first connection; if it ends last, they go
    /// with it, and cmtime refuses every later connection.
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

    /// Destroys the queue pairs and identifiers of all connections.
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
        // Connections end only after all are established, so this stage is an error.
        other => {
            connection.stage = other;
            Err(Failure::new("a connection was to be ended that is not there"))
        }
    }
}
