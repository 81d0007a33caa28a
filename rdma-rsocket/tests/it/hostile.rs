//! Peers that break the protocol of streams. They speak it by verbs, so they send what they want.
//! No call hangs, no memory but the offered one changes, and other connections go on.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};

use rdma::cm::ConnOptions;
use rdma::cm::blocking::{Connection, ListenOptions, Listener, resolve};
use rdma::op;
use rdma::transport::Rc;
use rdma::{Context, DeviceSelector, ExposedRegion, Poller, ProtectionDomain, QueuePair, RemoteAccess, RemoteSlice};
use rdma_rsocket::Socket;
use rdma_test_support::{LIMIT, until};

use crate::common::{errno, listener, stream};

/// Messages, as immediate data holds them.
const DATA: u32 = 0;
const UNDEFINED: u32 = 1 << 29;
const CREDITS: u32 = 4 << 29;
const IO_MAP: u32 = 6 << 29;
const DISCONNECT: u32 = 7 << 29;
const UNKNOWN_CONTROL: u32 = 7 << 29 | 77;

/// Bytes of the peer's receive buffer; its target list lies behind it.
const BUFFER: usize = 4096;

fn device() -> (Context, ProtectionDomain) {
    let selector: DeviceSelector = "soft0".parse().expect("a name");
    let context = rdma::open(&selector).expect("the device").context;
    let pd = context.alloc_pd().expect("a domain");
    (context, pd)
}

/// Connection data: version, credits, target list, receive buffer.
fn hello(inbox: &ExposedRegion, version: u8, targets: u32) -> Vec<u8> {
    let range = |offset: usize, len: u32| {
        let slice = inbox.remote(offset..).expect("a part");
        [&slice.address().to_be_bytes()[..], &slice.rkey().to_be_bytes(), &len.to_be_bytes()].concat()
    };
    [&[version, 0, 0, 64, 0, 0, 0, 0][..], &range(BUFFER, targets), &range(0, 2048)].concat()
}

/// The peer of a stream.
struct Peer {
    qp: QueuePair<Rc>,
    poller: Poller,
    pd: ProtectionDomain,
    inbox: ExposedRegion,
    /// The stream's target list and first receive buffer, as its connection data names them.
    targets: RemoteSlice,
    buffer: RemoteSlice,
    _connection: Connection,
}

impl Peer {
    /// Connects to a listener. `None` if it rejects the connection data.
    fn connect(address: SocketAddr, hello: impl Fn(&ExposedRegion) -> Vec<u8>) -> Option<Self> {
        let (context, pd) = device();
        let inbox = pd.allocate_exposed(2 * BUFFER, RemoteAccess::WRITE).expect("memory");
        let cq = context.create_cq(1024).expect("a queue");
        let qp = QueuePair::builder(&pd).cq(&cq).max_send_wr(500).max_recv_wr(500).build().expect("a queue pair");
        let route = resolve::<Rc>(&context, None, address, LIMIT).expect("a route");
        let mut qp = route.init(qp).expect("INIT");
        (0..400).for_each(|token| qp.post_recv((), token).expect("a receive"));
        let options = ConnOptions::new().private_data(&hello(&inbox));
        let (connection, qp) = route.connect(qp, &options, LIMIT).ok()?;
        let range = |at: usize, entry: u32| {
            let bytes = &connection.private_data()[at..at + 16];
            let [address, rest] = [0, 8].map(|at| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("a word")));
            #[allow(clippy::cast_possible_truncation, reason = "cut to its halves")]
            let (key, len) = ((rest >> 32) as u32, rest as u32);
            RemoteSlice::new(address, u64::from(len) * u64::from(entry), key)
        };
        let (targets, buffer) = (range(8, 16), range(24, 1));
        Some(Self { qp, poller: cq.poller(), pd, inbox, targets, buffer, _connection: connection })
    }

    /// Writes bytes to memory of the stream, with a message.
    fn write(&mut self, bytes: &[u8], to: RemoteSlice, message: u32) {
        let mut buffer = self.pd.allocate(bytes.len().max(1)).expect("memory");
        buffer.truncate(bytes.len());
        buffer.copy_from_slice(bytes);
        while let Err(refused) = self.qp.post_send(op::write_imm(buffer, to, message)) {
            buffer = refused.into_memory().expect("the memory");
            let _completion = self.poller.wait(Some(LIMIT)).expect("a completion");
        }
    }

    /// Sends a message without data.
    fn tell(&mut self, message: u32) {
        self.write(&[], RemoteSlice::new(0, 0, 0), message);
    }

    fn send(&mut self, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).expect("a short message");
        self.write(bytes, self.buffer, DATA | len);
        self.buffer = self.buffer.slice(bytes.len()..).expect("room");
    }
}

/// A hostile peer, and the stream that it is connected to.
fn pair() -> (Peer, Socket) {
    let (listener, address) = listener();
    let peer = Peer::connect(address, |inbox| hello(inbox, 1, 2)).expect("a connection");
    (peer, listener.accept().expect("the connection").0)
}

#[test]
fn connection_data_that_makes_no_sense_is_refused_and_the_listener_goes_on() {
    let (listener, address) = listener();
    let bad: [fn(&ExposedRegion) -> Vec<u8>; 5] = [
        |_| Vec::new(),
        |inbox| hello(inbox, 2, 2),
        |inbox| hello(inbox, 1, 1),
        |inbox| hello(inbox, 1, 0),
        |_| vec![0xff; 56],
    ];
    for hello in bad {
        assert!(Peer::connect(address, hello).is_none());
    }
    let mut client = stream();
    client.connect(address).expect("a connection");
    client.write_all(b"x").expect("a send");
    listener.accept().expect("the connection").0.read_exact(&mut [0]).expect("the byte");
}

#[test]
fn an_answer_that_makes_no_sense_ends_the_connect() {
    let (context, pd) = device();
    let inbox = pd.allocate_exposed(2 * BUFFER, RemoteAccess::WRITE).expect("memory");
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let listener = Listener::<Rc>::bind(&context, any, &ListenOptions::new()).expect("a listener");
    for answer in [Vec::new(), hello(&inbox, 0, 2), hello(&inbox, 1, 1), vec![0xff; 100]] {
        let client = stream();
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| client.connect(listener.local_addr()));
            let cq = context.create_cq(64).expect("a queue");
            let request = listener.next_request(Some(LIMIT)).expect("a listener").expect("a request");
            let qp = request.init(QueuePair::builder(&pd).cq(&cq).build().expect("a queue pair")).expect("INIT");
            let accepted = request.accept(qp, &ConnOptions::new().private_data(&answer), LIMIT);
            assert_eq!(errno(connecting.join().expect("the thread")), libc::EPROTO);
            drop(accepted);
        });
        assert_eq!(errno(client.peer_address()), libc::ENOTCONN);
    }
}

#[test]
fn a_message_that_the_protocol_does_not_allow_ends_the_connection() {
    let bad: [fn(&mut Peer); 5] = [
        |peer| peer.tell(UNDEFINED),
        |peer| peer.tell(3 << 29),
        // More than was offered.
        |peer| peer.tell(UNDEFINED - 1),
        |peer| peer.tell(u32::try_from(peer.buffer.len()).expect("an offer") + 1),
        // More messages than credits.
        |peer| (0..500).for_each(|_| peer.tell(DATA)),
    ];
    for attack in bad {
        let (mut peer, mut stream) = pair();
        attack(&mut peer);
        assert_eq!(errno(stream.read(&mut [0])), libc::EPROTO);
        assert!(stream.write(b"x").is_err());
        stream.close().expect("a close");
    }
}

#[test]
fn messages_that_mean_nothing_change_nothing() {
    let (mut peer, mut stream) = pair();
    for message in [UNKNOWN_CONTROL, IO_MAP | 0xffff, CREDITS | 64, DATA] {
        peer.tell(message);
    }
    peer.send(b"good");
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).expect("the data");
    assert_eq!(&bytes, b"good");
    stream.write_all(b"fine").expect("a send");
    peer.tell(DISCONNECT);
    peer.tell(DATA | 5);
    assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
    until("the data arrives", || {
        peer.inbox.copy_out(0, &mut bytes).expect("the buffer");
        &bytes == b"fine"
    });
}

#[test]
fn buffers_that_are_not_there_end_the_connection() {
    let (mut peer, mut stream) = pair();
    // The next buffer has a key of nobody; credits without limit.
    let entry = [&0x1000_u64.to_ne_bytes()[..], &[0xff; 8]].concat();
    let second = peer.targets.slice(16..).expect("two entries");
    peer.write(&entry, second, CREDITS | 0xffff);
    let written = loop {
        match stream.write(&[7; 4096]) {
            Ok(len) => assert!(len > 0),
            Err(error) => break error.raw_os_error(),
        }
    };
    assert_eq!(written, Some(libc::ECONNRESET));
    let mut bytes = [0; BUFFER];
    peer.inbox.copy_out(0, &mut bytes).expect("the buffer");
    assert!(bytes[..2048].iter().all(|byte| *byte == 7) && bytes[2048..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_write_beyond_the_streams_memory_ends_the_connection() {
    let (mut peer, mut stream) = pair();
    let beyond = RemoteSlice::new(peer.targets.address() + (1 << 20), 64, peer.targets.rkey());
    peer.qp.post_send(op::write_inline(&[1; 8], beyond)).expect("a request");
    let completion = peer.poller.wait(Some(LIMIT)).expect("a poll").expect("a completion");
    assert!(completion.status().is_err());
    // The device tells nobody but the peer, which ends the connection.
    drop(peer);
    assert!(matches!(stream.read(&mut [0]).map_err(|error| error.raw_os_error()), Ok(0) | Err(Some(libc::ECONNRESET))));
}
