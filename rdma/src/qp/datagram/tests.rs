//! Bring-up, limits and multicast groups of datagram queue pairs, over the test provider.

use rdma_sys::{ibv_grh, ibv_qp_attr_mask as Mask, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

use super::*;
use crate::ah::Grh;
use crate::error::ErrorKind;
use crate::qp::PreparedQueuePair;
use crate::qp::{InitOptions, op};
use crate::testing::{self, fail};
use crate::types::{Mtu, Path, Route};
use crate::{CompletionQueue, Poller, RemoteAccess};

struct Bench {
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl Bench {
    fn new() -> Self {
        let context = testing::context();
        Self { pd: context.alloc_pd().unwrap(), cq: context.create_cq(64).unwrap() }
    }

    fn prepared(&self) -> PreparedQueuePair<Ud> {
        QueuePair::datagram(&self.pd).cq(&self.cq).max_inline_data(32).build().unwrap()
    }

    fn ready(&self) -> QueuePair<Ud> {
        self.prepared().init(&DatagramOptions::new(0x11)).unwrap().ready().unwrap()
    }

    fn address(&self) -> AddressHandle {
        let route = Route { gid: "::ffff:10.0.0.2".parse().unwrap(), source_index: 2, ..Route::default() };
        self.pd.create_ah(&Path { port: 2, route: Some(route), ..Path::default() }).unwrap()
    }
}

fn group() -> Gid {
    "ff12::7".parse().unwrap()
}

#[test]
fn bring_up_needs_no_peer() {
    let bench = Bench::new();
    let qp = bench.prepared().init(&DatagramOptions::new(0x1234).psn(9).pkey_index(0)).unwrap();
    let endpoint = qp.endpoint().unwrap();
    assert_eq!(endpoint.gid, Some("::ffff:10.0.0.1".parse().unwrap()));
    assert_eq!((endpoint.qkey, endpoint.mtu), (0x1234, Mtu::MTU_1024));
    let qp = qp.ready().unwrap();
    assert_eq!((qp.state().unwrap(), qp.port().unwrap(), qp.max_message()), (QpState::RTS, 2, 1024));
    assert_eq!(qp.query().unwrap().as_raw().sq_psn, 9);
    assert_eq!(qp.endpoint().unwrap(), endpoint);
    // Bring the queue pair up again, from the start.
    let qp = qp.reset().unwrap().init(&DatagramOptions::new(0x99)).unwrap().reset().unwrap();
    assert_eq!(qp.init(&DatagramOptions::new(0x99)).unwrap().endpoint().unwrap().qkey, 0x99);
}

#[test]
fn steps_that_fail_give_the_queue_pair_back() {
    let bench = Bench::new();
    let failed = bench.prepared().init(&DatagramOptions::new(1).port(1)).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::PortDown);
    fail("modify_qp", libc::EPERM);
    let failed = failed.object.init(&DatagramOptions::new(1 << 31)).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::PermissionDenied);
    let qp = failed.object.init(&DatagramOptions::new(1)).unwrap();
    fail("modify_qp", libc::EIO);
    let qp = qp.ready().unwrap_err().object;
    assert_eq!(qp.ready().unwrap().state().unwrap(), QpState::RTS);
}

#[test]
fn attributes_changed_by_hand_are_followed() {
    let bench = Bench::new();
    let mut qp = bench.prepared().into_manual();
    assert_eq!(qp.endpoint().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(qp.answer(&Source::new(&ibv_wc::default(), || None)).is_err());
    assert_eq!(qp.max_message(), 4096);
    qp.modify(&QpAttr::to(QpState::INIT).port(2).pkey_index(0).qkey(7)).unwrap();
    assert_eq!((qp.max_message(), qp.endpoint().unwrap().qkey), (1024, 7));
    qp.modify(&QpAttr::new().qkey(8)).unwrap();
    assert_eq!(qp.endpoint().unwrap().qkey, 8);
    // The queue pair is bound to no port, or to a port that does not answer.
    qp.modify(&QpAttr::to(QpState::RESET)).unwrap();
    assert_eq!((qp.max_message(), qp.port().unwrap_err().kind()), (4096, ErrorKind::InvalidInput));
    qp.modify(&QpAttr::to(QpState::INIT).port(2).pkey_index(0).qkey(7)).unwrap();
    qp.modify(&QpAttr::to(QpState::INIT).port(1)).unwrap();
    assert_eq!((qp.max_message(), qp.endpoint().unwrap_err().kind()), (4096, ErrorKind::InvalidInput));
    // Initialise with attributes, as the connection manager does.
    let attr = QpAttr::to(QpState::INIT).port(2).pkey_index(0).qkey(0x0123_4567);
    let attr = QpAttr::from_raw(*attr.as_raw(), attr.mask());
    let qp = bench.prepared().init_with(&attr).unwrap();
    assert_eq!(qp.endpoint().unwrap().qkey, 0x0123_4567);
    assert_eq!(qp.ready().unwrap().max_message(), 1024);
}

#[test]
fn attributes_of_connections_are_explained_as_wrong() {
    let bench = Bench::new();
    let mut qp = bench.prepared().into_manual();
    fail("modify_qp", libc::EINVAL);
    let error = qp.modify(&QpAttr::to(QpState::INIT).port(2).pkey_index(0).access(RemoteAccess::READ)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("from RESET to INIT: missing QKEY: not allowed ACCESS_FLAGS"), "{text}");
    let mask = Mask::IBV_QP_QKEY.0;
    assert_ne!(QpAttr::new().qkey(1).mask().bits() & mask, 0);
}

#[test]
fn a_message_is_as_long_as_the_ports_mtu_at_most() {
    let bench = Bench::new();
    let (mut qp, address) = (bench.ready(), bench.address());
    let send = |len| op::send(bench.pd.allocate(len).unwrap()).to(&address, 5, 6);
    qp.post_send(send(1024)).unwrap();
    let refused = qp.post_send(send(1025)).unwrap_err();
    assert_eq!((refused.kind(), refused.into_memory().unwrap().len()), (ErrorKind::TooLong, 1025));
    let mut batch = qp.batch();
    assert_eq!(batch.push(send(1025)).unwrap_err().kind(), ErrorKind::TooLong);
    batch.push(send(3)).unwrap();
    batch.submit().unwrap();
    let (mut send_half, _) = qp.split_mut();
    send_half.post(op::send_imm_inline(b"imm", 77).to(&address, 5, 6).solicited().unsignaled()).unwrap();
    assert_eq!(send_half.post(op::send_inline(&[0; 33]).to(&address, 5, 6)).unwrap_err().kind(), ErrorKind::TooLong);
    let posted = testing::posted(qp.as_raw());
    let to = Some((testing::handle_of(address.as_raw()), 5, 6));
    assert_eq!(posted.iter().map(|posted| posted.to).collect::<Vec<_>>(), [to; 3]);
}

#[test]
fn memory_and_handles_of_another_domain_are_refused() {
    let bench = Bench::new();
    let other = bench.pd.context().alloc_pd().unwrap();
    let mut qp = bench.ready();
    let foreign = other.create_ah(&bench.address().path()).unwrap();
    let refused = qp.post_send(op::send_inline(b"x").to(&foreign, 5, 6)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let address = bench.address();
    let refused = qp.post_send(op::send(other.allocate(1).unwrap()).to(&address, 5, 6)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(testing::posted(qp.as_raw()).is_empty());
}

#[test]
fn a_receive_has_room_for_the_header() {
    let bench = Bench::new();
    let mut qp = bench.prepared().init(&DatagramOptions::new(1)).unwrap();
    let refused = qp.post_recv(bench.pd.allocate(39).unwrap(), 0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfBounds);
    assert_eq!(qp.post_recv((), 0).unwrap_err().kind(), ErrorKind::OutOfBounds);
    qp.post_recv(bench.pd.allocate(40).unwrap(), 0).unwrap();
    // A connected queue pair has no such limit.
    let mut qp = QueuePair::builder(&bench.pd).cq(&bench.cq).build().unwrap().init(&InitOptions::new()).unwrap();
    qp.post_recv(bench.pd.allocate(1).unwrap(), 0).unwrap();
}

/// Adds a completion of the receive that was posted last.
fn arrive(bench: &Bench, qp: &QueuePair<Ud>, byte_len: u32, flags: u32) {
    let wr_id = testing::posted(qp.as_raw()).last().unwrap().wr_id;
    let opcode = ibv_wc_opcode::IBV_WC_RECV;
    let status = ibv_wc_status::IBV_WC_SUCCESS;
    let wc = ibv_wc { wr_id, status, opcode, byte_len, src_qp: 0x77, wc_flags: flags, slid: 3, ..ibv_wc::default() };
    testing::complete(bench.cq.as_raw(), wc);
}

fn next(poller: &mut Poller) -> crate::Completion<'_> {
    poller.poll().unwrap().expect("a completion")
}

#[test]
fn a_datagram_is_the_payload_and_where_it_came_from() {
    const GRH: u32 = ibv_wc_flags::IBV_WC_GRH.0;
    let bench = Bench::new();
    let (mut qp, mut poller) = (bench.ready(), bench.cq.poller());
    let mut memory = bench.pd.allocate(100).unwrap();
    memory[0] = 0x60;
    memory[8..24].copy_from_slice(&"fe80::9".parse::<Gid>().unwrap().to_bytes());
    memory[24..40].copy_from_slice(&"::ffff:10.0.0.1".parse::<Gid>().unwrap().to_bytes());
    memory[40..45].copy_from_slice(b"hello");
    qp.post_recv(memory, 4).unwrap();
    arrive(&bench, &qp, 45, GRH);
    let mut completion = next(&mut poller);
    assert_eq!((completion.token(), completion.byte_len()), (4, 45));
    let datagram = completion.take_datagram().unwrap();
    assert_eq!(&datagram[..], b"hello");
    assert_eq!((datagram.source().qpn, datagram.source().lid), (0x77, Lid(3)));
    assert_eq!(datagram.source().grh.unwrap().source_gid().to_string(), "fe80::9");
    // A datagram to the local best GID: the index is known. To another GID: the library looks the
    // index up. To a group: the best GID again.
    assert_eq!(qp.answer(datagram.source()).unwrap().path().route.unwrap().source_index, 2);
    assert!(!testing::calls().contains(&"init_ah_from_wc"));
    let to = |gid: &str| {
        let mut bytes = datagram.source().grh.unwrap().to_bytes();
        bytes[24..].copy_from_slice(&gid.parse::<Gid>().unwrap().to_bytes());
        Source { grh: Some(Grh::from_bytes(bytes)), ..*datagram.source() }
    };
    qp.answer(&to("fe80::1")).unwrap();
    assert!(testing::calls().contains(&"init_ah_from_wc"));
    assert_eq!(qp.answer(&to("ff12::1")).unwrap().path().route.unwrap().source_index, 2);

    let memory = datagram.into_buffer();
    assert_eq!(memory.len(), 100);
    // Without the flag there is no GRH, whatever the bytes are.
    qp.post_recv(memory, 5).unwrap();
    arrive(&bench, &qp, 40, 0);
    let datagram = next(&mut poller).take_datagram().unwrap();
    assert!(datagram.is_empty() && datagram.source().grh.is_none());
}

#[test]
fn lengths_that_cannot_be_are_cut_to_the_memory() {
    let bench = Bench::new();
    let (mut qp, mut poller) = (bench.ready(), bench.cq.poller());
    for (reported, payload) in [(0, 0), (39, 0), (40, 0), (41, 1), (60, 20), (61, 20), (u32::MAX, 20)] {
        qp.post_recv(bench.pd.allocate(60).unwrap(), 0).unwrap();
        arrive(&bench, &qp, reported, 0);
        assert_eq!(next(&mut poller).take_datagram().unwrap().len(), payload, "{reported}");
    }
}

#[test]
fn pieces_and_other_requests_are_told_apart() {
    let bench = Bench::new();
    let mut poller = bench.cq.poller();
    let builder = QueuePair::datagram(&bench.pd).cq(&bench.cq).max_recv_sge(2);
    let mut qp = builder.build().unwrap().init(&DatagramOptions::new(1)).unwrap().ready().unwrap();
    let flag = ibv_wc_flags::IBV_WC_GRH.0;
    // The GRH has its own segment.
    qp.post_recv([bench.pd.allocate(40).unwrap(), bench.pd.allocate(8).unwrap()], 0).unwrap();
    arrive(&bench, &qp, 44, flag);
    let mut completion = next(&mut poller);
    assert!(completion.source().unwrap().grh.is_some());
    assert_eq!(completion.take_datagram().unwrap().len(), 0);
    assert_eq!(completion.take_buffer().unwrap().len(), 8);
    // The first segment is shorter than the GRH, which cannot be read then.
    qp.post_recv([bench.pd.allocate(39).unwrap(), bench.pd.allocate(8).unwrap()], 0).unwrap();
    arrive(&bench, &qp, 44, flag);
    let mut completion = next(&mut poller);
    assert_eq!(completion.source().unwrap().grh, None);
    assert!(completion.take_datagram().is_none());
    assert_eq!(completion.take_buffer().unwrap().len(), 39);
    // The memory is exposed.
    let region = bench.pd.allocate_exposed(64, RemoteAccess::WRITE).unwrap();
    qp.post_recv(region.slice(..).unwrap(), 0).unwrap();
    arrive(&bench, &qp, 44, flag);
    let mut completion = next(&mut poller);
    assert!(completion.source().unwrap().grh.is_some());
    assert!(completion.take_datagram().is_none());
    assert!(completion.take_exposed().is_some());
    // A send's completion is no received datagram.
    qp.post_send(op::send(bench.pd.allocate(64).unwrap()).to(&bench.address(), 5, 6)).unwrap();
    arrive(&bench, &qp, 64, flag);
    let mut completion = next(&mut poller);
    assert!(completion.source().is_none() && completion.take_datagram().is_none());
    assert_eq!(size_of::<ibv_grh>(), Grh::LEN);
}

#[test]
#[allow(clippy::mem_forget, reason = "that is the attack")]
fn a_queue_pair_leaves_its_groups_before_it_is_destroyed() {
    let bench = Bench::new();
    let qp = bench.ready();
    let held = qp.attach_multicast(group(), Lid(0xc001)).unwrap();
    std::mem::forget(qp.attach_multicast("ff12::8".parse().unwrap(), Lid(0)).unwrap());
    assert_eq!(testing::groups_of(qp.as_raw()).len(), 2);
    let context = qp.context();
    qp.close().unwrap();
    assert_eq!(testing::live("qp"), 0);
    // Detaching does nothing to a queue pair that is gone, and keeps nothing of it alive.
    let calls = testing::calls();
    held.detach().unwrap();
    assert_eq!(testing::calls(), calls);
    drop(bench);
    context.close().unwrap();
}

#[test]
fn the_last_attachment_leaves_the_group() {
    let bench = Bench::new();
    let qp = bench.prepared().init(&DatagramOptions::new(1)).unwrap();
    let first = qp.attach_multicast(group(), Lid(1)).unwrap();
    let second = qp.attach_multicast(group(), Lid(1)).unwrap();
    let other = qp.attach_multicast(group(), Lid(2)).unwrap();
    assert_eq!((first.gid(), first.lid()), (group(), Lid(1)));
    drop(first);
    assert_eq!(testing::groups_of(qp.as_raw()), [(group(), 1), (group(), 2)]);
    fail("detach_mcast", libc::EIO);
    let second = second.detach().unwrap_err().object;
    second.detach().unwrap();
    assert_eq!(testing::groups_of(qp.as_raw()), [(group(), 2)]);
    drop(other);
    assert!(testing::groups_of(qp.as_raw()).is_empty());
}

#[test]
fn a_queue_pair_that_cannot_leave_a_group_is_not_destroyed_and_leaks() {
    let bench = Bench::new();
    let qp = bench.ready();
    let held = qp.attach_multicast(group(), Lid(1)).unwrap();
    fail("detach_mcast", libc::EIO);
    let qp = qp.close().unwrap_err().object;
    fail("detach_mcast", libc::EIO);
    drop(qp);
    assert_eq!(testing::live("qp"), 1);
    // The leaked queue pair still exists, so it can be detached.
    held.detach().unwrap();
    drop(bench);
    assert_eq!((testing::live("qp"), testing::live("pd"), testing::live("cq")), (1, 1, 1));
}

#[test]
fn an_attachment_from_before_a_failed_destroy_is_not_a_newer_ones_end() {
    let bench = Bench::new();
    let qp = bench.ready();
    let old = qp.attach_multicast(group(), Lid(1)).unwrap();
    fail("destroy_qp", libc::EIO);
    let qp = qp.close().unwrap_err().object;
    assert!(testing::groups_of(qp.as_raw()).is_empty());
    let new = qp.attach_multicast(group(), Lid(1)).unwrap();
    old.detach().unwrap();
    assert_eq!(testing::groups_of(qp.as_raw()), [(group(), 1)]);
    new.detach().unwrap();
    assert!(testing::groups_of(qp.as_raw()).is_empty());
}

#[test]
fn what_is_no_group_is_not_attached() {
    let bench = Bench::new();
    let qp = bench.ready();
    let refused = qp.attach_multicast("fe80::1".parse().unwrap(), Lid(0)).unwrap_err();
    assert_eq!((refused.kind(), refused.verb()), (ErrorKind::InvalidInput, Verb::AttachMulticast));
    fail("attach_mcast", libc::ENOMEM);
    assert_eq!(qp.attach_multicast(group(), Lid(0)).unwrap_err().kind(), ErrorKind::OutOfMemory);
    drop(qp.attach_multicast(group(), Lid(0)).unwrap());
}
