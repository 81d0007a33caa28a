//! What two connection managers say to each other: one packet a message, of a fixed layout with a version, little-endian.
//!
//! ```text
//! magic "rscm", version u16, kind u16, then by kind:
//! 1 Req      source, destination (addresses), terms; their bytes are retries, ack timeout, traffic class
//! 2 Mra      -
//! 3 Rep      terms; their bytes are zero
//! 4 Rtu      -
//! 5 Rej      reason u16, private     6 Dreq  -            7 Drep  -            8 Busy  -
//! 9 SidrReq  source, destination, private                10 SidrRep  status u8, queue pair u32, qkey u32, private
//! ```
//!
//! An address is a family (4 or 6), the port, the scope and 16 bytes; private data is a length and so many bytes. Terms are queue
//! pair u32, psn u32, responder resources, initiator depth, rnr retries, flow control, srq (a byte each), three bytes more, ECE
//! vendor u32, ECE options u32, private. Whatever is not exactly this is no message.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Of the protocol.
pub(super) const VERSION: u16 = 1;
const MAGIC: [u8; 4] = *b"rscm";
/// No message is longer.
pub(super) const MAX_LEN: usize = 512;

/// Bytes of private data that each message has room for, as InfiniBand's have: a request's and a datagram request's first 36
/// belong to the IP addresses.
pub(super) mod room {
    pub(crate) const REQ: usize = 92 - 36;
    pub(crate) const REP: usize = 196;
    pub(crate) const REJ: usize = 148;
    pub(crate) const SIDR_REQ: usize = 216 - 36;
    pub(crate) const SIDR_REP: usize = 136;
}

/// Enhanced connection establishment: what a vendor's devices agree upon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ece {
    pub(super) vendor: u32,
    pub(super) options: u32,
}

/// What either end says of itself when it connects.
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
    /// With what a message has bits for.
    pub(super) fn fitted(self) -> Self {
        Self { qp_num: self.qp_num & 0x00ff_ffff, rnr_retry_count: self.rnr_retry_count.min(7), ..self }
    }
}

/// A request for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Req {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// The first packet sequence number that the sender expects.
    pub(super) psn: u32,
    pub(super) terms: Terms,
    pub(super) retry_count: u8,
    pub(super) ack_timeout: u8,
    pub(super) traffic_class: u8,
}

/// The answer that accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rep {
    pub(super) psn: u32,
    pub(super) terms: Terms,
}

/// The answer that does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rej {
    pub(super) reason: u16,
    pub(super) private: Vec<u8>,
}

/// A request for the queue pair of a datagram service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SidrReq {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) private: Vec<u8>,
}

/// Its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SidrRep {
    /// 0 if the queue pair is there.
    pub(super) status: u8,
    pub(super) qp_num: u32,
    pub(super) qkey: u32,
    pub(super) private: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Req(Req),
    /// "I have your request (or reply), and need more time."
    Mra,
    Rep(Rep),
    Rtu,
    Rej(Rej),
    Dreq,
    Drep,
    /// The listener's queue is full: the request counts as lost, and the connection to it ends.
    Busy,
    SidrReq(SidrReq),
    SidrRep(SidrRep),
}

impl Message {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(128));
        out.bytes(&MAGIC);
        out.u16(VERSION);
        out.u16(self.kind());
        match self {
            Self::Mra | Self::Rtu | Self::Dreq | Self::Drep | Self::Busy => {}
            Self::Req(req) => {
                out.address(&req.source);
                out.address(&req.destination);
                out.terms(&req.terms, req.psn, [req.retry_count, req.ack_timeout, req.traffic_class]);
            }
            Self::Rep(rep) => out.terms(&rep.terms, rep.psn, [0; 3]),
            Self::Rej(rej) => {
                out.u16(rej.reason);
                out.private(&rej.private);
            }
            Self::SidrReq(req) => {
                out.address(&req.source);
                out.address(&req.destination);
                out.private(&req.private);
            }
            Self::SidrRep(rep) => {
                out.bytes(&[rep.status]);
                out.u32(rep.qp_num);
                out.u32(rep.qkey);
                out.private(&rep.private);
            }
        }
        out.0
    }

    /// The message in a packet, if it is one, whole and with nothing behind it.
    pub(super) fn decode(packet: &[u8]) -> Option<Self> {
        let mut from = Reader(packet);
        if from.take::<4>()? != MAGIC || from.u16()? != VERSION {
            return None;
        }
        let message = match from.u16()? {
            1 => {
                let (source, destination) = from.addresses()?;
                let (terms, psn, [retry_count, ack_timeout, traffic_class]) = from.terms(room::REQ)?;
                if retry_count >= 8 || ack_timeout >= 32 {
                    return None;
                }
                Self::Req(Req { source, destination, psn, terms, retry_count, ack_timeout, traffic_class })
            }
            2 => Self::Mra,
            3 => {
                let (terms, psn, zero) = from.terms(room::REP)?;
                if zero != [0; 3] {
                    return None;
                }
                Self::Rep(Rep { psn, terms })
            }
            4 => Self::Rtu,
            5 => Self::Rej(Rej { reason: from.u16()?, private: from.private(room::REJ)? }),
            6 => Self::Dreq,
            7 => Self::Drep,
            8 => Self::Busy,
            9 => {
                let (source, destination) = from.addresses()?;
                Self::SidrReq(SidrReq { source, destination, private: from.private(room::SIDR_REQ)? })
            }
            10 => {
                let [status] = from.take()?;
                let (qp_num, qkey) = (from.u24()?, from.u32()?);
                Self::SidrRep(SidrRep { status, qp_num, qkey, private: from.private(room::SIDR_REP)? })
            }
            _ => return None,
        };
        from.0.is_empty().then_some(message)
    }

    fn kind(&self) -> u16 {
        match self {
            Self::Req(_) => 1,
            Self::Mra => 2,
            Self::Rep(_) => 3,
            Self::Rtu => 4,
            Self::Rej(_) => 5,
            Self::Dreq => 6,
            Self::Drep => 7,
            Self::Busy => 8,
            Self::SidrReq(_) => 9,
            Self::SidrRep(_) => 10,
        }
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    /// Terms, with the sender's packet sequence number and what a request has more.
    fn terms(&mut self, terms: &Terms, psn: u32, more: [u8; 3]) {
        self.u32(terms.qp_num);
        self.u32(psn);
        self.bytes(&[terms.responder_resources, terms.initiator_depth, terms.rnr_retry_count]);
        self.bytes(&[terms.flow_control.into(), terms.srq.into()]);
        self.bytes(&more);
        self.u32(terms.ece.vendor);
        self.u32(terms.ece.options);
        self.private(&terms.private);
    }

    fn address(&mut self, address: &SocketAddr) {
        let (family, scope, bytes) = match address {
            SocketAddr::V4(v4) => {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&v4.ip().octets());
                (4, 0, bytes)
            }
            SocketAddr::V6(v6) => (6, v6.scope_id(), v6.ip().octets()),
        };
        self.u16(family);
        self.u16(address.port());
        self.u32(scope);
        self.bytes(&bytes);
    }

    fn private(&mut self, private: &[u8]) {
        // Whoever makes a message has checked the length; a defect there must not make a malformed one.
        let len = u8::try_from(private.len()).unwrap_or(0);
        self.u16(len.into());
        self.bytes(&private[..usize::from(len)]);
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    /// A number of 24 bits: of a queue pair, or of a packet.
    fn u24(&mut self) -> Option<u32> {
        self.u32().filter(|&value| value < 1 << 24)
    }

    fn below(&mut self, limit: u8) -> Option<u8> {
        self.take::<1>().map(|[value]| value).filter(|&value| value < limit)
    }

    fn flag(&mut self) -> Option<bool> {
        self.below(2).map(|value| value == 1)
    }

    fn terms(&mut self, room: usize) -> Option<(Terms, u32, [u8; 3])> {
        let (qp_num, psn) = (self.u24()?, self.u24()?);
        let [responder_resources, initiator_depth] = self.take()?;
        let rnr_retry_count = self.below(8)?;
        let (flow_control, srq) = (self.flag()?, self.flag()?);
        let more = self.take()?;
        let ece = Ece { vendor: self.u32()?, options: self.u32()? };
        let private = self.private(room)?;
        let terms =
            Terms { qp_num, responder_resources, initiator_depth, rnr_retry_count, flow_control, srq, ece, private };
        Some((terms, psn, more))
    }

    fn addresses(&mut self) -> Option<(SocketAddr, SocketAddr)> {
        let (source, destination) = (self.address()?, self.address()?);
        (source.is_ipv4() == destination.is_ipv4()).then_some((source, destination))
    }

    fn address(&mut self) -> Option<SocketAddr> {
        let (family, port, scope) = (self.u16()?, self.u16()?, self.u32()?);
        let bytes = self.take::<16>()?;
        match family {
            4 => {
                let (v4, rest) = bytes.split_first_chunk::<4>()?;
                let clean = scope == 0 && rest.iter().all(|&byte| byte == 0);
                clean.then(|| SocketAddr::new(IpAddr::V4(Ipv4Addr::from(*v4)), port))
            }
            6 => Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(bytes), port, 0, scope))),
            _ => None,
        }
    }

    fn private(&mut self, room: usize) -> Option<Vec<u8>> {
        let len = usize::from(self.u16()?);
        if len > room {
            return None;
        }
        let (private, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(private.to_vec())
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
            prop_assert!(packet.len() <= MAX_LEN);
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
