//! An attacker over verbs, and the node that it attacks.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use rdma::aio::block_on;
use rdma::cm::{ConnOptions, blocking};
use rdma::op::{self, Opcode};
use rdma::transport::Rc;
use rdma::{Buffer, Context, ExposedRegion, Poller, ProtectionDomain, QueuePair, RemoteAccess, RemoteSlice, WcError};
use rdma_net::{Connection, Failure, ListenOptions, Node, NodeOptions};
use rdma_tests::cm::{address, any_port};
use rdma_tests::{LIMIT, buffer};

pub(super) const DATA: u8 = 0;
pub(super) const UPDATE: u8 = 1;
pub(super) const PING: u8 = 2;
pub(super) const PONG: u8 = 3;
pub(super) const CLOSE: u8 = 4;
pub(super) const OFFER: u8 = 5;
pub(super) const DONE: u8 = 6;

pub(super) const FIRST: u8 = 1;
pub(super) const LAST: u8 = 2;
pub(super) const ECHO: u8 = 8;

/// Data receives of each side.
pub(super) const WINDOW: u32 = 8;
/// Time to wait for the end of the connection while nothing comes.
pub(super) const IDLE: Duration = Duration::from_micros(100);
/// Time in which a victim on a loaded machine gives a credit that it owes.
pub(super) const PATIENCE: Duration = Duration::from_millis(2500);
/// Longest message in bytes.
pub(super) const LONGEST: u32 = 1 << 20;
/// Idle time until a peer is checked. Longer than a loaded machine lets a thread wait.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// Time for the last messages of a connection to a peer that does not read them.
pub(super) const LINGER: Duration = Duration::from_secs(1);

pub(super) fn options() -> NodeOptions {
    NodeOptions::new().window(8).timeout(LIMIT).linger(LINGER).keep_alive(KEEP_ALIVE).max_connections(16)
}

/// A HELLO of version 2: 8 receives of 4112 bytes, messages of up to 1 MiB, offers, no
/// keep-alive.
pub(super) fn hello() -> [u8; 32] {
    let mut hello = [0; 32];
    hello[..8].copy_from_slice(b"RDN1\x02\x02\x20\x00");
    hello[11] = 1;
    hello[13..15].copy_from_slice(&[8, 4]);
    hello[16..20].copy_from_slice(&4112_u32.to_be_bytes());
    hello[20..28].copy_from_slice(&u64::from(LONGEST).to_be_bytes());
    hello
}

/// A peer without the state machine of `rdma_net`: it keeps the rules that it wants to keep.
pub(super) struct Attacker {
    pub(super) pd: ProtectionDomain,
    pub(super) qp: QueuePair<Rc>,
    pub(super) poller: Poller,
    pub(super) connection: blocking::Connection,
    pub(super) spares: Vec<Buffer>,
    /// Data messages sent, and those that the victim lets this side send.
    pub(super) sent: u32,
    pub(super) limit: u32,
    /// The limit that the victim is told.
    pub(super) granted: u32,
    /// While an UPDATE waits for an answer: the data messages that may go without its credits. A
    /// notification beyond them is an answer.
    pub(super) owed_echo: Option<u32>,
    /// Kind and payload of the messages that have come.
    pub(super) received: Vec<(u8, Vec<u8>)>,
    /// The first completion with an error: the connection has ended.
    pub(super) end: Option<WcError>,
    /// Whether the victim has ended the connection, or its error has.
    pub(super) is_over: bool,
}

/// What an attacker connects with.
#[derive(Clone, Copy)]
pub(super) struct Means {
    pub(super) receives: u32,
    /// Reads of the victim that this side's device serves.
    pub(super) served_reads: u8,
    /// What the queue pair lets the victim do, if not all.
    pub(super) access: Option<RemoteAccess>,
}

pub(super) const ALL_MEANS: Means = Means { receives: WINDOW + 4, served_reads: 4, access: None };

impl Attacker {
    pub(super) fn connect(context: &Context, to: SocketAddr, means: Means) -> Self {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(256).unwrap());
        let route = blocking::resolve::<Rc>(context, None, to, LIMIT).unwrap();
        let qp = QueuePair::builder(&pd).cq(&cq).max_send_wr(64).max_recv_wr(64).build().unwrap();
        let mut qp = match means.access {
            Some(access) => route.init_with(qp, access).unwrap(),
            None => route.init(qp).unwrap(),
        };
        for _ in 0..means.receives {
            qp.post_recv(pd.allocate(8192).unwrap(), 0).unwrap();
        }
        let options = ConnOptions::new().private_data(&hello()).responder_resources(means.served_reads);
        let (connection, qp) = route.connect(qp, &options, LIMIT).unwrap();
        // The victim's HELLO: fewer receives than the window, if it shares them.
        let limit = connection.private_data().get(15).map_or(WINDOW, |&initial| initial.into());
        Self {
            pd,
            qp,
            poller: cq.poller(),
            connection,
            spares: Vec::new(),
            sent: 0,
            limit: if limit == 0 { WINDOW } else { limit },
            granted: WINDOW,
            owed_echo: None,
            received: Vec::new(),
            end: None,
            is_over: false,
        }
    }

    /// Sends a message without a look at credits.
    pub(super) fn send(&mut self, kind: u8, flags: u8, rest: u32, payload: &[u8]) {
        let echo = if self.owed_echo.take().is_some() { ECHO } else { 0 };
        let start = if payload.is_empty() { 0 } else { 16 };
        let mut message = vec![kind, flags | echo, 0, start];
        for word in [self.granted, rest, 0] {
            message.extend(word.to_be_bytes());
        }
        message.extend(payload);
        self.send_bytes(&message);
        if matches!(kind, DATA | OFFER | DONE) {
            self.sent += 1;
        }
    }

    pub(super) fn send_bytes(&mut self, bytes: &[u8]) {
        let buffer = match self.spares.pop() {
            Some(mut buffer) if bytes.len() <= buffer.len() => {
                buffer[..bytes.len()].copy_from_slice(bytes);
                buffer
            }
            _ => buffer(&self.pd, &[bytes, &[0; 64]].concat()),
        };
        // After the end of the connection the device may refuse it.
        let _refused = self.qp.post_send(op::send(buffer.part(..bytes.len())));
    }

    /// Writes a byte to the front of the victim's slice and notifies it, without a look at credits.
    pub(super) fn notify(&mut self, to: RemoteSlice, number: u32) {
        let from = self.spares.pop().unwrap_or_else(|| buffer(&self.pd, &[0; 64]));
        let _refused = self.qp.post_send(op::write_imm(from.part(..1), to, number));
        self.sent = self.sent.wrapping_add(1);
        self.owed_echo = self.owed_echo.and_then(|left| left.checked_sub(1));
    }

    /// The slice that a message of the victim names.
    pub(super) fn expect_slice(&mut self) -> RemoteSlice {
        RemoteSlice::from_bytes(&self.expect(DATA)[..]).unwrap()
    }

    pub(super) fn offer(&mut self, id: u32, slice: RemoteSlice) {
        self.send(OFFER, 0, id, &slice.to_bytes());
    }

    /// Takes a completion; returns whether there was one.
    pub(super) fn poll(&mut self) -> bool {
        let Some(mut completion) = self.poller.poll().unwrap() else { return false };
        if let Err(error) = completion.status() {
            self.end.get_or_insert(error);
            return true;
        }
        let (is_receive, len) = (completion.opcode() == Opcode::Recv, completion.byte_len());
        let Some(buffer) = completion.take_buffer() else { return true };
        if !is_receive {
            self.spares.push(buffer);
            return true;
        }
        let message = &buffer[..len];
        let (kind, flags) = (message[0], message[1]);
        assert!(flags & ECHO == 0 || kind != UPDATE, "this end asks for no answer");
        if kind == UPDATE {
            self.owed_echo = Some(self.limit.wrapping_sub(self.sent));
        }
        self.limit = u32::from_be_bytes(message[4..8].try_into().unwrap());
        if matches!(kind, DATA | OFFER | DONE) {
            self.granted += 1;
        }
        let cookie = u32::from_be_bytes(message[8..12].try_into().unwrap());
        self.received.push((kind, message[16..].to_vec()));
        let _refused = self.qp.post_recv(buffer, 0);
        if kind == PING {
            self.send(PONG, 0, cookie, &[]);
        }
        true
    }

    /// Waits until `is_done`, the end of the connection, or for `time`; returns whether it is done.
    pub(super) fn wait(&mut self, time: Duration, is_done: impl Fn(&Self) -> bool) -> bool {
        let start = Instant::now();
        loop {
            if is_done(self) {
                return true;
            }
            if self.is_over || start.elapsed() > time {
                return false;
            }
            if !self.poll() {
                self.is_over = self.end.is_some() || self.connection.wait_disconnected(Some(IDLE)).unwrap();
            }
        }
    }

    /// Waits until the victim has ended the connection.
    pub(super) fn wait_for_end(&mut self) {
        self.wait(LIMIT, |this| this.is_over);
        assert!(self.is_over, "the victim keeps the connection");
    }

    /// Waits until the victim lets this side send a data message; returns whether it does.
    pub(super) fn wait_for_credit(&mut self, time: Duration) -> bool {
        self.wait(time, |this| this.limit != this.sent && this.spares.len() < 1000)
    }

    /// Waits for a message of a kind; returns its payload.
    pub(super) fn expect(&mut self, kind: u8) -> Vec<u8> {
        assert!(self.wait(LIMIT, |this| this.received.iter().any(|message| message.0 == kind)), "{:?}", self.end);
        let at = self.received.iter().position(|message| message.0 == kind).unwrap();
        self.received.remove(at).1
    }

    /// The slice that an OFFER of the victim names.
    pub(super) fn expect_offer(&mut self) -> RemoteSlice {
        RemoteSlice::from_bytes(&self.expect(OFFER)[..]).unwrap()
    }

    pub(super) fn expose(&self, len: usize, access: RemoteAccess) -> ExposedRegion {
        self.pd.allocate_exposed(len, access).unwrap()
    }
}

/// A node that listens, and an honest connection whose server answers each message.
pub(super) struct World {
    pub(super) context: Context,
    pub(super) node: Node,
    pub(super) listener: rdma_net::Listener,
    pub(super) driver: thread::JoinHandle<rdma::Result<()>>,
    pub(super) honest: Connection,
    pub(super) echoing: thread::JoinHandle<Result<(), Failure>>,
}

impl World {
    pub(super) fn new(context: &Context, limits: &ListenOptions) -> Self {
        Self::with(context, limits, &options())
    }

    pub(super) fn with(context: &Context, limits: &ListenOptions, options: &NodeOptions) -> Self {
        let (node, driver) = Node::new(context, options).unwrap();
        let driver = thread::spawn(move || driver.run_blocking());
        let mut listener = node.listen(any_port(address(context)), limits).unwrap();
        let (to, client) = (listener.local_addr(), node.clone());
        let connecting = thread::spawn(move || block_on(client.connect(to)).unwrap());
        let accepted = block_on(async { listener.accept().await?.accept().await }).unwrap();
        let echoing = thread::spawn(move || {
            let (to, mut from) = accepted.split();
            block_on(async {
                while let Some(message) = from.next().await? {
                    to.send(&message).await?;
                }
                Ok(())
            })
        });
        let honest = connecting.join().unwrap();
        Self { context: context.clone(), node, listener, driver, honest, echoing }
    }

    /// Connects an attacker; returns what it returns, and the result of the victim.
    pub(super) fn attack<A: Send, V>(
        &mut self,
        means: Means,
        attack: impl FnOnce(&mut Attacker) -> A + Send,
        victim: impl FnOnce(Result<Connection, Failure>) -> V,
    ) -> (A, V) {
        let (to, context) = (self.listener.local_addr(), self.context.clone());
        let result = thread::scope(|scope| {
            let attacking = scope.spawn(move || {
                let mut attacker = Attacker::connect(&context, to, means);
                let result = attack(&mut attacker);
                (result, attacker)
            });
            // An attack may arrive before the connection is accepted.
            let accepted = block_on(async { self.listener.accept().await.unwrap().accept().await });
            let result = victim(accepted);
            let (attacked, attacker) = attacking.join().unwrap();
            assert!(attacker.connection.wait_disconnected(Some(LIMIT)).unwrap(), "the victim ends the connection");
            (attacked, result)
        });
        self.check();
        result
    }

    /// Checks that the honest connection works, and that nothing else is left.
    pub(super) fn check(&mut self) {
        block_on(async {
            for len in [10, 3000, 200_000] {
                self.honest.send(vec![7; len]).await.unwrap();
                assert_eq!(self.honest.next().await.unwrap().unwrap()[..], vec![7; len]);
            }
        });
        let start = Instant::now();
        while self.node.connections() > 2 {
            assert!(start.elapsed() < LIMIT, "the victim's end stays");
            thread::yield_now();
        }
    }

    pub(super) fn end(self) {
        let Self { node, listener, driver, honest, echoing, .. } = self;
        drop(honest);
        echoing.join().unwrap().unwrap();
        drop((listener, node));
        driver.join().unwrap().unwrap();
    }
}
