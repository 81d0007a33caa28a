//! Peers of `rdma::net` that speak its protocol over verbs and break it, or exhaust it by its own
//! rules. Their connection fails with one clear reason, and no other connection notices.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use rdma::aio::block_on;
use rdma::cm::{ConnOptions, blocking};
use rdma::net::{Connection, Failure, FailureKind, ListenOptions, Node, NodeOptions, Violation};
use rdma::op::{Opcode, Read, Send, Write};
use rdma::{
    Buffer, Context, ExposedRegion, Poller, ProtectionDomain, QueuePair, Rc, RemoteAccess, RemoteSlice, WcError,
};
use rdma_tests::cm::{address, any_port, available};
use rdma_tests::{LIMIT, buffer, open};

const DATA: u8 = 0;
const UPDATE: u8 = 1;
const PING: u8 = 2;
const PONG: u8 = 3;
const CLOSE: u8 = 4;
const OFFER: u8 = 5;
const DONE: u8 = 6;

const FIRST: u8 = 1;
const LAST: u8 = 2;
const ECHO: u8 = 8;

/// Data receives of each end.
const WINDOW: u32 = 8;
/// Time to wait for the end of the connection while nothing comes.
const IDLE: Duration = Duration::from_micros(100);
/// Time in which a victim on a loaded machine gives a credit that it owes.
const PATIENCE: Duration = Duration::from_millis(2500);
/// Longest message in bytes.
const LONGEST: u32 = 1 << 20;
/// Idle time until a peer is checked. Longer than a loaded machine lets a thread wait.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// Time for the last messages of a connection to a peer that does not read them.
const LINGER: Duration = Duration::from_secs(1);

fn options() -> NodeOptions {
    NodeOptions::new().window(8).timeout(LIMIT).linger(LINGER).keep_alive(KEEP_ALIVE).max_connections(16)
}

/// A HELLO of version 1: 8 receives of 4112 bytes, messages of up to 1 MiB, offers, no
/// keep-alive.
fn hello() -> [u8; 32] {
    let mut hello = [0; 32];
    hello[..8].copy_from_slice(b"RDN1\x01\x01\x20\x00");
    hello[11] = 1;
    hello[13..15].copy_from_slice(&[8, 4]);
    hello[16..20].copy_from_slice(&4112_u32.to_be_bytes());
    hello[20..28].copy_from_slice(&u64::from(LONGEST).to_be_bytes());
    hello
}

/// An end without the state machine of `rdma::net`: it keeps the rules that it wants to keep.
struct Attacker {
    pd: ProtectionDomain,
    qp: QueuePair<Rc>,
    poller: Poller,
    connection: blocking::Connection,
    spares: Vec<Buffer>,
    /// Data messages sent, and those that the victim lets this end send.
    sent: u32,
    limit: u32,
    /// The limit that the victim is told.
    granted: u32,
    owes_echo: bool,
    /// Kind and payload of the messages that have come.
    received: Vec<(u8, Vec<u8>)>,
    /// The first completion with an error: the connection has ended.
    end: Option<WcError>,
    /// Whether the victim has ended the connection, or its error has.
    is_over: bool,
}

/// What an attacker connects with.
#[derive(Clone, Copy)]
struct Means {
    receives: u32,
    /// Reads of the victim that this end's device serves.
    served_reads: u8,
    /// What the queue pair lets the victim do, if not all.
    access: Option<RemoteAccess>,
}

const ALL_MEANS: Means = Means { receives: WINDOW + 4, served_reads: 4, access: None };

impl Attacker {
    fn connect(context: &Context, to: SocketAddr, means: Means) -> Self {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(256).unwrap());
        let route = blocking::resolve::<Rc>(context, None, to, LIMIT).unwrap();
        let qp = pd.queue_pair().cq(&cq).max_send_wr(64).max_recv_wr(64).build().unwrap();
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
            owes_echo: false,
            received: Vec::new(),
            end: None,
            is_over: false,
        }
    }

    /// Sends a message without a look at credits.
    fn send(&mut self, kind: u8, flags: u8, rest: u32, payload: &[u8]) {
        let echo = if std::mem::take(&mut self.owes_echo) { ECHO } else { 0 };
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

    fn send_bytes(&mut self, bytes: &[u8]) {
        let buffer = match self.spares.pop() {
            Some(mut buffer) if bytes.len() <= buffer.len() => {
                buffer[..bytes.len()].copy_from_slice(bytes);
                buffer
            }
            _ => buffer(&self.pd, &[bytes, &[0; 64]].concat()),
        };
        // After the end of the connection the device may refuse it.
        let _refused = self.qp.post_send(Send::new(buffer.part(..bytes.len())));
    }

    fn offer(&mut self, id: u32, slice: RemoteSlice) {
        self.send(OFFER, 0, id, &slice.to_bytes());
    }

    /// Takes a completion; returns whether there was one.
    fn poll(&mut self) -> bool {
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
        self.limit = u32::from_be_bytes(message[4..8].try_into().unwrap());
        self.owes_echo |= kind == UPDATE;
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
    fn wait(&mut self, time: Duration, is_done: impl Fn(&Self) -> bool) -> bool {
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
    fn wait_for_end(&mut self) {
        self.wait(LIMIT, |this| this.is_over);
        assert!(self.is_over, "the victim keeps the connection");
    }

    /// Waits until the victim lets this end send a data message; returns whether it does.
    fn wait_for_credit(&mut self, time: Duration) -> bool {
        self.wait(time, |this| this.limit != this.sent && this.spares.len() < 1000)
    }

    /// Waits for a message of a kind; returns its payload.
    fn expect(&mut self, kind: u8) -> Vec<u8> {
        assert!(self.wait(LIMIT, |this| this.received.iter().any(|message| message.0 == kind)), "{:?}", self.end);
        let at = self.received.iter().position(|message| message.0 == kind).unwrap();
        self.received.remove(at).1
    }

    /// The slice that an OFFER of the victim names.
    fn expect_offer(&mut self) -> RemoteSlice {
        RemoteSlice::from_bytes(self.expect(OFFER)[..].try_into().unwrap())
    }

    fn expose(&self, len: usize, access: RemoteAccess) -> ExposedRegion {
        self.pd.allocate_exposed(len, access).unwrap()
    }
}

/// A node that listens, and an honest connection whose server answers each message.
struct World {
    context: Context,
    node: Node,
    listener: rdma::net::Listener,
    driver: thread::JoinHandle<rdma::Result<()>>,
    honest: Connection,
    echoing: thread::JoinHandle<Result<(), Failure>>,
}

impl World {
    fn new(context: &Context, limits: &ListenOptions) -> Self {
        let (node, driver) = Node::new(context, &options()).unwrap();
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
    fn attack<A: std::marker::Send, V>(
        &mut self,
        means: Means,
        attack: impl FnOnce(&mut Attacker) -> A + std::marker::Send,
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
    fn check(&mut self) {
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

    fn end(self) {
        let Self { node, listener, driver, honest, echoing, .. } = self;
        drop(honest);
        echoing.join().unwrap().unwrap();
        drop((listener, node));
        driver.join().unwrap().unwrap();
    }
}

/// Receives until the connection fails.
fn failure_of(accepted: Result<Connection, Failure>) -> Failure {
    let mut connection = match accepted {
        Ok(connection) => connection,
        Err(failure) => return failure,
    };
    loop {
        match block_on(connection.next()) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no attack ends in good order"),
            Err(failure) => return failure,
        }
    }
}

/// The device under test, if attackers can connect to it and their device serves reads as RoCE
/// does: on iWARP long messages go in fragments, and a peer must not send early.
fn device() -> Option<Context> {
    let context = open().context;
    let is_fit = available(&context)
        && context.capabilities().waits_for_receives
        && !context.capabilities().read_needs_exposed_sink;
    is_fit.then_some(context)
}

/// A listener of each kind.
fn listeners() -> [ListenOptions; 2] {
    [ListenOptions::new(), ListenOptions::new().shared_receives(24)]
}

#[test]
fn offers_that_lie_are_unreadable() {
    let Some(context) = device() else { return };
    let lies: [fn(&mut Attacker) -> Option<ExposedRegion>; 4] = [
        |attacker| {
            // Longer than the memory.
            let region = attacker.expose(4096, RemoteAccess::READ);
            let slice = region.remote(..).unwrap();
            attacker.offer(0, RemoteSlice::new(slice.address(), 8192, slice.rkey()));
            Some(region)
        },
        |attacker| {
            // Without the right.
            let region = attacker.expose(4096, RemoteAccess::WRITE);
            attacker.offer(0, region.remote(..).unwrap());
            Some(region)
        },
        |attacker| {
            // Of another domain of the attacker.
            let other = attacker.pd.context().alloc_pd().unwrap();
            let region = other.allocate_exposed(4096, RemoteAccess::READ).unwrap();
            attacker.offer(0, region.remote(..).unwrap());
            Some(region)
        },
        |attacker| {
            // The victim's own memory.
            let slice = attacker.expect_offer();
            attacker.offer(0, slice);
            None
        },
    ];
    for limits in listeners() {
        let mut world = World::new(&context, &limits);
        for lie in lies {
            let attack = |attacker: &mut Attacker| {
                let region = lie(attacker);
                attacker.wait_for_end();
                drop(region);
            };
            let ((), failure) = world.attack(ALL_MEANS, attack, |victim| {
                // It may have failed before.
                let _sent = victim.as_ref().map(|victim| block_on(victim.send(vec![1; 100_000])));
                failure_of(victim)
            });
            assert_eq!(failure.as_violation(), Some(Violation::UnreadableOffer), "{failure}");
        }
        world.end();
    }
}

#[test]
fn an_offer_withdrawn_while_it_is_read_fails_its_connection_alone() {
    let Some(context) = device() else { return };
    for limits in listeners() {
        let mut world = World::new(&context, &limits);
        for round in 0..20 {
            let attack = |attacker: &mut Attacker| {
                for id in 0..4 {
                    let region = attacker.expose(200_000, RemoteAccess::READ);
                    attacker.wait_for_credit(LIMIT);
                    attacker.offer(id, region.remote(..).unwrap());
                    // No DONE has come: the device of the victim may read at this moment.
                    thread::sleep(Duration::from_micros(round * 20));
                    drop(region);
                }
                // Fails at the latest.
                attacker.offer(4, RemoteSlice::new(4096, 8, 1));
                attacker.wait_for_end();
            };
            let ((), failure) = world.attack(ALL_MEANS, attack, failure_of);
            assert_eq!(failure.as_violation(), Some(Violation::UnreadableOffer), "{failure}");
        }
        world.end();
    }
}

#[test]
fn answers_to_offers_that_were_answered_or_never_made_are_violations() {
    let Some(context) = device() else { return };
    for limits in listeners() {
        let mut world = World::new(&context, &limits);
        for ids in [[0, 0], [1, 0]] {
            let attack = |attacker: &mut Attacker| {
                attacker.expect_offer();
                for id in ids {
                    attacker.send(DONE, 0, id, &[0; 4]);
                }
                attacker.wait_for_end();
            };
            let ((), failure) = world.attack(ALL_MEANS, attack, |victim| {
                let victim = victim.unwrap();
                let region = victim.domain().allocate_exposed(100_000, RemoteAccess::READ).unwrap();
                let (to, mut from) = victim.split();
                let sent = block_on(to.send_exposed(region.slice(..).unwrap()));
                // The first of two answers was one.
                assert_eq!(sent.is_ok(), ids == [0, 0], "{sent:?}");
                let failure = block_on(from.next()).map(drop).unwrap_err();
                region.revoke().unwrap();
                failure
            });
            assert_eq!(failure.as_violation(), Some(Violation::UnexpectedDone), "{failure}");
        }
        world.end();
    }
}

#[test]
fn a_key_to_read_opens_nothing_else() {
    let Some(context) = device() else { return };
    for limits in listeners() {
        let mut world = World::new(&context, &limits);
        let attack = |attacker: &mut Attacker| {
            let slice = attacker.expect_offer();
            let (write, read) = (attacker.pd.allocate(64).unwrap(), attacker.pd.allocate(64).unwrap());
            attacker.qp.post_send(Read::new(read, slice.slice(..64).unwrap())).unwrap();
            attacker.qp.post_send(Write::new(write, slice.slice(..64).unwrap())).unwrap();
            attacker.wait_for_end();
        };
        let (_, failure) = world.attack(ALL_MEANS, attack, |victim| {
            block_on(victim.as_ref().unwrap().send(vec![1; 100_000])).unwrap();
            failure_of(victim)
        });
        assert_eq!(failure.kind(), FailureKind::PeerGone, "{failure}");
        world.end();
    }
}

#[test]
fn a_message_longer_than_a_receive_is_too_long() {
    let Some(context) = device() else { return };
    for limits in listeners() {
        let mut world = World::new(&context, &limits);
        let attack = |attacker: &mut Attacker| {
            attacker.send(DATA, FIRST | LAST, 0, &[1; 8000]);
            attacker.wait_for_end();
        };
        let ((), failure) = world.attack(ALL_MEANS, attack, failure_of);
        // Devices differ in the status of such a receive.
        if context.is_software() {
            assert_eq!(failure.as_violation(), Some(Violation::TooLong), "{failure}");
        }
        world.end();
    }
}

#[test]
fn a_flood_of_control_messages_is_a_violation() {
    let Some(context) = device() else { return };
    for limits in listeners() {
        let mut world = World::new(&context, &limits);
        for (kind, violation) in [(PING, Violation::PingUnanswered), (UPDATE, Violation::UpdateUnanswered)] {
            let attack = |attacker: &mut Attacker| {
                for _ in 0..40 {
                    attacker.send(kind, 0, 0, &[]);
                }
                attacker.wait_for_end();
            };
            let ((), failure) = world.attack(ALL_MEANS, attack, failure_of);
            assert_eq!(failure.as_violation(), Some(violation), "{failure}");
        }
        world.end();
    }
}

#[test]
fn a_peer_that_reads_nothing_is_gone() {
    let Some(context) = device() else { return };
    for limits in listeners() {
        let mut world = World::new(&context, &limits);
        // It has no receive, or has receives but grants nothing for those that are used.
        for receives in [0, WINDOW + 4] {
            let attack = |attacker: &mut Attacker| {
                assert!(attacker.connection.wait_disconnected(Some(LIMIT)).unwrap(), "the victim gives up");
            };
            let ((), failure) = world.attack(Means { receives, ..ALL_MEANS }, attack, |victim| {
                let victim = victim.unwrap();
                let sending = async {
                    loop {
                        if let Err(failure) = victim.send([1; 100]).await {
                            return failure;
                        }
                    }
                };
                block_on(sending)
            });
            assert_eq!(failure.kind(), FailureKind::PeerGone, "{failure}");
        }
        // It closes, and has no receive for the answer.
        let attack = |attacker: &mut Attacker| {
            attacker.send(CLOSE, 0, 9, &[]);
            attacker.wait_for_end();
        };
        let ((), failure) = world.attack(Means { receives: 0, ..ALL_MEANS }, attack, failure_of);
        assert_eq!(failure.code(), Some(9), "{failure}");
        world.end();
    }
}

#[test]
fn reads_that_the_peer_does_not_serve_fail_its_connection() {
    let Some(context) = device() else { return };
    for limits in listeners() {
        let mut world = World::new(&context, &limits);
        let no_right = Means { access: Some(RemoteAccess::WRITE), ..ALL_MEANS };
        for means in [no_right, Means { served_reads: 0, ..ALL_MEANS }] {
            let attack = |attacker: &mut Attacker| {
                let region = attacker.expose(4096, RemoteAccess::READ);
                attacker.offer(0, region.remote(..).unwrap());
                attacker.wait_for_end();
            };
            let ((), failure) = world.attack(means, attack, failure_of);
            assert_eq!(failure.as_violation(), Some(Violation::UnreadableOffer), "{failure}");
        }
        world.end();
    }
}

/// The number of messages that a victim takes although its application reads none. The peer keeps
/// all rules.
fn taken(context: &Context, limits: &ListenOptions, flood: impl Fn(&mut Attacker) -> u32 + Sync) -> u32 {
    let mut world = World::new(context, limits);
    let (done, is_done) = std::sync::mpsc::channel();
    let attack = |attacker: &mut Attacker| {
        let count = flood(attacker);
        // Nothing was refused.
        assert!(attacker.end.is_none(), "{:?}", attacker.end);
        done.send(()).unwrap();
        attacker.wait_for_end();
        count
    };
    let (count, ()) = world.attack(ALL_MEANS, attack, |victim| {
        let victim = victim.unwrap();
        is_done.recv_timeout(LIMIT).unwrap();
        drop(victim);
    });
    world.end();
    count
}

#[test]
fn short_messages_in_fragments_that_nobody_reads_are_few() {
    let Some(context) = device() else { return };
    for limits in listeners() {
        let count = taken(&context, &limits, |attacker| {
            let mut count = 0;
            while attacker.wait_for_credit(PATIENCE) {
                attacker.send(DATA, FIRST, 1, b"a");
                if !attacker.wait_for_credit(PATIENCE) {
                    break;
                }
                attacker.send(DATA, LAST, 0, b"b");
                count += 1;
            }
            count
        });
        println!("{count} messages of 2 bytes");
        // At 100 bytes of memory each, 256 KiB have room for so many.
        assert!((100..2700).contains(&count), "{count} messages");
    }
}

#[test]
fn short_offers_that_nobody_takes_are_few() {
    let Some(context) = device() else { return };
    for limits in listeners() {
        let count = taken(&context, &limits, |attacker| {
            let region = attacker.expose(4096, RemoteAccess::READ);
            let slice = region.remote(..1).unwrap();
            let mut done = 0;
            for id in 0..200 {
                while id >= done + 16 {
                    if !attacker.wait(PATIENCE, |this| this.received.iter().any(|one| one.0 == DONE)) {
                        return done;
                    }
                    attacker.expect(DONE);
                    done += 1;
                }
                if !attacker.wait_for_credit(PATIENCE) {
                    return done;
                }
                attacker.offer(id, slice);
            }
            done
        });
        println!("{count} offers of 1 byte");
        // Each has a buffer of 4 KiB.
        assert_eq!(count, 16);
    }
}
