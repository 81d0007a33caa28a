//! The protocol between two connection managers: one message per packet, versioned, of a fixed
//! little-endian layout.
//!
//! ```text
//! magic "rscm", version u16, kind u16, then by kind:
//! 1 Req      source, destination (addresses), terms (bytes: retries, ack timeout, traffic class)
//! 2 Mra      -
//! 3 Rep      terms (bytes: zero)
//! 4 Rtu      -
//! 5 Rej      reason u16, private
//! 6 Dreq     -
//! 7 Drep     -
//! 8 Busy     -
//! 9 SidrReq  source, destination, private
//! 10 SidrRep status u8, queue pair u32, qkey u32, private
//! ```
//!
//! An address is a family (u16, 4 or 6), a port u16, a scope u32 and 16 bytes; private data is a
//! length u16 and that many bytes. Terms are queue pair u32, psn u32, responder resources,
//! initiator depth, rnr retries, flow control, srq (a byte each), three more bytes (which the table
//! names), ECE vendor u32, ECE options u32, private. A packet of any other form is not a message.

use std::mem::discriminant;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// The protocol's version.
pub(super) const VERSION: u16 = 1;
const MAGIC: [u8; 4] = *b"rscm";

/// Bytes of private data in each kind of message, as in InfiniBand; the first 36 bytes of both
/// kinds of request hold the IP addresses there.
pub(super) mod room {
    pub(crate) const REQ: usize = 92 - 36;
    pub(crate) const REP: usize = 196;
    pub(crate) const REJ: usize = 148;
    pub(crate) const SIDR_REQ: usize = 216 - 36;
    pub(crate) const SIDR_REP: usize = 136;
}

/// Enhanced connection establishment (ECE): vendor-specific options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ece {
    pub(super) vendor: u32,
    pub(super) options: u32,
}

/// The connection parameters that either side sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) qp_num: u32,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) flow_control: bool,
    pub(super) srq: bool,
    pub(super) ece: Ece,
    pub(super) private: Vec<u8>,
}

impl Terms {
    /// The terms with their values cut to the bits that a message can carry.
    pub(super) fn fitted(self) -> Self {
        Self { qp_num: self.qp_num & 0x00ff_ffff, rnr_retry_count: self.rnr_retry_count.min(7), ..self }
    }
}

/// A connection request (REQ).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Req {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// The first PSN that the sender expects.
    pub(super) psn: u32,
    pub(super) terms: Terms,
    pub(super) retry_count: u8,
    pub(super) ack_timeout: u8,
    pub(super) traffic_class: u8,
}

/// The reply that accepts a connection request (REP).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rep {
    pub(super) psn: u32,
    pub(super) terms: Terms,
}

/// The reply that rejects a connection (REJ).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rej {
    pub(super) reason: u16,
    pub(super) private: Vec<u8>,
}

/// A request for the queue pair of a datagram service (SIDR_REQ).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SidrReq {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) private: Vec<u8>,
}

/// The reply to a `SidrReq`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SidrRep {
    /// 0 if the service accepts and `qp_num` is valid; otherwise the reason.
    pub(super) status: u8,
    pub(super) qp_num: u32,
    pub(super) qkey: u32,
    pub(super) private: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Req(Req),
    /// The request or reply has arrived; answering takes more time.
    Mra,
    Rep(Rep),
    Rtu,
    Rej(Rej),
    Dreq,
    Drep,
    /// The listener's backlog is full: the request counts as lost, and the transport ends.
    Busy,
    SidrReq(SidrReq),
    SidrRep(SidrRep),
}

impl Message {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(128));
        let mut head = (MAGIC, VERSION, self.kind());
        let written = out.head(&mut head).and_then(|()| self.clone().fields(&mut out));
        debug_assert!(written.is_some(), "a message of ours that no peer takes");
        out.0
    }

    /// Decodes a packet; `None` unless the packet is exactly one valid message.
    pub(super) fn decode(packet: &[u8]) -> Option<Self> {
        let mut from = Reader(packet);
        let mut head = Default::default();
        from.head(&mut head)?;
        let (MAGIC, VERSION, kind) = head else { return None };
        let mut message = Self::blank(kind)?;
        message.fields(&mut from)?;
        from.0.is_empty().then_some(message)
    }

    fn kind(&self) -> u16 {
        let is_ours = |kind: &u16| Self::blank(*kind).is_some_and(|blank| discriminant(&blank) == discriminant(self));
        (1..=10).find(is_ours).unwrap_or(0)
    }

    /// An empty message of a kind, for [`fields`](Self::fields) to fill in.
    fn blank(kind: u16) -> Option<Self> {
        let (source, destination) = ((Ipv4Addr::UNSPECIFIED, 0).into(), (Ipv4Addr::UNSPECIFIED, 0).into());
        Some(match kind {
            1 => {
                let (terms, psn, retry_count, ack_timeout, traffic_class) = Default::default();
                Self::Req(Req { source, destination, psn, terms, retry_count, ack_timeout, traffic_class })
            }
            2 => Self::Mra,
            3 => Self::Rep(Rep::default()),
            4 => Self::Rtu,
            5 => Self::Rej(Rej::default()),
            6 => Self::Dreq,
            7 => Self::Drep,
            8 => Self::Busy,
            9 => Self::SidrReq(SidrReq { source, destination, private: Vec::new() }),
            10 => Self::SidrRep(SidrRep::default()),
            _ => return None,
        })
    }

    /// Writes or reads the fields behind the header; `None` for an invalid value.
    fn fields(&mut self, pass: &mut impl Pass) -> Option<()> {
        match self {
            Self::Mra | Self::Rtu | Self::Dreq | Self::Drep | Self::Busy => Some(()),
            Self::Req(req) => {
                pass.addresses(&mut req.source, &mut req.destination)?;
                let mut more = [req.retry_count, req.ack_timeout, req.traffic_class];
                pass.terms(&mut req.terms, &mut req.psn, &mut more, room::REQ)?;
                [req.retry_count, req.ack_timeout, req.traffic_class] = more;
                (req.retry_count < 8 && req.ack_timeout < 32).then_some(())
            }
            Self::Rep(rep) => {
                let mut zero = [0; 3];
                pass.terms(&mut rep.terms, &mut rep.psn, &mut zero, room::REP)?;
                (zero == [0; 3]).then_some(())
            }
            Self::Rej(rej) => {
                pass.u16(&mut rej.reason)?;
                pass.private(&mut rej.private, room::REJ)
            }
            Self::SidrReq(req) => {
                pass.addresses(&mut req.source, &mut req.destination)?;
                pass.private(&mut req.private, room::SIDR_REQ)
            }
            Self::SidrRep(rep) => {
                pass.u8(&mut rep.status)?;
                pass.u24(&mut rep.qp_num)?;
                pass.u32(&mut rep.qkey)?;
                pass.private(&mut rep.private, room::SIDR_REP)
            }
        }
    }
}

/// One pass over the fields of a message, in order: a `Writer` writes them, a `Reader` fills
/// them in. `None` if the bytes are not a valid message.
trait Pass {
    fn bytes(&mut self, bytes: &mut [u8]) -> Option<()>;

    /// Writes the vector, or replaces its contents by the next `len` bytes.
    fn contents(&mut self, bytes: &mut Vec<u8>, len: usize) -> Option<()>;

    fn u8(&mut self, value: &mut u8) -> Option<()> {
        self.bytes(std::slice::from_mut(value))
    }

    fn u16(&mut self, value: &mut u16) -> Option<()> {
        let mut bytes = value.to_le_bytes();
        self.bytes(&mut bytes)?;
        *value = u16::from_le_bytes(bytes);
        Some(())
    }

    fn u32(&mut self, value: &mut u32) -> Option<()> {
        let mut bytes = value.to_le_bytes();
        self.bytes(&mut bytes)?;
        *value = u32::from_le_bytes(bytes);
        Some(())
    }

    /// A 24-bit number: a queue pair number or a PSN.
    fn u24(&mut self, value: &mut u32) -> Option<()> {
        self.u32(value)?;
        (*value < 1 << 24).then_some(())
    }

    fn flag(&mut self, value: &mut bool) -> Option<()> {
        let mut byte = u8::from(*value);
        self.u8(&mut byte)?;
        *value = byte == 1;
        (byte < 2).then_some(())
    }

    fn head(&mut self, (magic, version, kind): &mut ([u8; 4], u16, u16)) -> Option<()> {
        self.bytes(magic)?;
        self.u16(version)?;
        self.u16(kind)
    }

    /// Terms, with the sender's PSN and the three more bytes of a request.
    fn terms(&mut self, terms: &mut Terms, psn: &mut u32, more: &mut [u8; 3], room: usize) -> Option<()> {
        self.u24(&mut terms.qp_num)?;
        self.u24(psn)?;
        self.u8(&mut terms.responder_resources)?;
        self.u8(&mut terms.initiator_depth)?;
        self.u8(&mut terms.rnr_retry_count)?;
        self.flag(&mut terms.flow_control)?;
        self.flag(&mut terms.srq)?;
        self.bytes(more)?;
        self.u32(&mut terms.ece.vendor)?;
        self.u32(&mut terms.ece.options)?;
        self.private(&mut terms.private, room)?;
        (terms.rnr_retry_count < 8).then_some(())
    }

    /// Two addresses, which must be of one family.
    fn addresses(&mut self, source: &mut SocketAddr, destination: &mut SocketAddr) -> Option<()> {
        self.address(source)?;
        self.address(destination)?;
        (source.is_ipv4() == destination.is_ipv4()).then_some(())
    }

    fn address(&mut self, address: &mut SocketAddr) -> Option<()> {
        let (mut port, mut bytes) = (address.port(), [0; 16]);
        let (mut family, mut scope) = match address {
            SocketAddr::V4(v4) => {
                bytes[..4].copy_from_slice(&v4.ip().octets());
                (4, 0)
            }
            SocketAddr::V6(v6) => {
                bytes = v6.ip().octets();
                (6, v6.scope_id())
            }
        };
        self.u16(&mut family)?;
        self.u16(&mut port)?;
        self.u32(&mut scope)?;
        self.bytes(&mut bytes)?;
        *address = match (family, scope, bytes) {
            (4, 0, [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) => {
                SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), port).into()
            }
            (6, ..) => SocketAddrV6::new(Ipv6Addr::from(bytes), port, 0, scope).into(),
            _ => return None,
        };
        Some(())
    }

    fn private(&mut self, private: &mut Vec<u8>, room: usize) -> Option<()> {
        let mut len = u16::try_from(private.len()).ok()?;
        self.u16(&mut len)?;
        let len = usize::from(len);
        if len > room { None } else { self.contents(private, len) }
    }
}

struct Writer(Vec<u8>);

impl Pass for Writer {
    fn bytes(&mut self, bytes: &mut [u8]) -> Option<()> {
        self.0.extend_from_slice(bytes);
        Some(())
    }

    fn contents(&mut self, bytes: &mut Vec<u8>, _len: usize) -> Option<()> {
        self.bytes(bytes)
    }
}

struct Reader<'a>(&'a [u8]);

impl Pass for Reader<'_> {
    fn bytes(&mut self, bytes: &mut [u8]) -> Option<()> {
        let (taken, rest) = self.0.split_at_checked(bytes.len())?;
        bytes.copy_from_slice(taken);
        self.0 = rest;
        Some(())
    }

    fn contents(&mut self, bytes: &mut Vec<u8>, len: usize) -> Option<()> {
        // A bounded allocation: `private` refuses lengths beyond the space of the message.
        bytes.resize(len, 0);
        self.bytes(bytes)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(v4: bool) -> BoxedStrategy<SocketAddr> {
        if v4 {
            (any::<[u8; 4]>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::from((ip, port))).boxed()
        } else {
            (any::<[u8; 16]>(), any::<u16>(), any::<u32>())
                .prop_map(|(ip, port, scope)| SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope)))
                .boxed()
        }
    }

    fn addresses() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
        any::<bool>().prop_flat_map(|v4| (address(v4), address(v4)))
    }

    fn private(room: usize) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), 0..=room)
    }

    fn terms(room: usize) -> impl Strategy<Value = Terms> {
        let depths = (any::<u8>(), any::<u8>());
        let ece = (any::<u32>(), any::<u32>()).prop_map(|(vendor, options)| Ece { vendor, options });
        let all = (0_u32..1 << 24, depths, 0_u8..8, any::<bool>(), any::<bool>(), ece, private(room));
        all.prop_map(|(qp_num, depths, rnr_retry_count, flow_control, srq, ece, private)| Terms {
            qp_num,
            responder_resources: depths.0,
            initiator_depth: depths.1,
            rnr_retry_count,
            flow_control,
            srq,
            ece,
            private,
        })
    }

    pub(in super::super) fn message() -> BoxedStrategy<Message> {
        let number = 0_u32..1 << 24;
        let req = (addresses(), number.clone(), terms(room::REQ), 0_u8..8, 0_u8..32, any::<u8>());
        let req = req.prop_map(|((source, destination), psn, terms, retry_count, ack_timeout, traffic_class)| {
            Message::Req(Req { source, destination, psn, terms, retry_count, ack_timeout, traffic_class })
        });
        let rep = (number.clone(), terms(room::REP)).prop_map(|(psn, terms)| Message::Rep(Rep { psn, terms }));
        let rej =
            (any::<u16>(), private(room::REJ)).prop_map(|(reason, private)| Message::Rej(Rej { reason, private }));
        let sidr_req = (addresses(), private(room::SIDR_REQ)).prop_map(|(addresses, private)| {
            Message::SidrReq(SidrReq { source: addresses.0, destination: addresses.1, private })
        });
        let sidr_rep = (any::<u8>(), number, any::<u32>(), private(room::SIDR_REP))
            .prop_map(|(status, qp_num, qkey, private)| Message::SidrRep(SidrRep { status, qp_num, qkey, private }));
        prop_oneof![
            req,
            rep,
            rej,
            sidr_req,
            sidr_rep,
            Just(Message::Mra),
            Just(Message::Rtu),
            Just(Message::Dreq),
            Just(Message::Drep),
            Just(Message::Busy),
        ]
        .boxed()
    }

    proptest! {
        #[test]
        fn messages_come_back_as_they_went_out(message in message()) {
            let packet = message.encode();
            prop_assert!(packet.len() <= crate::os::socket::MAX_PACKET);
            prop_assert_eq!(Message::decode(&packet), Some(message));
        }

        #[test]
        fn a_shorter_or_longer_packet_is_no_message(message in message(), cut in any::<prop::sample::Index>()) {
            let mut packet = message.encode();
            prop_assert_eq!(Message::decode(&packet[..cut.index(packet.len())]), None);
            packet.push(0);
            prop_assert_eq!(Message::decode(&packet), None);
        }

        #[test]
        fn garbage_is_refused_or_says_what_it_encodes_to(
            message in message(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let mut packet = message.encode();
            let at = at.index(packet.len());
            packet[at] = byte;
            if let Some(other) = Message::decode(&packet) {
                prop_assert_eq!(other.encode(), packet);
            }
        }
    }
}
