//! Datagram queue pairs for device tests.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use rdma::transport::Ud;
use rdma::{
    AddressHandle, CompletionQueue, Context, Datagram, DatagramEndpoint, DatagramOptions, Gid, Grh,
    InitializedQueuePair, Opened, Poller, ProtectionDomain, QueuePair, TransportType, WcError,
};

use crate::report::{Reported, timed_out};
use crate::{LIMIT, skip};

/// The Q_Key of the tests.
pub const QKEY: u32 = 0x1122_3344;

/// Silence after which a datagram counts as lost. A datagram may also be late, so no test relies on
/// this time alone.
pub const SILENCE: Duration = Duration::from_millis(20);

/// Opens the device under test, if it has datagrams.
///
/// # Panics
///
/// If the device is missing.
#[must_use]
pub fn open() -> Option<Opened> {
    let opened = crate::open();
    if opened.context.device().transport() == TransportType::IWARP {
        skip("iWARP has no datagrams");
        return None;
    }
    Some(opened)
}

/// A datagram queue pair with its device and completion queues.
#[derive(Debug)]
pub struct Post {
    /// The open device.
    pub context: Context,
    /// The port of the queue pair.
    pub port: u8,
    /// The protection domain.
    pub pd: ProtectionDomain,
    /// The queue pair.
    pub qp: Reported<Ud>,
    /// Poller of the sends' completions.
    pub sends: Poller,
    /// Poller of the receives' completions.
    pub receives: Poller,
    /// The address of the queue pair.
    pub endpoint: DatagramEndpoint,
}

/// Creates a queue pair in INIT and its completion queues.
///
/// # Panics
///
/// If the device cannot create them.
#[must_use]
pub fn initialized(opened: &Opened, qkey: u32) -> (InitializedQueuePair<Ud>, [CompletionQueue; 2], ProtectionDomain) {
    let pd = opened.context.alloc_pd().expect("a protection domain");
    let cqs = [(); 2].map(|()| opened.context.create_cq(32).expect("a completion queue"));
    let qp = QueuePair::datagram(&pd)
        .send_cq(&cqs[0])
        .recv_cq(&cqs[1])
        .max_send_sge(2)
        .max_recv_sge(2)
        .max_inline_data(64)
        .build()
        .expect("a datagram queue pair")
        .init(&DatagramOptions::new(qkey).port(opened.port))
        .expect("INIT");
    (qp, cqs, pd)
}

impl Post {
    /// Creates a queue pair that is ready to send.
    ///
    /// # Panics
    ///
    /// If the device cannot create one.
    #[must_use]
    pub fn new(opened: &Opened) -> Self {
        Self::with_key(opened, QKEY)
    }

    /// Creates a queue pair with its own Q_Key.
    ///
    /// # Panics
    ///
    /// If the device cannot create one.
    #[must_use]
    pub fn with_key(opened: &Opened, qkey: u32) -> Self {
        let (qp, [sends, receives], pd) = initialized(opened, qkey);
        let qp = qp.ready().expect("RTS");
        Self {
            context: opened.context.clone(),
            port: opened.port,
            pd,
            endpoint: qp.endpoint().expect("bound to a port"),
            qp: qp.into(),
            sends: sends.poller(),
            receives: receives.poller(),
        }
    }

    /// Creates an address handle for another queue pair.
    ///
    /// # Panics
    ///
    /// If the device cannot create one.
    #[must_use]
    pub fn address_of(&self, peer: &Self) -> AddressHandle {
        self.qp.address_of(&peer.endpoint).expect("an address handle")
    }

    /// Posts a receive for a payload of `len` bytes.
    ///
    /// # Panics
    ///
    /// If the post is refused.
    pub fn receive(&mut self, len: usize, token: u64) {
        self.qp.post_recv(self.pd.allocate(Grh::LEN + len).expect("memory"), token).expect("a receive");
    }

    /// Waits for the next datagram.
    ///
    /// # Panics
    ///
    /// If none arrives in time, or the receive fails.
    #[track_caller]
    pub fn arrived(&mut self) -> Arrived {
        let begin = Instant::now();
        let Some(mut completion) = self.receives.wait(Some(LIMIT)).expect("poll") else {
            timed_out("datagram", begin.elapsed());
        };
        assert_eq!(completion.status(), Ok(()));
        let (token, imm, byte_len) = (completion.token(), completion.imm(), completion.byte_len());
        let datagram = completion.take_datagram().expect("one buffer was posted");
        Arrived { token, imm, byte_len, datagram }
    }

    /// Waits for the next completion of a send.
    ///
    /// # Panics
    ///
    /// If no send completes in time.
    #[track_caller]
    pub fn sent(&mut self) -> (u64, Result<(), WcError>) {
        let begin = Instant::now();
        let Some(completion) = self.sends.wait(Some(LIMIT)).expect("poll") else {
            timed_out("completion of a send", begin.elapsed());
        };
        (completion.token(), completion.status())
    }

    /// Whether no datagram arrives within `SILENCE`.
    ///
    /// # Panics
    ///
    /// If polling fails.
    pub fn is_silent(&mut self) -> bool {
        self.receives.wait(Some(SILENCE)).expect("poll").is_none()
    }
}

/// A datagram that arrived.
#[derive(Debug)]
pub struct Arrived {
    /// The receive's token.
    pub token: u64,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Bytes of the completion: the payload and the 40 bytes of the GRH.
    pub byte_len: usize,
    /// The payload and its source.
    pub datagram: Datagram,
}

/// A multicast group that no other test and no other process uses, in the form of the device's
/// addresses.
///
/// # Panics
///
/// Never: the address has the form of a group.
#[must_use]
pub fn group(post: &Post, number: u8) -> Gid {
    let [.., high, low] = std::process::id().to_be_bytes();
    match post.endpoint.gid.and_then(Gid::ipv4) {
        Some(_) => Ipv4Addr::new(239, high, low, number).into(),
        None => format!("ff12::{high:x}:{low:x}:{number:x}").parse().expect("a GID"),
    }
}

/// Makes the host's network deliver a group to local members while the socket lives, as joining by
/// the connection manager does on RoCE.
///
/// # Panics
///
/// If no socket can be created.
#[must_use]
pub fn join(post: &Post, gid: Gid) -> Option<UdpSocket> {
    let (group, interface) = (gid.ipv4()?, post.endpoint.gid?.ipv4()?);
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    // A failed join is ignored: the software device needs no network, and its host may have none.
    socket.join_multicast_v4(&group, &interface).ok().map(|()| socket)
}

/// Creates an address handle for a group, from the GID of the queue pair.
///
/// # Panics
///
/// If the device cannot create one.
#[must_use]
pub fn address_of_group(post: &Post, gid: Gid) -> AddressHandle {
    let mut path = post.qp.path_to(&post.endpoint).unwrap();
    let route = path.route.get_or_insert_default();
    route.gid = gid;
    route.hop_limit = 1;
    post.pd.create_ah(&path).unwrap()
}
