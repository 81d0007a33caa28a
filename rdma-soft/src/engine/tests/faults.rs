//! Faults on demand: the statuses, events and states that real faults cause, and no lost request.

use proptest::prelude::*;
use rdma_sys::{ibv_event_type as event, ibv_wr_opcode};

use super::super::fault::Injected;
use super::datagrams;
use super::pair::Pair;
use super::statuses::*;
use super::world::*;
use crate::engine::*;

/// Longer than all retries of a request.
const LONG: u64 = 60_000_000_000;

/// The length of a message of the tests: two frames.
const LEN: usize = 5000;

/// A pair with three receives at the second side.
fn pair_with(attrs: impl Fn(&mut ModifyQp)) -> Pair {
    pair_of(ServiceType::Rc, attrs)
}

/// A pair of a service, with three receives at the second side.
fn pair_of(service: ServiceType, attrs: impl Fn(&mut ModifyQp)) -> Pair {
    let mut pair = Pair::with([0, 1], service, attrs);
    pair.here.fill(1);
    for wr_id in 10..13 {
        pair.recv(wr_id);
    }
    pair
}

impl Pair {
    fn recv(&mut self, wr_id: u64) {
        let list = [sge(&self.there, self.keys[1], 0, LEN)];
        self.world.recv(self.ends[1], wr_id, &list).unwrap();
    }

    /// Sets a plan at one side.
    fn plan(&mut self, at: usize, plan: &str) {
        self.world.nodes[at].engine.set_faults(Some(&plan.parse().unwrap()));
    }

    fn post(&mut self, opcode: ibv_wr_opcode, wr_id: u64) {
        let len = if [SWAP, ADD].contains(&opcode) { 8 } else { LEN };
        let list = [sge(&self.here, self.keys[0], 0, len)];
        let request = remote(request(opcode, wr_id, &list), &self.there, 0, self.keys[1]);
        self.world.send(self.ends[0], &request).unwrap();
    }

    /// Posts three requests, and lets a minute pass.
    fn run(&mut self, opcode: ibv_wr_opcode) {
        for wr_id in 1..4 {
            self.post(opcode, wr_id);
        }
        self.world.run_for(LONG);
    }

    fn injected(&self) -> Vec<&str> {
        self.world.injected.iter().map(|injected| injected.name).collect()
    }
}

const ALL_OPCODES: [ibv_wr_opcode; 7] = [SEND, SEND_IMM, WRITE, WRITE_IMM, READ, SWAP, ADD];

#[test]
fn a_fault_of_the_sender_fails_the_request_and_flushes_the_rest() {
    let everywhere = [
        ("operation", REM_OP),
        ("protection", LOC_PROT),
        ("response", BAD_RESP),
        ("flush", FLUSH),
        ("loss=all", RETRY),
    ];
    let on_receives = [("rnr=all", RNR_RETRY)];
    for opcode in ALL_OPCODES {
        let takes_receive = [SEND, SEND_IMM, WRITE_IMM].contains(&opcode);
        for (plan, failed) in everywhere.iter().chain(on_receives.iter().filter(|_| takes_receive)) {
            let mut f = pair_with(|attrs| attrs.rnr_retry = Some(2));
            f.plan(0, &format!("{plan}:nth=2"));
            f.run(opcode);
            assert_eq!(f.world.statuses(0), [(1, OK), (2, *failed), (3, FLUSH)], "{plan} {opcode:?}");
            assert_eq!(f.states(), [QpState::Err, QpState::Rts], "{plan}");
            assert_eq!(f.world.statuses(1).len(), usize::from(takes_receive), "{plan} {opcode:?}");
            assert_eq!(f.injected().len(), 1);
        }
    }
}

#[test]
fn an_access_fault_fails_both_ends() {
    for opcode in [WRITE, WRITE_IMM, READ, SWAP, ADD] {
        for (at, plan) in [(0, "access:nth=2"), (1, "access:recv:nth=2")] {
            let mut f = pair_with(|_| {});
            f.plan(at, plan);
            f.run(opcode);
            assert_eq!(f.world.statuses(0), [(1, OK), (2, REM_ACCESS), (3, FLUSH)], "{plan} {opcode:?}");
            assert_eq!(f.states(), [QpState::Err; 2]);
            assert!(f.world.events(1).contains(&event::IBV_EVENT_QP_ACCESS_ERR.0));
        }
    }
}

#[test]
fn a_receiver_that_cannot_execute_a_request_fails_both_ends() {
    for opcode in ALL_OPCODES {
        let mut f = pair_with(|_| {});
        f.plan(1, "operation:recv:nth=2");
        f.run(opcode);
        assert_eq!(f.world.statuses(0), [(1, OK), (2, REM_OP), (3, FLUSH)], "{opcode:?}");
        assert_eq!(f.states(), [QpState::Err; 2]);
        let receives: Vec<u32> = f.world.statuses(1).into_iter().map(|(_, code)| code).collect();
        match opcode {
            SEND | SEND_IMM => assert_eq!(receives, [OK, LOC_PROT, FLUSH]),
            WRITE_IMM => assert_eq!(receives, [OK, FLUSH, FLUSH]),
            _ => assert_eq!(receives, [FLUSH; 3]),
        }
    }
}

#[test]
fn a_receiver_that_goes_to_err_leaves_the_sender_to_its_retries() {
    for (plan, events) in [
        ("flush:recv:nth=2", vec![]),
        ("cq-error:recv:nth=2", vec![event::IBV_EVENT_CQ_ERR, event::IBV_EVENT_QP_FATAL]),
    ] {
        let mut f = pair_with(|_| {});
        f.world.events(1);
        f.plan(1, plan);
        f.run(SEND);
        assert_eq!(f.world.statuses(0), [(1, OK), (2, RETRY), (3, FLUSH)], "{plan}");
        assert_eq!(f.states(), [QpState::Err; 2]);
        assert_eq!(f.world.events(1), events.iter().map(|kind| kind.0).collect::<Vec<_>>());
    }
}

#[test]
fn a_completion_queue_of_the_sender_overruns() {
    let mut f = pair_with(|_| {});
    f.world.events(0);
    f.plan(0, "cq-error:nth=2");
    f.run(SEND);
    assert_eq!(f.world.statuses(0), [(1, OK)]);
    assert_eq!(f.world.events(0), [event::IBV_EVENT_CQ_ERR.0, event::IBV_EVENT_QP_FATAL.0]);
    assert_eq!(f.states(), [QpState::Err, QpState::Rts]);
}

#[test]
fn a_fault_that_the_retries_outlive_leaves_no_trace() {
    let plans = ["delay=1ms", "delay=1us..50ms:p=0.5", "late=1ms", "late=0ms..3ms:p=0.5", "loss=3", "loss=7:nth=2"];
    let takes_receive = |opcode| [SEND, SEND_IMM, WRITE_IMM].contains(&opcode);
    for opcode in ALL_OPCODES {
        let both = ["rnr=3", "rnr=20:nth=3"].into_iter().filter(|_| takes_receive(opcode));
        for (at, plan) in
            plans.into_iter().chain(both).flat_map(|plan| [(0, plan.to_owned()), (1, format!("{plan}:recv"))])
        {
            if (plan.contains("delay") || plan.contains("late")) && at == 1 {
                continue;
            }
            let mut f = pair_with(|_| {});
            f.plan(at, &plan);
            f.run(opcode);
            assert_eq!(f.world.statuses(0), [(1, OK), (2, OK), (3, OK)], "{plan} {opcode:?}");
            assert_eq!(f.states(), [QpState::Rts; 2]);
            let received = f.world.statuses(1);
            let expected: Vec<_> = (10..13).map(|wr_id| (wr_id, OK)).filter(|_| takes_receive(opcode)).collect();
            assert_eq!(received, expected, "{plan} {opcode:?}");
            if [SEND, WRITE].contains(&opcode) {
                assert_eq!(f.here.read(0, LEN), f.there.read(0, LEN));
            }
            assert!(!f.injected().is_empty(), "{plan}");
        }
    }
}

#[test]
fn a_delay_takes_its_time() {
    let mut f = pair_with(|_| {});
    f.plan(0, "delay=5ms:nth=2");
    for wr_id in 1..4 {
        f.post(SEND, wr_id);
    }
    f.world.run_for(4_900_000);
    assert_eq!(f.world.statuses(0), [(1, OK)]);
    f.world.run_for(200_000);
    assert_eq!(f.world.statuses(0), [(2, OK), (3, OK)]);
}

#[test]
fn a_late_completion_comes_after_the_data() {
    for (opcode, nth) in [(SEND, 2), (WRITE, 2), (READ, 3), (ADD, 3)] {
        let mut f = pair_with(|_| {});
        f.plan(0, &format!("late=5ms:nth={nth}"));
        for wr_id in 1..4 {
            f.post(opcode, wr_id);
        }
        f.world.run_for(4_900_000);
        let early = f.world.statuses(0);
        assert_eq!(early.len() + 1, nth, "{opcode:?}");
        assert_eq!(f.world.statuses(1).len(), if opcode == SEND { 3 } else { 0 });
        f.world.run_for(200_000);
        assert_eq!([early, f.world.statuses(0)].concat(), [(1, OK), (2, OK), (3, OK)], "{opcode:?}");
    }
}

#[test]
fn a_failed_request_ends_the_wait_of_a_late_one() {
    for plan in ["late=1000s:nth=1; access:nth=2", "late=1000s:nth=1; loss=2:nth=2", "late=1000s:limit=2; rnr:nth=3"] {
        let mut f = pair_with(|_| {});
        f.plan(0, plan);
        f.run(WRITE_IMM);
        let second = if plan.contains("access") { [(2, REM_ACCESS), (3, FLUSH)] } else { [(2, OK), (3, OK)] };
        assert_eq!(f.world.statuses(0), [vec![(1, OK)], second.to_vec()].concat(), "{plan}");
        assert_eq!(f.world.poll(1).len(), 3, "{plan}");
    }
}

#[test]
fn a_late_request_succeeds_though_the_next_one_fails() {
    for (second, failure) in [("rnr:nth=2", RNR_RETRY), ("loss=all:nth=2", RETRY), ("flush:nth=2", FLUSH)] {
        let mut f = pair_with(|attrs| (attrs.rnr_retry, attrs.retry_cnt) = (Some(0), Some(0)));
        f.plan(0, &format!("late=1000s:nth=1; {second}"));
        f.run(WRITE_IMM);
        assert_eq!(f.world.statuses(0), [(1, OK), (2, failure), (3, FLUSH)], "{second}");
    }
}

#[test]
fn a_late_request_succeeds_though_the_peer_dies() {
    let mut f = pair_with(|_| {});
    f.plan(0, "late=1000s:nth=1; delay=1000s:nth=2");
    for wr_id in 1..4 {
        f.post(WRITE_IMM, wr_id);
    }
    f.world.run_for(1_000_000);
    assert_eq!(f.world.statuses(0), []);
    f.world.kill(1, false);
    f.world.run_for(LONG);
    assert_eq!(f.world.statuses(0), [(1, OK), (2, RETRY), (3, FLUSH)]);
}

#[test]
fn a_loss_behind_reads_loses_no_data() {
    for lazy in [false, true] {
        let mut f = pair_with(|_| {});
        f.world.lazy = lazy;
        f.plan(1, "loss=2:recv:nth=3");
        f.post(READ, 1);
        f.post(WRITE, 2);
        f.post(SEND, 3);
        f.world.run_for(LONG);
        assert_eq!(f.world.statuses(0), [(1, OK), (2, OK), (3, OK)]);
    }
}

#[test]
fn a_cleared_plan_ends_every_wait() {
    for plan in ["delay=1000s", "late=1000s", "loss=all", "rnr=all"] {
        let mut f = pair_with(|_| {});
        f.plan(0, plan);
        f.post(SEND, 1);
        f.world.run_for(1_000_000);
        assert_eq!(f.world.statuses(0), []);
        f.world.nodes[0].engine.set_faults(None);
        f.world.run_for(1_000_000_000);
        assert_eq!(f.world.statuses(0), [(1, OK)], "{plan}");
    }
}

#[test]
fn a_queue_pair_that_is_reset_during_a_fault_starts_afresh() {
    for plan in ["delay=1000s:nth=1", "loss=all:nth=1", "rnr=all:nth=1"] {
        let mut f = pair_with(|_| {});
        f.plan(0, plan);
        f.post(SEND, 1);
        f.world.run_for(1_000_000);
        let [a, b] = f.ends;
        for (end, dest) in [(a, b), (b, a)] {
            f.world.set_state(end, QpState::Reset);
            f.world.bring_up(end, dest.qpn, |_| {});
        }
        f.recv(20);
        f.post(SEND, 2);
        f.world.run_for(1_000_000_000);
        assert_eq!(f.world.statuses(0), [(2, OK)], "{plan}");
        assert_eq!(f.world.statuses(1), [(20, OK)]);
    }
}

#[test]
fn a_process_dies_when_its_rule_says_so() {
    let mut f = pair_with(|_| {});
    f.plan(0, "die:nth=2; die:at=1s");
    f.post(SEND, 1);
    f.world.settle();
    assert_eq!(f.world.injected, []);
    f.post(SEND, 2);
    f.world.settle();
    let death = Injected { name: "die", qpn: f.ends[0].qpn, inbound: false, dies: true };
    assert_eq!(f.world.injected, [death]);
    f.world.run_for(2_000_000_000);
    assert_eq!(f.world.injected, [death, Injected { qpn: 0, ..death }]);
    let report = f.world.nodes[0].engine.fault_report();
    assert_eq!(report.injected(), 2);
    assert_eq!(report.rules[0].matched, 2);
}

#[test]
fn losses_of_requests_without_answers_do_not_add_up() {
    let (here, there) = (Memory::new(1 << 12), Memory::new(1 << 12));
    let mut world = World::new();
    world.with_directories();
    let [a, _] = world.connect([0, 0]);
    let keys = [&here, &there].map(|memory| world.register(0, memory, ALL));
    world.nodes[0].engine.set_faults(Some(&"loss:every=2".parse().unwrap()));
    for wr_id in 0..40 {
        let list = [sge(&here, keys[0], 0, 64)];
        world.send(a, &remote(request(WRITE, wr_id, &list), &there, 0, keys[1])).unwrap();
        world.run_for(LONG);
        assert_eq!(world.statuses(0), [(wr_id, OK)]);
    }
}

#[test]
fn a_peer_that_has_faults_for_arriving_requests_sees_one_sided_ones() {
    let (here, there) = (Memory::new(1 << 12), Memory::shared(1 << 12));
    let mut world = World::new();
    world.with_directories();
    let [a, b] = world.connect([0, 1]);
    let keys = [world.register(0, &here, ALL), world.register(1, &there, ALL)];
    let write = |world: &mut World, wr_id| {
        let list = [sge(&here, keys[0], 0, 64)];
        world.send(a, &remote(request(WRITE, wr_id, &list), &there, 0, keys[1])).unwrap();
        world.run_for(1_000_000);
        world.statuses(0)
    };
    // The first write asks for the mapping, which the second uses.
    assert_eq!((write(&mut world, 1), write(&mut world, 2)), (vec![(1, OK)], vec![(2, OK)]));
    world.nodes[1].engine.set_faults(Some(&"access:recv:nth=2".parse().unwrap()));
    assert_eq!((write(&mut world, 3), write(&mut world, 4)), (vec![(3, OK)], vec![(4, REM_ACCESS)]));
    assert_eq!(world.state(b), QpState::Err);
}

#[test]
fn datagrams_are_lost_late_or_refused() {
    let (ok, lost) = (|wr_id| (wr_id, OK), Vec::new());
    for (at, plan, sent, received) in [
        (0, "loss:nth=2", vec![ok(1), ok(2), ok(3)], vec![ok(11), ok(12)]),
        (1, "loss:recv:datagram:nth=2", vec![ok(1), ok(2), ok(3)], vec![ok(11), ok(12)]),
        (0, "loss", vec![ok(1), ok(2), ok(3)], lost),
        (0, "delay=3ms:nth=2", vec![ok(1), ok(2), ok(3)], vec![ok(11), ok(12), ok(13)]),
        (0, "protection:nth=2", vec![ok(1), (2, LOC_PROT), (3, FLUSH)], vec![ok(11)]),
    ] {
        let mut f = datagrams::linked();
        f.world.nodes[at].engine.set_faults(Some(&plan.parse().unwrap()));
        for number in 1..4 {
            f.recv(10 + number, 0, 100);
            f.send(number, 50);
        }
        f.world.run_for(2_900_000);
        let early = f.world.statuses(0);
        assert_eq!(early.len() < 3, plan.starts_with("delay"), "{plan}: {early:?}");
        f.world.run_for(LONG);
        assert_eq!([early, f.world.statuses(0)].concat(), sent, "{plan}");
        assert_eq!(f.world.statuses(1), received, "{plan}");
    }
}

#[test]
fn messages_without_answers_are_lost_late_or_refused() {
    let all = [(1, OK), (2, OK), (3, OK)];
    let received = |count: u64| (10..10 + count).map(|wr_id| (wr_id, OK)).collect::<Vec<_>>();
    for (at, plan, sent, arrived) in [
        (0, "loss:nth=2", all, 2),
        (1, "loss:recv:nth=2", all, 2),
        (0, "loss=all", all, 0),
        (0, "delay=3ms:nth=2", all, 3),
        (0, "rnr; operation; response", all, 3),
        (0, "protection:nth=2", [(1, OK), (2, LOC_PROT), (3, FLUSH)], 1),
        (0, "flush:nth=2", [(1, OK), (2, FLUSH), (3, FLUSH)], 1),
    ] {
        let mut f = pair_of(ServiceType::Uc, |_| {});
        f.plan(at, plan);
        f.run(SEND);
        assert_eq!(f.world.statuses(0), sent, "{plan}");
        assert_eq!(f.world.statuses(1), received(arrived), "{plan}");
    }
    let mut f = pair_of(ServiceType::Uc, |_| {});
    f.plan(0, "access");
    f.run(WRITE_IMM);
    assert_eq!((f.world.statuses(0), f.world.statuses(1)), (all.to_vec(), vec![]));
    assert_eq!(f.there.read(0, LEN), vec![0; LEN]);
}

const PORT_EVENTS: [u32; 2] = [event::IBV_EVENT_PORT_ERR.0, event::IBV_EVENT_PORT_ACTIVE.0];

#[test]
fn messages_to_an_unreachable_peer_meet_their_faults() {
    for (plan, statuses) in [
        ("protection:nth=2", vec![(1, OK), (2, LOC_PROT), (3, FLUSH)]),
        ("flush:nth=2", vec![(1, OK), (2, FLUSH), (3, FLUSH)]),
        ("delay=1000s:nth=2", vec![(1, OK)]),
        ("loss:nth=2", vec![(1, OK), (2, OK), (3, OK)]),
    ] {
        let mut f = pair_of(ServiceType::Uc, |_| {});
        f.world.kill(1, true);
        f.plan(0, plan);
        f.run(SEND);
        assert_eq!(f.world.statuses(0), statuses, "{plan}");
    }
}

#[test]
fn a_port_that_is_down_for_a_while_loses_what_is_sent_meanwhile() {
    for (at, plan) in [(0, "port-down=50ms:nth=2"), (1, "port-down=50ms:recv:nth=2")] {
        let mut f = pair_with(|_| {});
        f.world.events(at);
        f.plan(at, plan);
        (1..4).for_each(|wr_id| f.post(SEND, wr_id));
        f.world.run_for(40_000_000);
        assert!(f.world.nodes[at].engine.port_is_down());
        assert_eq!(f.world.statuses(0), [(1, OK)], "{plan}");
        f.world.run_for(LONG);
        assert_eq!(f.world.statuses(0), [(2, OK), (3, OK)], "{plan}");
        assert_eq!(f.world.statuses(1), [(10, OK), (11, OK), (12, OK)], "{plan}");
        assert_eq!(f.world.events(at), PORT_EVENTS);
    }
}

#[test]
fn a_port_that_stays_down_ends_the_connections() {
    for service in [ServiceType::Rc, ServiceType::Uc] {
        let mut f = pair_of(service, |_| {});
        f.plan(0, "port-down=3000s:at=1s");
        f.world.run_for(2_000_000_000);
        f.run(SEND);
        let failed = [(1, RETRY), (2, FLUSH), (3, FLUSH)];
        let expected = if service == ServiceType::Rc { failed } else { [(1, OK), (2, OK), (3, OK)] };
        assert_eq!(f.world.statuses(0), expected);
        assert_eq!(f.world.statuses(1), []);
        f.world.nodes[0].engine.set_faults(None);
        assert!(!f.world.nodes[0].engine.port_is_down());
        let events = f.world.events(0);
        assert_eq!(events[events.len() - 2..], PORT_EVENTS);
    }
}

#[test]
fn a_fatal_error_ends_every_queue_pair_of_the_device() {
    let mut f = pair_with(|_| {});
    f.world.events(1);
    f.plan(1, "device-fatal:recv:nth=2");
    f.run(SEND);
    assert_eq!(f.states(), [QpState::Err; 2]);
    assert_eq!(f.world.events(1), [event::IBV_EVENT_DEVICE_FATAL.0]);
    assert_eq!(f.world.statuses(0).last(), Some(&(3, FLUSH)));
    let received: Vec<u64> = f.world.statuses(1).into_iter().map(|(wr_id, _)| wr_id).collect();
    assert_eq!(received, [10, 11, 12]);
}

/// All that both sides of a run have seen.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    sent: Vec<(u64, u32)>,
    received: Vec<(u64, u32)>,
    injected: Vec<Injected>,
}

impl Seen {
    /// Lets a minute pass, and collects the completions.
    fn collect(&mut self, f: &mut Pair) {
        f.world.run_for(LONG);
        self.sent.extend(f.world.statuses(0));
        self.received.extend(f.world.statuses(1));
    }
}

/// Runs random requests under a plan at both sides.
fn campaign(plan: &str, opcodes: &[usize]) -> Seen {
    let mut f = pair_with(|attrs| (attrs.rnr_retry, attrs.retry_cnt) = (Some(3), Some(3)));
    f.plan(0, plan);
    f.plan(1, plan);
    let mut seen = Seen::default();
    for (number, opcode) in opcodes.iter().enumerate() {
        f.recv(13 + number as u64);
        f.post(ALL_OPCODES[opcode % 7], 1000 + number as u64);
        if number % 5 == 4 {
            seen.collect(&mut f);
        }
    }
    seen.collect(&mut f);
    // Whatever has happened, every request comes back, in order and once.
    if !f.world.injected.iter().any(|injected| injected.name == "cq-error") {
        f.world.set_state(f.ends[1], QpState::Err);
        seen.collect(&mut f);
        let posted = opcodes.len() as u64;
        assert!(seen.sent.iter().map(|(wr_id, _)| *wr_id).eq(1000..1000 + posted), "{plan}: {seen:?}");
        assert!(seen.received.iter().map(|(wr_id, _)| *wr_id).eq(10..13 + posted), "{plan}: {seen:?}");
    }
    for end in f.ends {
        f.world.nodes[end.at].engine.destroy_qp(end.qp).unwrap();
    }
    seen.injected = f.world.injected;
    seen
}

/// Faults for random plans.
const FAULTS: [&str; 19] = [
    "delay=1us..30ms",
    "late=0ns..30ms",
    "loss",
    "loss=2",
    "loss=all",
    "rnr",
    "rnr=all",
    "access",
    "operation",
    "protection",
    "response",
    "flush",
    "cq-error",
    "port-down=40ms",
    "device-fatal",
    "loss:recv",
    "rnr=2:recv",
    "operation:recv",
    "flush:recv",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn no_plan_loses_a_request_and_a_seed_repeats_a_run(
        seed: u64,
        rules in proptest::collection::vec((0..FAULTS.len(), 1..60_u32), 1..4),
        opcodes in proptest::collection::vec(0..7_usize, 1..14),
    ) {
        let mut plan = format!("seed={seed}");
        for (fault, percent) in rules {
            plan += &format!("; {}:p=0.{percent:02}", FAULTS[fault]);
        }
        prop_assert_eq!(campaign(&plan, &opcodes), campaign(&plan, &opcodes));
    }
}
