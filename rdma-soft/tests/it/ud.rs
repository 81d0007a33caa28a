//! Unreliable datagrams: within one process and between two, address handles, groups, and silent
//! losses.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use rdma_sys::*;

use crate::common::datagram::{self, Datagrams, GRH, MULTICAST_QPN, QKEY, answer_to, group_of, until};
use crate::common::puppet::Puppet;
use crate::common::{self, Config, Side, verbs};

type Status = ibv_wc_status;

/// The other process runs only this test.
#[test]
fn other_process() {
    datagram::play();
}

fn raw(gid: ibv_gid) -> [u8; 16] {
    // SAFETY: every bit pattern is a valid GID.
    unsafe { gid.raw }
}

#[test]
fn a_datagram_arrives_behind_its_header() {
    let (a, b) = (Datagrams::new(), Datagrams::new());
    let to = a.handle();
    for (round, len) in [0, 1, 15, 64, 1000, 4096].into_iter().enumerate() {
        let data: Vec<u8> = (0..len).map(|i| (i * 7 + round).to_le_bytes()[0]).collect();
        a.side.put(0, &data);
        b.recv(7, 8192, 4096);
        a.sent(3, 0, len, &to, b.qpn());
        let wc = b.side.success(7);
        assert_eq!((wc.opcode, wc.byte_len as usize), (ibv_wc_opcode::IBV_WC_RECV, GRH + len));
        assert_eq!((wc.src_qp, wc.qp_num), (a.qpn(), b.qpn()));
        assert_eq!(wc.wc_flags, ibv_wc_flags::IBV_WC_GRH.0);
        assert_eq!((wc.pkey_index, wc.slid, wc.dlid_path_bits), (0, 0, 0));
        // The type of the network header in mlx5's coding: IPv4.
        assert_eq!(wc.sl, 0xa);
        assert_eq!(b.side.peek(8192 + GRH, len), data);
        let grh = b.side.peek(8192, GRH);
        assert_eq!(grh[..22], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x45, 0x28]);
        assert_eq!((grh[28], grh[29]), (64, 17));
        let address = raw(a.gid(0));
        assert_eq!((&grh[32..36], &grh[36..]), (&address[12..], &address[12..]));
    }
}

#[test]
fn immediate_data_lists_and_inline_data() {
    let (a, b) = (Datagrams::new(), Datagrams::new());
    let to = a.handle();
    a.side.put(0, b"one two three");
    let lists = [b.side.sge(0, 10), b.side.sge(100, 32), b.side.sge(200, 2), b.side.sge(300, 64)];
    assert_eq!(b.side.post_recv(1, &lists), 0);
    let mut list = [a.side.sge(0, 4), a.side.sge(4, 0), a.side.sge(4, 4), a.side.sge(8, 5)];
    let mut wr = a.request(2, &mut list, &to, b.qpn());
    wr.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
    wr.__bindgen_anon_1.imm_data = 0xdead_beef_u32.to_be();
    // SAFETY: the queue pair, the request and its objects are alive.
    assert_eq!(unsafe { a.post(&mut wr) }, 0);
    a.side.success(2);
    let wc = b.side.success(1);
    assert_eq!(wc.byte_len as usize, GRH + 13);
    assert_eq!(wc.wc_flags, ibv_wc_flags::IBV_WC_GRH.0 | ibv_wc_flags::IBV_WC_WITH_IMM.0);
    // SAFETY: both variants are a `u32`.
    assert_eq!(u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }), 0xdead_beef);
    // The scatter entries hold 10 and 30 bytes of the GRH, then 2, 2 and 9 bytes of the data.
    let data = [b.side.peek(130, 2), b.side.peek(200, 2), b.side.peek(300, 9)].concat();
    assert_eq!(data, b"one two three");

    b.recv(3, 0, 100);
    let text = *b"said at once";
    let mut list = [ibv_sge { addr: text.as_ptr().expose_provenance() as u64, length: 12, lkey: 0 }];
    let mut wr = a.request(4, &mut list, &to, b.qpn());
    // Unsignaled: the completion of the next request implies that this one is done.
    wr.send_flags = ibv_send_flags::IBV_SEND_INLINE.0;
    // SAFETY: the queue pair, the request and its objects are alive.
    assert_eq!(unsafe { a.post(&mut wr) }, 0);
    b.recv(5, 1000, 100);
    a.sent(6, 0, 3, &to, b.qpn());
    b.side.success(3);
    assert_eq!(b.side.peek(GRH, 12), text);
    b.side.success(5);
}

#[test]
fn a_queue_pair_sends_to_itself_and_to_many() {
    let ends: Vec<Datagrams> = (0..5).map(|_| Datagrams::new()).collect();
    let to = ends[0].handle();
    for (index, end) in ends.iter().enumerate() {
        end.recv(1, 0, 64);
        ends[0].side.put(100, &[u8::try_from(index).unwrap(); 8]);
        ends[0].send(2, 100, 8, &to, end.qpn());
        let mut ids: Vec<u64> = if index == 0 {
            vec![end.side.wait().wr_id, end.side.wait().wr_id]
        } else {
            vec![ends[0].side.wait().wr_id, end.side.wait().wr_id]
        };
        ids.sort_unstable();
        assert_eq!(ids, [1, 2]);
        assert_eq!(end.side.peek(GRH, 8), [u8::try_from(index).unwrap(); 8]);
    }
}

/// A burst larger than a ring: within a process no datagram with a posted receive is lost.
#[test]
fn bursts_to_this_process_are_complete() {
    let config = Config { memory: 1 << 20, depth: 1024, cq_depth: 4096, ..Config::default() };
    let (a, b) = (Datagrams::with(config, false), Datagrams::with(config, false));
    a.bring_up(QKEY);
    b.bring_up(QKEY);
    let to = a.handle();
    for id in 0..1024 {
        b.recv(id, 0, 4096);
    }
    let mut list = [a.side.sge(0, 4096)];
    let mut wrs: Vec<ibv_send_wr> = (0..1024).map(|id| a.request(id, &mut list, &to, b.qpn())).collect();
    for index in 1..wrs.len() {
        wrs[index - 1].next = &raw mut wrs[index];
    }
    // SAFETY: the queue pair, the request and its objects are alive.
    assert_eq!(unsafe { a.post(&mut wrs[0]) }, 0);
    for id in 0..1024 {
        assert_eq!(a.side.success(id).wr_id, id);
        assert_eq!(b.side.success(id).byte_len as usize, GRH + 4096);
    }
}

#[test]
fn what_nobody_takes_is_lost_without_a_word() {
    let (a, b) = (Datagrams::new(), Datagrams::new());
    let to = a.handle();
    // Lost silently: no receive is posted; no queue pair has the number, in this process or
    // elsewhere; the number belongs to no slot; the number is for groups only.
    for qpn in [b.qpn(), b.qpn() ^ 1, 4094 << 12 | 1, 0, 1, MULTICAST_QPN] {
        a.sent(1, 0, 8, &to, qpn);
    }
    // A wrong Q_Key: the datagram is dropped.
    b.recv(2, 0, 64);
    let mut list = [a.side.sge(0, 8)];
    let mut wr = a.request(3, &mut list, &to, b.qpn());
    wr.wr.ud.remote_qkey = QKEY + 1;
    // SAFETY: the queue pair, the request and its objects are alive.
    assert_eq!(unsafe { a.post(&mut wr) }, 0);
    a.side.success(3);
    // Longer than the MTU: dropped (C10-93.1.1).
    a.sent(4, 0, 4097, &to, b.qpn());
    assert!(b.is_quiet());
    // A Q_Key with the top bit set selects the sender's own Q_Key.
    wr.wr.ud.remote_qkey = 1 << 31;
    // SAFETY: the queue pair, the request and its objects are alive.
    assert_eq!(unsafe { a.post(&mut wr) }, 0);
    a.side.success(3);
    b.side.success(2);
    assert_eq!((a.side.state(), b.side.state()), (ibv_qp_state::IBV_QPS_RTS, ibv_qp_state::IBV_QPS_RTS));
}

#[test]
fn a_receive_that_is_too_small_fails() {
    let (a, b) = (Datagrams::new(), Datagrams::new());
    let to = a.handle();
    b.recv(1, 0, 7);
    b.recv(2, 0, 8);
    a.sent(3, 0, 8, &to, b.qpn());
    b.side.expect(1, Status::IBV_WC_LOC_LEN_ERR);
    b.side.expect(2, Status::IBV_WC_WR_FLUSH_ERR);
    assert_eq!(b.side.state(), ibv_qp_state::IBV_QPS_ERR);
    a.sent(4, 0, 8, &to, b.qpn());
}

#[test]
fn a_bad_key_stops_the_send_queue_only() {
    type M = ibv_qp_attr_mask;
    let (a, b) = (Datagrams::new(), Datagrams::new());
    let to = a.handle();
    a.recv(1, 0, 64);
    let mut bad = [a.side.sge(0, 8)];
    bad[0].lkey ^= 1;
    let mut wr = a.request(2, &mut bad, &to, b.qpn());
    // SAFETY: the queue pair, the request and its objects are alive.
    assert_eq!(unsafe { a.post(&mut wr) }, 0);
    a.side.expect(2, Status::IBV_WC_LOC_PROT_ERR);
    a.send(3, 0, 8, &to, b.qpn());
    a.side.expect(3, Status::IBV_WC_WR_FLUSH_ERR);
    assert_eq!(a.side.state(), ibv_qp_state::IBV_QPS_SQE);
    // In SQE the queue pair still receives; it sends again after a transition to RTS.
    b.sent(4, 0, 8, &b.handle(), a.qpn());
    a.side.success(1);
    let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTS, ..Default::default() };
    attr.cur_qp_state = ibv_qp_state::IBV_QPS_SQE;
    assert_eq!(a.side.modify(&mut attr, M::IBV_QP_STATE.0 | M::IBV_QP_CUR_STATE.0), 0);
    b.recv(5, 0, 64);
    a.sent(6, 0, 8, &to, b.qpn());
    b.side.success(5);
    // A receive with an invalid lkey fails and moves the queue pair to the error state.
    let mut bad = b.side.sge(0, 64);
    bad.lkey ^= 1;
    assert_eq!(b.side.post_recv(7, &[bad]), 0);
    a.sent(8, 0, 8, &to, b.qpn());
    b.side.expect(7, Status::IBV_WC_LOC_PROT_ERR);
    assert_eq!(b.side.state(), ibv_qp_state::IBV_QPS_ERR);
    b.send(9, 0, 8, &b.handle(), a.qpn());
    b.side.expect(9, Status::IBV_WC_WR_FLUSH_ERR);
}

#[test]
fn what_a_datagram_queue_pair_does_not_do() {
    let (a, other) = (Datagrams::new(), Datagrams::new());
    let to = a.handle();
    let mut list = [a.side.sge(0, 8)];
    let mut wr = a.request(1, &mut list, &to, other.qpn());
    for opcode in [ibv_wr_opcode::IBV_WR_RDMA_WRITE, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD] {
        wr.opcode = opcode;
        // SAFETY: the queue pair, the request and its objects are alive.
        assert_eq!(unsafe { a.post(&mut wr) }, libc::EINVAL);
    }
    // An address handle of another domain, and a null one.
    wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
    let foreign = other.handle();
    for ah in [foreign.0, std::ptr::null_mut()] {
        wr.wr.ud.ah = ah;
        // SAFETY: the device looks at the handle before it uses it.
        assert_eq!(unsafe { a.post(&mut wr) }, libc::EINVAL);
    }
    assert!(a.is_quiet());
    let (attr, init) = a.side.query();
    assert_eq!((attr.qkey, init.qp_type), (QKEY, ibv_qp_type::IBV_QPT_UD));
}

#[test]
fn queue_pairs_of_the_two_kinds_do_not_hear_each_other() {
    let datagrams = Datagrams::new();
    let connection = Side::new(Config { timeout: 8, retry_cnt: 1, ..Config::default() });
    let mut to = connection.endpoint();
    to.qpn = datagrams.qpn();
    connection.connect(to);
    assert_eq!(connection.post_recv(1, &[connection.sge(0, 64)]), 0);
    datagrams.sent(2, 0, 8, &datagrams.handle(), connection.endpoint().qpn);
    datagrams.recv(3, 0, 64);
    let request = common::Request::new(ibv_wr_opcode::IBV_WR_SEND, 4, &[connection.sge(0, 8)]);
    assert_eq!(connection.post(&request), 0);
    connection.expect(4, Status::IBV_WC_RETRY_EXC_ERR);
    connection.expect(1, Status::IBV_WC_WR_FLUSH_ERR);
    assert!(datagrams.is_quiet());
}

#[test]
fn address_handles_lead_to_this_host_or_nowhere() {
    let end = Datagrams::new();
    let good = end.route_to(end.gid(0));
    let refused = |spoil: &dyn Fn(&mut ibv_ah_attr)| {
        let mut attr = good;
        spoil(&mut attr);
        end.try_handle(attr).unwrap_err()
    };
    assert_eq!(refused(&|attr| attr.port_num = 2), libc::EINVAL);
    assert_eq!(refused(&|attr| attr.is_global = 0), libc::EINVAL);
    assert_eq!(refused(&|attr| attr.grh.sgid_index = 255), libc::EINVAL);
    let elsewhere = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 77];
    assert_eq!(refused(&|attr| attr.grh.dgid.raw = elsewhere), libc::EHOSTUNREACH);
    let handle = end.handle();
    // A domain with address handles cannot be deallocated.
    // SAFETY: a live domain.
    assert_eq!(unsafe { (verbs().ibv_dealloc_pd)(end.side.pd) }, libc::EBUSY);
    drop(handle);
}

#[test]
fn a_request_keeps_its_address() {
    let (a, b) = (Datagrams::new(), Datagrams::new());
    b.recv(1, 0, 64);
    let to = a.handle();
    a.send(2, 0, 8, &to, b.qpn());
    drop(to);
    a.side.success(2);
    b.side.success(1);
}

#[test]
fn who_gets_a_datagram_can_answer() {
    let (a, b) = (Datagrams::new(), Datagrams::new());
    b.recv(1, 0, 64);
    a.sent(2, 0, 8, &a.handle(), b.qpn());
    let wc = b.side.success(1);
    let back = answer_to(&b, &wc, 0).unwrap();
    a.recv(3, 0, 64);
    b.sent(4, 0, 8, &back, wc.src_qp);
    assert_eq!(a.side.success(3).src_qp, b.qpn());
    // Bytes that are no network header are refused.
    b.side.put(0, &[0; GRH]);
    assert_eq!(answer_to(&b, &wc, 0).unwrap_err(), libc::EPROTONOSUPPORT);
    let mut elsewhere = b.side.peek(GRH, 0);
    elsewhere.resize(GRH, 0);
    elsewhere[20] = 0x45;
    elsewhere[36..].copy_from_slice(&[192, 0, 2, 77]);
    b.side.put(0, &elsewhere);
    assert_eq!(answer_to(&b, &wc, 0).unwrap_err(), libc::ENODATA);
}

#[test]
fn the_extended_interfaces() {
    let (a, b) = (Datagrams::with(Config::default(), true), Datagrams::new());
    a.bring_up(QKEY);
    let to = a.handle();
    // SAFETY: a live queue pair.
    let ex = unsafe { (verbs().ibv_qp_to_qp_ex)(a.side.qp) };
    assert!(!ex.is_null());
    for id in 0..2 {
        b.recv(id, 1000 * usize::try_from(id).unwrap(), 64);
    }
    a.side.put(0, b"by the list");
    let text = *b"inline";
    let flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
    let begin = |id: u64| {
        // SAFETY: the live object's own field, which this thread alone uses.
        unsafe { (*ex).wr_id = id };
        // SAFETY: a public field of a live queue pair, which this thread alone uses.
        unsafe { (*ex).wr_flags = flags };
    };
    // SAFETY: a live queue pair that was created for these calls, which come in order, with live
    // handles.
    let address = || unsafe { ibv_wr_set_ud_addr(ex, to.0, b.qpn(), QKEY) };
    // SAFETY: a live queue pair that was created for these calls.
    let start = || unsafe { ibv_wr_start(ex) };
    // SAFETY: a live queue pair that was created for these calls.
    let send = || unsafe { ibv_wr_send(ex) };
    // SAFETY: a live queue pair that was created for these calls.
    let complete = || unsafe { ibv_wr_complete(ex) };
    start();
    begin(10);
    send();
    address();
    let list = a.side.sge(0, 11);
    // SAFETY: a live queue pair that was created for these calls.
    unsafe { ibv_wr_set_sge(ex, list.lkey, list.addr, list.length) };
    begin(11);
    // SAFETY: a live queue pair that was created for these calls.
    unsafe { ibv_wr_send_imm(ex, 5_u32.to_be()) };
    // SAFETY: a live queue pair that was created for these calls; the text is read during the call.
    unsafe { ibv_wr_set_inline_data(ex, text.as_ptr().cast_mut().cast(), text.len()) };
    address();
    let posted = complete();
    assert_eq!(posted, 0);
    a.side.success(10);
    a.side.success(11);
    b.side.success(0);
    b.side.success(1);
    assert_eq!(b.side.peek(GRH, 11), b"by the list");
    assert_eq!(b.side.peek(1000 + GRH, 6), text);
    // A request without an address fails the whole batch.
    start();
    send();
    address();
    send();
    assert_eq!(complete(), libc::EINVAL);
    start();
    // SAFETY: a live queue pair that was created for these calls.
    unsafe { ibv_wr_rdma_write(ex, 1, 1) };
    assert_eq!(complete(), libc::EOPNOTSUPP);
    b.recv(2, 0, 64);
    assert!(a.is_quiet() && b.is_quiet());
}

#[test]
fn two_processes() {
    let mut other = Puppet::start("ud::other_process", "");
    let end = Datagrams::new();
    let to = end.handle();
    let qpn = other.endpoint.qpn;
    // On a busy machine, setting up a link may take longer than datagrams wait.
    other.ask("recv 1 0 4096");
    until(|| end.sent(1, 0, 100, &to, qpn), || other.ask("try") == "1");
    for round in 0..50_u32 {
        let len = (round * 83) % 4097;
        other.ask("recv 2 0 4096");
        end.recv(3, 8192, 4096);
        let byte = u8::try_from(round).unwrap();
        end.side.put(0, &vec![byte; len as usize]);
        end.sent(4, 0, len as usize, &to, qpn);
        assert_eq!(other.ask(&format!("answer 0 {len}")), format!("0 {}", len + 40));
        let wc = end.side.success(3);
        assert_eq!((wc.src_qp, wc.byte_len), (qpn, len + 40));
        assert_eq!(end.side.peek(8192 + GRH, len as usize), vec![byte; len as usize]);
    }
    other.finish();
}

#[test]
fn a_first_burst_to_a_new_process_arrives_whole() {
    const BURST: u64 = 200;
    // Repeated, because on a busy machine setting up a link may take longer than datagrams wait.
    let arrives_whole = || {
        let mut other = Puppet::start("ud::other_process", "deep");
        let end = Datagrams::deep();
        let to = end.handle();
        for id in 0..BURST {
            other.ask(&format!("recv {id} 0 104"));
        }
        for id in 0..BURST {
            end.send(id, 0, 64, &to, other.endpoint.qpn);
        }
        for id in 0..BURST {
            end.side.success(id);
        }
        let whole = (0..BURST).all(|id| other.ask("try") == id.to_string());
        other.finish();
        whole
    };
    assert!((0..10).any(|_| arrives_whole()));
}

/// A process sends a datagram and ends while the datagram waits for a link.
#[test]
fn the_last_datagram_of_a_process_arrives() {
    let arrives = || {
        let mut other = Puppet::start("ud::other_process", "");
        let end = Datagrams::new();
        end.recv(1, 0, 64);
        assert_eq!(other.ask(&format!("leave 0 8 {}", end.qpn())), "done");
        (0..20).any(|_| !end.is_quiet())
    };
    assert!((0..10).any(|_| arrives()));
}

#[test]
fn a_datagram_leaves_before_its_queue_pair_is_destroyed() {
    let mut other = Puppet::start("ud::other_process", "");
    assert_eq!(other.ask("recv 1 0 8"), "done");
    let end = Datagrams::new();
    let handle = end.handle();
    // This process has no link to the other one yet.
    end.send(1, 0, 8, &handle, other.endpoint.qpn);
    drop(handle);
    drop(end);
    let got = other.ask("wait");
    assert!(got.starts_with("1 0 48"), "{got}");
    other.finish();
}

#[test]
fn a_process_that_stands_still_or_dies_holds_up_nobody() {
    let mut other = Puppet::start("ud::other_process", "");
    let (end, near) = (Datagrams::new(), Datagrams::new());
    let to = end.handle();
    let qpn = other.endpoint.qpn;
    assert_eq!(other.ask("recv 1 0 64"), "done");
    // A busy machine may need more than the 100 ms that a datagram waits for a link.
    until(|| end.sent(1, 0, 8, &to, qpn), || other.ask("try") == "1");
    other.stop();
    // Many times the capacity of the ring.
    let start = Instant::now();
    for _ in 0..2000 {
        end.sent(2, 0, 4096, &to, qpn);
    }
    near.recv(3, 0, 64);
    end.sent(4, 0, 8, &to, near.qpn());
    near.side.success(3);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    other.resume();
    // The resumed process drains the ring, loses those datagrams and then receives new ones.
    other.ask("recv 5 0 4096");
    until(|| end.sent(6, 0, 8, &to, qpn), || other.ask("try") == "5");
    other.kill();
    for _ in 0..100 {
        end.sent(7, 0, 8, &to, qpn);
    }
    near.recv(8, 0, 64);
    end.sent(9, 0, 8, &to, near.qpn());
    near.side.success(8);
    assert_eq!(end.side.state(), ibv_qp_state::IBV_QPS_RTS);
}

#[test]
fn groups_within_a_process() {
    let (sender, a, b) = (Datagrams::new(), Datagrams::new(), Datagrams::new());
    for (low, global) in [(1, false), (2, true)] {
        let mut group = group_of(std::process::id(), low);
        if global {
            let mut address = raw(group);
            address[..2].copy_from_slice(&[0xff, 0x0e]);
            group.raw = address;
        }
        let to = sender.group_handle(group);
        assert_eq!((a.attach(group), b.attach(group), b.attach(group)), (0, 0, 0));
        sender.recv(1, 0, 64);
        a.recv(2, 0, 64);
        b.recv(3, 0, 64);
        b.recv(4, 200, 64);
        sender.sent(5, 0, 8, &to, MULTICAST_QPN);
        let wc = a.side.success(2);
        assert_eq!((wc.src_qp, wc.byte_len), (sender.qpn(), 48));
        b.side.success(3);
        assert!(sender.is_quiet() && a.is_quiet() && b.is_quiet(), "each gets it once, and who is not in it does not");
        // A datagram to a group does not say which address to answer from.
        assert_eq!(answer_to(&a, &wc, 0).unwrap_err(), libc::EINVAL);
        // A sender in the group receives its own datagram.
        assert_eq!(sender.attach(group), 0);
        a.recv(6, 0, 64);
        sender.send(7, 0, 8, &to, MULTICAST_QPN);
        let mut ids = [sender.side.wait().wr_id, sender.side.wait().wr_id];
        ids.sort_unstable();
        assert_eq!(ids, [1, 7]);
        a.side.success(6);
        b.side.success(4);
        // A queue pair that is attached to a group cannot be destroyed.
        // SAFETY: a live queue pair, which stays alive because the call is refused.
        assert_eq!(unsafe { (verbs().ibv_destroy_qp)(a.side.qp) }, libc::EBUSY);
        assert_eq!((a.detach(group), b.detach(group), sender.detach(group)), (0, 0, 0));
        assert_eq!(a.detach(group), libc::EINVAL);
        a.recv(8, 0, 64);
        sender.sent(9, 0, 8, &to, MULTICAST_QPN);
        assert!(a.is_quiet());
        assert_eq!(a.side.set_state(ibv_qp_state::IBV_QPS_RESET), 0);
        a.bring_up(QKEY);
    }
}

#[test]
fn groups_of_several_processes() {
    let mut others: Vec<Puppet> = (0..3).map(|_| Puppet::start("ud::other_process", "")).collect();
    let end = Datagrams::new();
    let group = group_of(std::process::id(), 9);
    let name = format!("{} 9", std::process::id());
    let to = end.group_handle(group);
    assert_eq!(end.attach(group), 0);
    for other in &mut others[..2] {
        assert_eq!(other.ask(&format!("attach {name}")), "0");
    }
    for other in &mut others {
        other.ask("recv 1 0 64");
        other.ask("recv 2 0 64");
    }
    end.recv(1, 8192, 64);
    end.side.put(0, b"to all of you");
    end.send(2, 0, 13, &to, MULTICAST_QPN);
    let mut ids = [end.side.wait().wr_id, end.side.wait().wr_id];
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    for other in &mut others[..2] {
        // On a busy machine, setting up a link may take longer than datagrams wait.
        until(|| end.sent(2, 0, 13, &to, MULTICAST_QPN), || other.ask("try") == "1");
        assert_eq!(other.ask("peek 40 13"), format!("{:?}", b"to all of you"));
    }
    for other in &mut others[..2] {
        while other.ask("try") != "none" {}
    }
    assert_eq!(others[2].ask("try"), "none");
    // A process that attaches later gets datagrams soon, if not the next one; one that detaches
    // gets none.
    assert_eq!(others[2].ask(&format!("attach {name}")), "0");
    assert_eq!(others[0].ask(&format!("detach {name}")), "0");
    assert_eq!(end.detach(group), 0);
    let last = std::cell::RefCell::new(&mut others[2]);
    until(|| end.sent(3, 0, 13, &to, MULTICAST_QPN), || last.borrow_mut().ask("try") == "1");
    assert_eq!(others[0].ask("try"), "none");
    // A process that dies is removed from the group.
    others[1].kill();
    others[2].ask("recv 3 0 64");
    until(|| end.sent(4, 0, 13, &to, MULTICAST_QPN), || others[2].ask("try") != "none");
}

#[test]
fn who_may_be_in_a_group() {
    let end = Datagrams::new();
    let group = group_of(std::process::id(), 20);
    assert_eq!(end.attach(end.gid(0)), libc::EINVAL);
    assert_eq!(end.detach(group), libc::EINVAL);
    let connection = Side::new(Config::default());
    // SAFETY: a live queue pair, a valid address.
    assert_eq!(unsafe { (verbs().ibv_attach_mcast)(connection.qp, &raw const group, 0) }, libc::EINVAL);
    // A group's address with a unicast queue pair number, and the multicast number with a unicast
    // address.
    let other = Datagrams::new();
    assert_eq!(other.attach(group), 0);
    other.recv(1, 0, 64);
    end.sent(1, 0, 8, &end.group_handle(group), other.qpn());
    end.sent(2, 0, 8, &end.handle(), MULTICAST_QPN);
    assert!(other.is_quiet());
    assert_eq!(other.detach(group), 0);
}

#[test]
fn a_forked_child_keeps_nobody_out_of_a_group() {
    let end = Datagrams::new();
    let gid = group_of(std::process::id(), 14);
    assert_eq!(end.attach(gid), 0);
    // SAFETY: the child only waits for its end, by calls that are allowed there.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        loop {
            // SAFETY: the function has no requirement.
            unsafe { libc::pause() };
        }
    }
    assert!(pid > 0);
    // The child holds a copy of the descriptor that marks this process as a member of the group.
    let left = end.detach(gid);
    let back = end.attach(gid);
    // SAFETY: our child, which nobody has waited for.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    // SAFETY: our child, which nobody has waited for; `waitpid` accepts a null status.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    assert_eq!((left, back), (0, 0));
    assert_eq!(end.detach(gid), 0);
}

#[test]
fn a_context_takes_its_handles_and_memberships_along() {
    let context = common::open();
    // SAFETY: an open context.
    let pd = unsafe { (verbs().ibv_alloc_pd)(context) };
    // SAFETY: an open context.
    let cq = unsafe { (verbs().ibv_create_cq)(context, 8, std::ptr::null_mut(), std::ptr::null_mut(), 0) };
    let mut init = ibv_qp_init_attr {
        send_cq: cq,
        recv_cq: cq,
        cap: ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
        qp_type: ibv_qp_type::IBV_QPT_UD,
        ..Default::default()
    };
    // SAFETY: live objects.
    let qp = unsafe { (verbs().ibv_create_qp)(pd, &raw mut init) };
    let group = group_of(std::process::id(), 30);
    // SAFETY: a live queue pair, a valid address.
    assert_eq!(unsafe { (verbs().ibv_attach_mcast)(qp, &raw const group, 0) }, 0);
    let mut attr = ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
    attr.grh.dgid = group;
    // SAFETY: a live domain, a valid structure.
    assert!(!unsafe { (verbs().ibv_create_ah)(pd, &raw mut attr) }.is_null());
    // SAFETY: an open context; nothing of it is used any more.
    assert_eq!(unsafe { (verbs().ibv_close_device)(context) }, 0);
    let name: String = raw(group).iter().map(|byte| format!("{byte:02x}")).collect();
    // A process that another test starts holds the socket until it runs its program.
    rdma_test_support::until("the membership's name is gone", || {
        let table = std::fs::read("/proc/self/net/unix").unwrap();
        !String::from_utf8_lossy(&table).contains(&name)
    });
}

#[test]
fn the_device_says_what_it_has() {
    let mut attr = ibv_device_attr::default();
    let context = common::open();
    // SAFETY: an open context, a valid structure.
    assert_eq!(unsafe { (verbs().ibv_query_device)(context, &raw mut attr) }, 0);
    let counts: [c_int; 4] =
        [attr.max_ah, attr.max_mcast_grp, attr.max_mcast_qp_attach, attr.max_total_mcast_qp_attach];
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    // SAFETY: open, and not used any more.
    assert_eq!(unsafe { (verbs().ibv_close_device)(context) }, 0);
}
