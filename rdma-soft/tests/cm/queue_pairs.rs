//! Queue pairs with the connection manager: those of the application and those of `rdma_create_qp`;
//! datagram services, multicast groups, endpoints.

use std::ffi::{CStr, CString, c_int, c_void};
use std::net::SocketAddr;
use std::ptr;
use std::thread;
use std::time::Duration;

use rdma_sys::*;

use crate::cm_support::*;
use crate::common::{Config, Request, Side, verbs};

const TCP: rdma_port_space = rdma_port_space::RDMA_PS_TCP;
const UDP: rdma_port_space = rdma_port_space::RDMA_PS_UDP;
type State = ibv_qp_state;
type Mask = ibv_qp_attr_mask;

fn qpn(side: &Side) -> u32 {
    side.endpoint().qpn
}

/// Moves a queue pair to a state with the attributes of an id.
fn advance(side: &Side, id: &Id, state: State) {
    let (mut attr, mask) = id.attributes(state).unwrap();
    assert_eq!(side.modify(&mut attr, mask.0), 0);
    assert_eq!(side.state(), state);
}

#[test]
fn a_queue_pair_of_the_application_s_own() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let channel = Channel::new();
        let listener = channel.tcp();
        assert_eq!(listener.bind(address.parse().unwrap()), 0);
        assert_eq!(listener.listen(3), 0);
        let mut to: SocketAddr = address.parse().unwrap();
        to.set_port(listener.port());
        let (active, active_channel) = resolved(TCP, to);
        let (one, other) = (Side::new(Config::default()), Side::new(Config::default()));
        // Before the request the access rights are unknown.
        let (attr, mask) = active.attributes(State::IBV_QPS_INIT).unwrap();
        let init = Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        assert_eq!((attr.port_num, attr.qp_access_flags, mask), (1, 0, init));
        assert_eq!(active.attributes(State::IBV_QPS_RTR).err(), Some(libc::EINVAL));
        advance(&one, &active, State::IBV_QPS_INIT);
        assert_eq!(active.connect(b"", qpn(&one)), 0);
        let request = channel.next();
        assert_eq!(request.conn.qp_num, qpn(&one));
        let passive = request.request();
        let (attr, _) = passive.attributes(State::IBV_QPS_INIT).unwrap();
        assert_eq!(attr.qp_access_flags, 0xe, "what it may hold of reads and atomics it grants");
        for state in [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_RTS] {
            advance(&other, &passive, state);
        }
        assert_eq!(other.post_recv(7, &[other.sge(0, 64)]), 0);
        assert_eq!(passive.accept(b"", qpn(&other)), 0);
        active_channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
        for state in [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_RTS] {
            advance(&one, &active, state);
        }
        let attr = one.query().0;
        assert_eq!((attr.dest_qp_num, attr.retry_cnt, attr.rnr_retry), (qpn(&other), 5, 6));
        assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (4, 2));
        let theirs = other.query().0;
        assert_eq!((theirs.dest_qp_num, theirs.sq_psn, theirs.rq_psn), (qpn(&one), attr.rq_psn, attr.sq_psn));
        assert_eq!(active.establish(), 0);
        channel.expect(Event::RDMA_CM_EVENT_ESTABLISHED);
        one.put(0, b"over the wire");
        assert_eq!(one.post(&Request::new(ibv_wr_opcode::IBV_WR_SEND, 1, &[one.sge(0, 13)])), 0);
        one.success(1);
        other.success(7);
        assert_eq!(other.peek(0, 13), b"over the wire");
        assert_eq!(active.disconnect(), 0);
        channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
        assert_eq!(passive.attributes(State::IBV_QPS_RTS).err(), Some(libc::EINVAL));
    }
}

/// A queue pair made by `rdma_create_qp`, with a memory region of the id's domain.
struct Made<'a> {
    id: &'a Id,
    memory: Box<[u8]>,
    mr: *mut ibv_mr,
}

impl<'a> Made<'a> {
    fn new(id: &'a Id) -> Self {
        let cap = ibv_qp_cap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let mut init = ibv_qp_init_attr { cap, qp_type: id.public().qp_type, sq_sig_all: 1, ..Default::default() };
        // SAFETY: alive, with a device; valid attributes.
        let made = unsafe { (cm().rdma_create_qp)(id.0, ptr::null_mut(), &raw mut init) };
        assert_eq!(outcome(made), 0);
        assert_eq!(init.send_cq, id.public().send_cq);
        let mut memory = vec![0; 4096].into_boxed_slice();
        // SAFETY: a live domain; the memory is freed after the region, and not touched while the
        // device does.
        let mr = unsafe { verbs().ibv_reg_mr(id.public().pd, memory.as_mut_ptr().cast(), 4096, 7) };
        assert!(!mr.is_null());
        Self { id, memory, mr }
    }

    fn sge(&self, len: u32) -> ibv_sge {
        // SAFETY: a live region.
        ibv_sge { addr: self.memory.as_ptr().expose_provenance() as u64, length: len, lkey: unsafe { (*self.mr).lkey } }
    }

    fn post_recv(&self, len: u32) {
        let mut sge = self.sge(len);
        let mut wr = ibv_recv_wr { wr_id: 9, sg_list: &raw mut sge, num_sge: 1, ..Default::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair; the list is valid during the call, the memory is registered.
        assert_eq!(unsafe { ibv_post_recv(self.id.public().qp, &raw mut wr, &raw mut bad) }, 0);
    }

    fn post_send(&self, len: u32, change: impl FnOnce(&mut ibv_send_wr)) {
        let mut sge = self.sge(len);
        let opcode = ibv_wr_opcode::IBV_WR_SEND;
        let mut wr = ibv_send_wr { wr_id: 8, sg_list: &raw mut sge, num_sge: 1, opcode, ..Default::default() };
        change(&mut wr);
        let mut bad = ptr::null_mut();
        // SAFETY: the id's queue pair is alive, and so is the request.
        assert_eq!(unsafe { ibv_post_send(self.id.public().qp, &raw mut wr, &raw mut bad) }, 0);
    }

    fn completion(&self, cq: *mut ibv_cq) -> ibv_wc {
        let mut wc = ibv_wc::default();
        // SAFETY: a live queue, space for one completion.
        until("no completion", || unsafe { ibv_poll_cq(cq, 1, &raw mut wc) } == 1);
        wc
    }

    fn sent(&self) -> ibv_wc {
        self.completion(self.id.public().send_cq)
    }

    fn received(&self) -> ibv_wc {
        self.completion(self.id.public().recv_cq)
    }

    fn state(&self) -> State {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        // SAFETY: a live queue pair, valid structures.
        let asked = unsafe { (verbs().ibv_query_qp)(self.id.public().qp, &raw mut attr, 0, &raw mut init) };
        assert_eq!(asked, 0);
        attr.qp_state
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // SAFETY: alive.
        unsafe { (cm().rdma_destroy_qp)(self.id.0) };
        // SAFETY: alive, and not used any more.
        assert_eq!(unsafe { (verbs().ibv_dereg_mr)(self.mr) }, 0);
        assert!(self.id.public().qp.is_null() && self.id.public().send_cq.is_null());
    }
}

/// A program may try again with smaller capacities.
#[test]
fn a_queue_pair_that_cannot_be_made_leaves_the_attributes_as_they_were() {
    let (_listener, _channel, to) = listener(TCP, 3);
    let (active, _active_channel) = resolved(TCP, to);
    let cap = ibv_qp_cap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1000, max_recv_sge: 1, max_inline_data: 0 };
    let mut init = ibv_qp_init_attr { cap, qp_type: ibv_qp_type::IBV_QPT_RC, ..Default::default() };
    // SAFETY: alive, with a device; valid attributes, whose queues are null or alive.
    let create =
        |init: &mut ibv_qp_init_attr| outcome(unsafe { (cm().rdma_create_qp)(active.0, ptr::null_mut(), init) });
    assert_eq!(create(&mut init), libc::EINVAL);
    assert!(init.send_cq.is_null() && init.recv_cq.is_null(), "the queues are destroyed");
    init.cap.max_send_sge = 1;
    assert_eq!(create(&mut init), 0);
    assert_eq!((init.send_cq, init.recv_cq), (active.public().send_cq, active.public().recv_cq));
    // SAFETY: alive.
    unsafe { (cm().rdma_destroy_qp)(active.0) };
}

#[test]
fn a_queue_pair_of_the_id_s_own() {
    let (_listener, channel, to) = listener(TCP, 3);
    let (active, active_channel) = resolved(TCP, to);
    let one = Made::new(&active);
    assert_eq!(one.state(), State::IBV_QPS_INIT);
    // An id has at most one queue pair.
    let mut init = ibv_qp_init_attr::default();
    // SAFETY: alive; valid attributes.
    let again = unsafe { (cm().rdma_create_qp)(active.0, ptr::null_mut(), &raw mut init) };
    assert_eq!(outcome(again), libc::EINVAL);
    let mut asked = param(b"", 0xbad).0;
    (asked.responder_resources, asked.initiator_depth) = (255, 255);
    assert_eq!(active.connect_with(&raw mut asked), 0);
    let request = channel.next();
    // SAFETY: a live queue pair.
    assert_eq!(request.conn.qp_num, unsafe { (*active.public().qp).qp_num });
    let passive = request.request();
    let other = Made::new(&passive);
    other.post_recv(100);
    assert_eq!(passive.accept_with(ptr::null_mut()), 0);
    assert_eq!(other.state(), State::IBV_QPS_RTS);
    // Taking the event confirms the answer, so the event is `ESTABLISHED`.
    active_channel.expect(Event::RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(one.state(), State::IBV_QPS_RTS);
    assert_eq!(active.establish(), libc::EINVAL);
    channel.expect(Event::RDMA_CM_EVENT_ESTABLISHED);
    one.post_send(100, |_| ());
    assert_eq!(one.sent().status, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!((other.received().byte_len, other.memory.len()), (100, 4096));
    // Disconnecting flushes the receives.
    other.post_recv(100);
    assert_eq!(active.disconnect(), 0);
    assert_eq!(one.state(), State::IBV_QPS_ERR);
    channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
    assert_eq!(passive.disconnect(), 0);
    assert_eq!(other.received().status, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    active_channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
}

#[test]
fn a_rejected_id_s_queue_pair_is_in_error() {
    let (_listener, channel, to) = listener(TCP, 3);
    let (active, active_channel) = resolved(TCP, to);
    let one = Made::new(&active);
    assert_eq!(active.connect(b"", 0), 0);
    assert_eq!(channel.next().request().reject(b"no"), 0);
    active_channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    assert_eq!(one.state(), State::IBV_QPS_ERR);
}

#[test]
fn a_queue_pair_that_cannot_be_made_ready_is_an_error_of_the_connection() {
    let (_listener, channel, to) = listener(TCP, 3);
    let (active, active_channel) = resolved(TCP, to);
    let one = Made::new(&active);
    assert_eq!(active.connect(b"", 0), 0);
    let passive = channel.next().request();
    // In the error state the queue pair cannot be moved to RTR.
    let mut attr = ibv_qp_attr { qp_state: State::IBV_QPS_ERR, ..Default::default() };
    let mask = c_int::try_from(Mask::IBV_QP_STATE.0).unwrap();
    // SAFETY: a live queue pair, a valid structure.
    assert_eq!(unsafe { (verbs().ibv_modify_qp)(active.public().qp, &raw mut attr, mask) }, 0);
    assert_eq!(passive.accept(b"", 5), 0);
    active_channel.expect_status(Event::RDMA_CM_EVENT_CONNECT_ERROR, -1);
    // The passive side's reaction is queued, but C does not get this event.
    drop(passive);
    assert!(active_channel.is_readable(PATIENCE));
    active_channel.set_nonblocking();
    let mut event = ptr::null_mut();
    // SAFETY: alive; an out parameter.
    assert_eq!(outcome(unsafe { (cm().rdma_get_cm_event)(active_channel.0, &raw mut event) }), libc::EAGAIN);
    assert_eq!(one.state(), State::IBV_QPS_ERR);
}

/// The error number of `rdma_create_srq` with a queue of this depth, or 0.
fn create_srq(id: &Id, max_wr: u32) -> i32 {
    let attr = ibv_srq_attr { max_wr, max_sge: 1, srq_limit: 0 };
    let mut init = ibv_srq_init_attr { attr, ..Default::default() };
    // SAFETY: alive; valid attributes.
    outcome(unsafe { (cm().rdma_create_srq)(id.0, ptr::null_mut(), &raw mut init) })
}

#[test]
fn an_id_has_at_most_one_shared_receive_queue() {
    let channel = Channel::new();
    assert_eq!(create_srq(&channel.tcp(), 4), libc::EINVAL, "no device yet");
    let (active, _channel) = resolved(TCP, loopback(5));
    assert_eq!(create_srq(&active, 0), libc::EINVAL);
    assert_eq!(create_srq(&active, 4), 0);
    assert_eq!(create_srq(&active, 4), libc::EINVAL);
    let made = Made::new(&active);
    // SAFETY: a live queue pair.
    assert_eq!(unsafe { (*active.public().qp).srq }, active.public().srq);
    drop(made);
    // SAFETY: alive.
    unsafe { (cm().rdma_destroy_srq)(active.0) };
    assert!(active.public().srq.is_null());
}

#[test]
fn a_datagram_service() {
    let (_listener, channel, to) = listener(UDP, 3);
    let (active, active_channel) = resolved(UDP, to);
    assert_eq!(active.public().qp_type, ibv_qp_type::IBV_QPT_UD);
    let one = Made::new(&active);
    assert_eq!(one.state(), State::IBV_QPS_RTS);
    assert_eq!(active.connect(&[3; 181], 0), libc::EINVAL);
    assert_eq!(active.connect(&[3; 180], 0), 0);
    let request = channel.next();
    assert_eq!((request.private.len(), request.private[179]), (180, 3));
    let passive = request.request();
    let other = Made::new(&passive);
    assert_eq!(passive.accept(&[4; 137], 0), libc::EINVAL);
    drop(other);
    drop(passive);
    active_channel.expect_status(Event::RDMA_CM_EVENT_UNREACHABLE, 2);

    drop(one);
    let (active, active_channel) = resolved(UDP, to);
    let one = Made::new(&active);
    assert_eq!(active.connect(b"who?", 0), 0);
    let passive = channel.next().request();
    let mut other = Made::new(&passive);
    other.post_recv(200);
    assert_eq!(passive.accept(&[4; 136], 0), 0);
    let told = active_channel.expect(Event::RDMA_CM_EVENT_ESTABLISHED);
    channel.expect_silence(Duration::from_millis(20));
    // SAFETY: a live queue pair.
    let number = unsafe { (*passive.public().qp).qp_num };
    assert_eq!((told.ud.qp_num, told.ud.qkey, told.private.len()), (number, RDMA_UDP_QKEY, 136));
    let mut vector = told.ud.ah_attr;
    assert_eq!(vector.port_num, 1);
    assert!(vector.is_global == 1 || vector.dlid != 0, "an address");
    // SAFETY: a live domain, a valid structure.
    let ah = unsafe { (verbs().ibv_create_ah)(active.public().pd, &raw mut vector) };
    assert!(!ah.is_null(), "{}", errno());
    one.post_send(60, |wr| {
        let ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn: told.ud.qp_num, remote_qkey: told.ud.qkey };
        wr.wr.ud = ud;
    });
    assert_eq!(one.sent().status, ibv_wc_status::IBV_WC_SUCCESS);
    let wc = other.received();
    assert_eq!((wc.status, wc.byte_len), (ibv_wc_status::IBV_WC_SUCCESS, 100));
    other.memory[0] = 0;
    // SAFETY: alive, and not used any more.
    assert_eq!(unsafe { (verbs().ibv_destroy_ah)(ah) }, 0);
}

#[test]
fn datagram_services_that_are_not() {
    let channel = Channel::new();
    let bound = channel.udp();
    assert_eq!(bound.bind(loopback(0)), 0);
    let (active, active_channel) = resolved(UDP, loopback(bound.port()));
    assert_eq!(active.connect(b"", 5), 0);
    active_channel.expect_status(Event::RDMA_CM_EVENT_UNREACHABLE, 1);
    let (_listener, channel, to) = listener(UDP, 3);
    let (active, active_channel) = resolved(UDP, to);
    assert_eq!(active.connect(b"", 5), 0);
    assert_eq!(channel.next().request().reject(b"no"), 0);
    active_channel.expect_status(Event::RDMA_CM_EVENT_UNREACHABLE, 2);
    // A connection request to a datagram service finds no listener.
    let (active, active_channel) = resolved(TCP, to);
    assert_eq!(active.connect(b"", 5), 0);
    active_channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 8);
    channel.expect_silence(Duration::from_millis(20));
}

#[test]
fn a_datagram_queue_pair_of_the_application_s_own() {
    let (active, _channel) = resolved(UDP, loopback(5));
    let (attr, mask) = active.attributes(State::IBV_QPS_INIT).unwrap();
    let init = Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_QKEY;
    assert_eq!((attr.qkey, attr.port_num, mask), (RDMA_UDP_QKEY, 1, init));
}

fn group(last: u8) -> SocketAddr {
    SocketAddr::from(([239, 7, 47, last], 0))
}

fn join(id: &Id, to: SocketAddr, context: usize) -> i32 {
    let mut to = raw(to);
    let context = ptr::without_provenance_mut(context);
    // SAFETY: alive; an address.
    outcome(unsafe { (cm().rdma_join_multicast)(id.0, (&raw mut to).cast(), context) })
}

fn leave(id: &Id, to: SocketAddr) -> i32 {
    let mut to = raw(to);
    // SAFETY: alive; an address.
    outcome(unsafe { (cm().rdma_leave_multicast)(id.0, (&raw mut to).cast()) })
}

#[test]
fn multicast_groups() {
    let channel = Channel::new();
    let ids = [channel.udp(), channel.udp()];
    assert_eq!(join(&ids[0], group(1), 0), libc::EINVAL, "it has no device");
    for id in &ids {
        assert_eq!(id.bind(loopback(0)), 0);
    }
    let [sender, member] = &ids;
    let (one, other) = (Made::new(sender), Made::new(member));
    other.post_recv(200);
    assert_eq!(join(member, group(1), 0x77), 0);
    let told = channel.expect(Event::RDMA_CM_EVENT_MULTICAST_JOIN);
    assert_eq!((told.ud.qp_num, told.ud.qkey), (0x00ff_ffff, RDMA_UDP_QKEY));
    assert_eq!(told.ud.private_data.addr(), 0x77);
    // SAFETY: every bit pattern is a valid GID.
    let mgid = unsafe { told.ud.ah_attr.grh.dgid.raw };
    assert_eq!(mgid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 7, 47, 1]);
    let mut vector = told.ud.ah_attr;
    // SAFETY: a live domain, a valid structure.
    let ah = unsafe { (verbs().ibv_create_ah)(sender.public().pd, &raw mut vector) };
    assert!(!ah.is_null(), "{}", errno());
    one.post_send(60, |wr| {
        wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn: 0x00ff_ffff, remote_qkey: RDMA_UDP_QKEY };
    });
    assert_eq!(one.sent().status, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(other.received().byte_len, 100);
    // SAFETY: alive, and not used any more.
    assert_eq!(unsafe { (verbs().ibv_destroy_ah)(ah) }, 0);
    assert_eq!(leave(member, group(2)), libc::EADDRNOTAVAIL);
    assert_eq!(leave(member, group(1)), 0);
    assert_eq!(leave(member, group(1)), libc::EADDRNOTAVAIL);
    // Leaving removes a join event that was not taken.
    assert_eq!(join(member, group(3), 0), 0);
    assert!(channel.is_readable(PATIENCE));
    assert_eq!(leave(member, group(3)), 0);
    assert!(!channel.is_readable(Duration::ZERO));
    // Leaving ends the latest of two memberships with one address.
    assert_eq!(join(member, group(4), 0x41), 0);
    assert_eq!(join(member, group(4), 0x42), 0);
    assert_eq!(leave(member, group(4)), 0);
    assert_eq!(channel.expect(Event::RDMA_CM_EVENT_MULTICAST_JOIN).ud.private_data.addr(), 0x41);
    // Only datagram ids can join.
    let tcp = channel.tcp();
    assert_eq!(tcp.bind(loopback(0)), 0);
    assert_eq!(join(&tcp, group(1), 0), libc::EINVAL);
}

/// mckey resolves the address of the group to find the device.
#[test]
fn the_address_of_a_group_is_resolved() {
    for group in [group(9), "[ff0e::4709]:0".parse().unwrap()] {
        let channel = Channel::new();
        let id = channel.udp();
        assert_eq!(id.resolve_addr(group), 0);
        channel.expect(Event::RDMA_CM_EVENT_ADDR_RESOLVED);
        let local = id.local().unwrap().ip();
        assert!(!local.is_unspecified() && !local.is_multicast(), "{local}");
        assert_eq!(id.peer().map(|peer| peer.ip()), Some(group.ip()));
        let made = Made::new(&id);
        made.post_recv(200);
        assert_eq!(join(&id, group, 0x5), 0);
        let told = channel.expect(Event::RDMA_CM_EVENT_MULTICAST_JOIN);
        assert_eq!(told.ud.private_data.addr(), 0x5);
        assert_eq!(leave(&id, group), 0);
        // With a source address that the program chooses.
        let other = channel.udp();
        let from = if group.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
        assert_eq!(other.resolve_addr_from(from.parse().unwrap(), group), 0);
        channel.expect(Event::RDMA_CM_EVENT_ADDR_RESOLVED);
        assert!(other.local().unwrap().ip().is_loopback());
        assert_eq!(other.resolve_route(), 0);
        channel.expect(Event::RDMA_CM_EVENT_ROUTE_RESOLVED);
    }
}

#[test]
fn multicast_with_flags() {
    let channel = Channel::new();
    let id = channel.udp();
    assert_eq!(id.bind(loopback(0)), 0);
    let mut to = raw("[ff0e::47]:0".parse().unwrap());
    let join = |comp_mask, join_flags, to: *mut Raw| {
        let mut attr = rdma_cm_join_mc_attr_ex { comp_mask, join_flags, addr: to.cast() };
        // SAFETY: alive; valid attributes.
        outcome(unsafe { (cm().rdma_join_multicast_ex)(id.0, &raw mut attr, ptr::null_mut()) })
    };
    assert_eq!(join(7, 0, &raw mut to), libc::ENOTSUP);
    assert_eq!(join(1, 0, &raw mut to), libc::EINVAL);
    assert_eq!(join(3, 2, &raw mut to), libc::EINVAL);
    assert_eq!(join(3, 1, &raw mut to), 0);
    let told = channel.expect(Event::RDMA_CM_EVENT_MULTICAST_JOIN);
    // SAFETY: every bit pattern is a valid GID.
    let mgid = unsafe { told.ud.ah_attr.grh.dgid.raw };
    assert_eq!(std::net::Ipv6Addr::from(mgid), "ff0e::47".parse::<std::net::Ipv6Addr>().unwrap());
}

/// Resolves a name and a port.
fn info(node: Option<&str>, service: &str, flags: u32, ps: rdma_port_space) -> Result<*mut rdma_addrinfo, i32> {
    let node = node.map(|node| CString::new(node).unwrap());
    let service = CString::new(service).unwrap();
    let hints = rdma_addrinfo {
        ai_flags: c_int::try_from(flags).unwrap(),
        ai_port_space: c_int::try_from(ps.0).unwrap(),
        ..Default::default()
    };
    let mut list = ptr::null_mut();
    let node = node.as_ref().map_or(ptr::null(), |node| node.as_ptr());
    // SAFETY: C strings or null, valid hints, an out parameter.
    match unsafe { (cm().rdma_getaddrinfo)(node, service.as_ptr(), &raw const hints, &raw mut list) } {
        0 => Ok(list),
        code => Err(code),
    }
}

fn free(list: *mut rdma_addrinfo) {
    // SAFETY: a list of the library's, not used below.
    unsafe { (cm().rdma_freeaddrinfo)(list) };
}

#[test]
fn names_become_addresses() {
    let list = info(Some("127.0.0.1"), "7471", RAI_NUMERICHOST, TCP).unwrap();
    // SAFETY: a list of the library's.
    let first = unsafe { *list };
    assert_eq!((first.ai_family, first.ai_dst_len), (libc::AF_INET, 16));
    assert_eq!(first.ai_qp_type, c_int::try_from(ibv_qp_type::IBV_QPT_RC.0).unwrap());
    assert!(first.ai_src_addr.is_null() && first.ai_next.is_null());
    free(list);
    let list = info(None, "7471", RAI_PASSIVE, UDP).unwrap();
    // SAFETY: a list of the library's.
    let first = unsafe { *list };
    assert_eq!(first.ai_qp_type, c_int::try_from(ibv_qp_type::IBV_QPT_UD.0).unwrap());
    assert!(!first.ai_src_addr.is_null() && first.ai_dst_addr.is_null());
    assert_eq!(first.ai_flags, c_int::try_from(RAI_PASSIVE).unwrap());
    free(list);
    assert_eq!(info(Some("not a number"), "7471", RAI_NUMERICHOST, TCP), Err(libc::EAI_NONAME));
    let mut list = ptr::null_mut();
    // SAFETY: null strings and hints are allowed, and the out parameter is valid.
    let code = unsafe { (cm().rdma_getaddrinfo)(ptr::null(), ptr::null(), ptr::null(), &raw mut list) };
    assert_eq!(outcome(code), libc::EINVAL);
    // SAFETY: null is no list.
    unsafe { (cm().rdma_freeaddrinfo)(ptr::null_mut()) };
}

#[test]
fn names_are_resolved_for_an_id() {
    let channel = Channel::new();
    let id = channel.tcp();
    let call = |node: &CStr, hints: *const rdma_addrinfo| {
        // SAFETY: alive; C strings; null or hints.
        unsafe { (cm().rdma_resolve_addrinfo)(id.0, node.as_ptr(), c"7471".as_ptr(), hints) }
    };
    let resolve = || outcome(call(c"127.0.0.1", ptr::null()));
    let mut list = ptr::null_mut();
    // SAFETY: alive; an out parameter.
    let mut query = || outcome(unsafe { (cm().rdma_query_addrinfo)(id.0, &raw mut list) });
    assert_eq!(query(), libc::ENOENT);
    let hints = rdma_addrinfo { ai_flags: c_int::try_from(RAI_NUMERICHOST).unwrap(), ..Default::default() };
    assert_eq!((call(c"not a number", &raw const hints), errno()), (-1, libc::EAI_NONAME));
    // A program that asks for `AF_IB` without `RAI_FAMILY` gets an IP address.
    let hints = rdma_addrinfo { ai_family: libc::AF_IB, ..Default::default() };
    assert_eq!(call(c"127.0.0.1", &raw const hints), 0);
    assert_eq!(resolve(), libc::EBUSY);
    channel.expect(Event::RDMA_CM_EVENT_ADDRINFO_RESOLVED);
    assert_eq!(query(), 0);
    free(list);
    // Destroying the id frees a list that was never fetched.
    assert_eq!(resolve(), 0);
    channel.expect(Event::RDMA_CM_EVENT_ADDRINFO_RESOLVED);
}

fn init() -> ibv_qp_init_attr {
    let cap = ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    ibv_qp_init_attr { cap, sq_sig_all: 1, ..Default::default() }
}

fn endpoint(list: *mut rdma_addrinfo) -> Result<Id, i32> {
    let (mut id, mut init) = (ptr::null_mut(), init());
    // SAFETY: a list of the library's, valid attributes, an out parameter.
    match unsafe { (cm().rdma_create_ep)(&raw mut id, list, ptr::null_mut(), &raw mut init) } {
        0 => Ok(Id::adopt(id)),
        _ => Err(errno()),
    }
}

fn destroy(id: Id) {
    // SAFETY: alive, and not used below.
    unsafe { (cm().rdma_destroy_ep)(id.leak()) };
}

/// The calls of `rdma_server` and `rdma_client`.
#[test]
fn endpoints_wait_by_themselves() {
    let list = info(Some("127.0.0.1"), "0", RAI_PASSIVE, TCP).unwrap();
    let listener = endpoint(list).unwrap();
    free(list);
    assert_eq!(listener.listen(0), 0);
    let port = listener.port();
    thread::scope(|scope| {
        scope.spawn(move || {
            let list = info(Some("127.0.0.1"), &port.to_string(), 0, TCP).unwrap();
            for rejected in [false, true] {
                let id = endpoint(list).unwrap();
                let result = id.connect_with(ptr::null_mut());
                if rejected {
                    assert_eq!(result, libc::ECONNREFUSED);
                } else {
                    assert_eq!(result, 0);
                    let event = id.public().event;
                    assert_eq!(name(Told::of(event).code), "RDMA_CM_EVENT_ESTABLISHED");
                    assert_eq!(id.disconnect(), 0);
                }
                destroy(id);
            }
            free(list);
        });
        for rejected in [false, true] {
            let mut id = ptr::null_mut();
            // SAFETY: alive; an out parameter.
            assert_eq!(outcome(unsafe { (cm().rdma_get_request)(listener.0, &raw mut id) }), 0);
            let id = Id::adopt(id);
            assert!(!id.public().qp.is_null(), "made as the endpoint says");
            if rejected {
                assert_eq!(id.reject(b""), 0);
            } else {
                assert_eq!(id.accept_with(ptr::null_mut()), 0);
                assert_eq!(id.disconnect(), 0);
            }
            destroy(id);
        }
    });
    destroy(listener);
}

#[test]
fn endpoints_that_cannot_be() {
    let list = info(Some("192.0.2.1"), "7471", 0, TCP).unwrap();
    assert_eq!(endpoint(list).err(), Some(libc::ENODEV));
    free(list);
    let id = Id::sync(TCP);
    let mut taken: *mut rdma_cm_id = ptr::null_mut();
    let channel = Channel::new();
    let other = channel.tcp();
    // SAFETY: alive; an out parameter.
    assert_eq!(outcome(unsafe { (cm().rdma_get_request)(other.0, &raw mut taken) }), libc::EINVAL);
    // A synchronous id cannot migrate to another channel of its own.
    assert_eq!(id.migrate(None), libc::EINVAL);
    assert_eq!(id.migrate(Some(&channel)), 0);
    assert_eq!(id.resolve_addr(loopback(5)), 0);
    channel.expect(Event::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(id.migrate(None), 0);
    assert_eq!(id.resolve_route(), 0);
    assert_eq!(name(Told::of(id.public().event).code), "RDMA_CM_EVENT_ROUTE_RESOLVED");
}

#[test]
fn where_connections_lead() {
    // IPv6 and IPv4 reach an IPv6 wildcard, unless the listener has `AFONLY` set.
    let channel = Channel::new();
    let listener = channel.tcp();
    assert_eq!(listener.bind("[::]:0".parse().unwrap()), 0);
    assert_eq!(listener.listen(8), 0);
    let port = listener.port();
    for host in ["[::1]", "127.0.0.1", "127.3.2.1"] {
        let to: SocketAddr = format!("{host}:{port}").parse().unwrap();
        let (active, active_channel) = resolved(TCP, to);
        assert_eq!((active.peer(), active.local().map(|local| local.ip())), (Some(to), Some(to.ip())));
        assert_eq!(active.connect(b"", 1), 0);
        let passive = channel.next().request();
        assert_eq!((passive.local(), passive.peer()), (Some(to), active.local()));
        drop(passive);
        active_channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    }
    let only = channel.tcp();
    assert_eq!(only.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, 1_i32), 0);
    assert_eq!(only.bind("[::]:0".parse().unwrap()), 0);
    assert_eq!(only.listen(8), 0);
    let (active, active_channel) = resolved(TCP, SocketAddr::from(([127, 0, 0, 1], only.port())));
    assert_eq!(active.connect(b"", 1), 0);
    active_channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 8);
    // An unreachable address gives an error event, and the id can be resolved again.
    let lost = channel.tcp();
    assert_eq!(lost.resolve_addr("192.0.2.1:7".parse().unwrap()), 0);
    channel.expect_status(Event::RDMA_CM_EVENT_ADDR_ERROR, -libc::ENODEV);
    assert_eq!(lost.resolve_addr("127.0.0.1:7".parse().unwrap()), 0);
    channel.expect(Event::RDMA_CM_EVENT_ADDR_RESOLVED);
    // The connection comes from the chosen source address.
    let from = channel.tcp();
    assert_eq!(from.resolve_addr_from("127.9.9.9:0".parse().unwrap(), loopback(port)), 0);
    channel.expect(Event::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(from.local().unwrap().ip(), "127.9.9.9".parse::<std::net::IpAddr>().unwrap());
    let bad = channel.tcp();
    assert_eq!(bad.resolve_addr_from("192.0.2.1:0".parse().unwrap(), loopback(port)), libc::ENODEV);
    assert_eq!(bad.resolve_addr_from("[::1]:0".parse().unwrap(), loopback(port)), libc::EINVAL);
    // As a destination the wildcard means this host.
    let here = channel.tcp();
    assert_eq!(here.resolve_addr(SocketAddr::from(([0, 0, 0, 0], port))), 0);
    channel.expect(Event::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(here.resolve_route(), 0);
    channel.expect(Event::RDMA_CM_EVENT_ROUTE_RESOLVED);
    assert_eq!(here.connect(b"", 1), 0);
    drop(channel.next().request());
    channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
}

#[test]
fn a_context_pointer_comes_back() {
    let channel = Channel::new();
    let mut id = ptr::null_mut();
    let mine: *mut c_void = ptr::without_provenance_mut(0x1234);
    // SAFETY: alive; valid for writes.
    assert_eq!(unsafe { (cm().rdma_create_id)(channel.0, &raw mut id, mine, TCP) }, 0);
    let id = Id::adopt(id);
    assert_eq!(id.public().context, mine);
    assert_eq!(id.listen(1), 0);
    let (active, _active_channel) = resolved(TCP, loopback(id.port()));
    assert_eq!(active.connect(b"", 1), 0);
    // The id of a request inherits its listener's context.
    assert_eq!(channel.next().request().public().context, mine);
}

/// The same tests on an InfiniBand link, where address vectors have LIDs.
#[test]
fn on_an_infiniband_link() {
    let tests = [
        "queue_pairs::a_queue_pair_of_the_application_s_own",
        "queue_pairs::a_datagram_service",
        "queue_pairs::multicast_groups",
    ];
    rdma_test_support::passes_alone(&tests, &[("RDMA_SOFT_LINK_LAYER", "infiniband")]);
}
