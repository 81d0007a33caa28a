use super::super::wire::{SidrReq, room, tests::message};
use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::net::SocketAddr;

const TIMERS: Timers = Timers { response: 100, service: 1000, retries: 3, timewait: 50, listener: 50 };

fn req() -> Req {
    Req {
        source: SocketAddr::from(([127, 0, 0, 1], 1)),
        destination: SocketAddr::from(([127, 0, 0, 1], 2)),
        psn: 111,
        terms: Terms {
            qp_num: 11,
            responder_resources: 5,
            initiator_depth: 3,
            rnr_retry_count: 6,
            private: vec![1; room::REQ],
            ..Terms::default()
        },
        retry_count: 7,
        ack_timeout: 19,
        traffic_class: 0,
    }
}

fn sidr_req() -> SidrReq {
    SidrReq { source: req().source, destination: req().destination, private: Vec::new() }
}

fn rep() -> Rep {
    let terms =
        Terms { qp_num: 22, responder_resources: 2, initiator_depth: 4, rnr_retry_count: 1, ..Terms::default() };
    Rep { psn: 222, terms }
}

fn rej(reason: u16) -> Rej {
    Rej { reason, private: Vec::new() }
}

fn notices(out: &[Output]) -> Vec<Notice> {
    let notice = |output: &Output| match output {
        Output::Notify(notice) => Some(notice.clone()),
        _ => None,
    };
    out.iter().filter_map(notice).collect()
}

fn active() -> Machine {
    Machine::ask(TIMERS, Message::Req(req()), Time(0), &mut Vec::new())
}

fn passive() -> Machine {
    Machine::asked(TIMERS, &Message::Req(req()))
}

/// Two machines in the states of an established connection.
fn connected() -> (Machine, Machine) {
    let (mut active, mut passive, mut out) = (active(), passive(), Vec::new());
    passive.accept(rep().terms, rep().psn, 2, Time(0), &mut out).unwrap();
    active.on_message(Message::Rep(rep()), Time(0), &mut out);
    active.establish(&mut out).unwrap();
    passive.on_message(Message::Rtu, Time(0), &mut out);
    (active, passive)
}

/// The outputs of a machine at a given time.
fn at(machine: &mut Machine, time: u64) -> Vec<Output> {
    let mut out = Vec::new();
    machine.on_time(Time(time), &mut out);
    out
}

#[test]
fn both_ends_agree() {
    let (active, passive) = connected();
    let (one, other) = (active.for_ready().unwrap(), passive.for_ready().unwrap());
    assert_eq!((one.remote_qpn, other.remote_qpn), (22, 11));
    assert_eq!((one.rq_psn, one.sq_psn), (111, 222));
    assert_eq!((other.rq_psn, other.sq_psn), (222, 111));
    // The depths of the reply apply.
    assert_eq!((one.responder_resources, one.initiator_depth), (4, 2));
    assert_eq!((other.responder_resources, other.initiator_depth), (2, 4));
    assert_eq!((one.rnr_retry_count, other.rnr_retry_count), (1, 6));
}

#[test]
fn a_silent_listener_is_asked_again_and_given_up() {
    let mut machine = active();
    assert_eq!(at(&mut machine, 99), []);
    for round in 1..=3 {
        assert_eq!(at(&mut machine, round * 100), [Output::Request(Message::Req(req()))]);
    }
    let out = at(&mut machine, 400);
    assert_eq!(out, [Output::Hangup, Output::Notify(Notice::Unreachable(-libc::ETIMEDOUT))]);
    assert_eq!((machine.state(), machine.deadline()), (State::Closed, None));
}

#[test]
fn a_slow_listener_gets_more_time() {
    let (mut machine, mut out) = (active(), Vec::new());
    machine.on_message(Message::Mra, Time(100), &mut out);
    assert_eq!(machine.deadline(), Some(Time(1100)));
    assert_eq!(at(&mut machine, 1099), []);
    // A repeated request gets another MRA, but a bounded number of times.
    for round in 1..=3 {
        assert_eq!(at(&mut machine, 100 + round * 1000), [Output::Request(Message::Req(req()))]);
    }
    assert_eq!(notices(&at(&mut machine, 4100)), [Notice::Unreachable(-libc::ETIMEDOUT)]);
}

#[test]
fn a_request_that_comes_twice_is_answered_with_patience() {
    let (mut machine, mut out) = (passive(), Vec::new());
    machine.on_message(Message::Req(req()), Time(0), &mut out);
    assert_eq!(out, [Output::Send(Message::Mra)]);
    assert_eq!(machine.deadline(), None, "the application may take as long as it likes");
}

#[test]
fn an_answer_is_repeated_until_it_is_confirmed() {
    let (mut machine, mut out) = (passive(), Vec::new());
    machine.accept(rep().terms, rep().psn, 2, Time(0), &mut out).unwrap();
    assert_eq!(at(&mut machine, 100), [Output::Send(Message::Rep(rep()))]);
    out.clear();
    machine.on_message(Message::Rtu, Time(150), &mut out);
    assert_eq!(out, [Output::Notify(Notice::Established)]);
    assert_eq!(machine.deadline(), None);
}

#[test]
fn an_answer_that_is_never_confirmed_is_given_up() {
    let mut machine = passive();
    machine.accept(rep().terms, rep().psn, 2, Time(0), &mut Vec::new()).unwrap();
    for round in 1..=3 {
        assert_eq!(at(&mut machine, round * 100).len(), 1);
    }
    assert_eq!(notices(&at(&mut machine, 400)), [Notice::Unreachable(-libc::ETIMEDOUT)]);
}

#[test]
fn a_confirmation_that_was_lost_is_sent_again() {
    let (mut active, _) = connected();
    let mut out = Vec::new();
    active.on_message(Message::Rep(rep()), Time(0), &mut out);
    assert_eq!(out, [Output::Send(Message::Rtu)]);
}

/// Both kinds of requests.
fn asking() -> [(Machine, Notice); 2] {
    [
        (active(), Notice::Rejected(rej(reason::INVALID_SERVICE_ID))),
        (
            Machine::ask(TIMERS, Message::SidrReq(sidr_req()), Time(0), &mut Vec::new()),
            Notice::NoDatagram(sidr::UNSUPPORTED, Vec::new()),
        ),
    ]
}

#[test]
fn nobody_listens() {
    for (mut machine, refusal) in asking() {
        let mut out = Vec::new();
        machine.on_refused(Time(0), &mut out);
        assert_eq!(out, []);
        // The request is repeated often, without using a retry.
        let mut requests = 0;
        for now in 1..TIMERS.listener {
            let asked = at(&mut machine, now);
            requests += asked.len();
            if matches!(asked[..], [Output::Request(_)]) {
                machine.on_refused(Time(now), &mut out);
            }
        }
        assert!(requests > 10 && out.is_empty(), "{requests}");
        machine.on_refused(Time(TIMERS.listener), &mut out);
        assert_eq!(notices(&out), [refusal]);
    }
}

#[test]
fn a_listener_that_comes_back_is_asked() {
    let (mut machine, mut out) = (active(), Vec::new());
    machine.on_refused(Time(0), &mut out);
    assert!(matches!(at(&mut machine, 10)[..], [Output::Request(_)]));
    // The peer then gets the full service time.
    assert_eq!(at(&mut machine, 109), []);
    machine.on_message(Message::Rep(rep()), Time(109), &mut out);
    assert_eq!(notices(&out), [Notice::Response(rep())]);
}

#[test]
fn another_user_listens() {
    for (mut machine, _) in asking() {
        let mut out = Vec::new();
        machine.on_other_user(&mut out);
        assert_eq!(notices(&out), [Notice::OtherUser]);
        assert_eq!(machine.state(), State::Closed);
    }
}

#[test]
fn the_host_is_not_reached() {
    for (mut machine, _) in asking() {
        let mut out = Vec::new();
        machine.on_unreachable(libc::EHOSTUNREACH, &mut out);
        assert_eq!(notices(&out), [Notice::Unreachable(-libc::EHOSTUNREACH)]);
        assert_eq!(machine.state(), State::Closed);
        let mut none = Vec::new();
        machine.on_unreachable(libc::EHOSTUNREACH, &mut none);
        assert_eq!(none, []);
    }
}

#[test]
fn a_full_queue_is_tried_again() {
    let (mut machine, mut out) = (active(), Vec::new());
    machine.on_message(Message::Busy, Time(10), &mut out);
    assert_eq!(out, [Output::Hangup]);
    assert_eq!(at(&mut machine, 100), [Output::Request(Message::Req(req()))]);
}

#[test]
fn an_end_is_asked_for_again_and_taken_after_all() {
    let (mut machine, _) = connected();
    let mut out = Vec::new();
    machine.disconnect(Time(0), &mut out);
    assert_eq!(out, [Output::Send(Message::Dreq)]);
    for round in 1..=3 {
        assert_eq!(at(&mut machine, round * 100), [Output::Send(Message::Dreq)]);
    }
    assert_eq!(notices(&at(&mut machine, 400)), [Notice::Disconnected(-libc::ETIMEDOUT)]);
    assert_eq!(notices(&at(&mut machine, 450)), [Notice::TimewaitExit]);
    assert_eq!(machine.state(), State::Closed);
}

#[test]
fn both_ends_disconnect_at_once() {
    let (mut one, mut other) = connected();
    let (mut out, mut told) = (Vec::new(), Vec::new());
    one.disconnect(Time(0), &mut out);
    other.disconnect(Time(0), &mut out);
    one.on_message(Message::Dreq, Time(1), &mut told);
    other.on_message(Message::Dreq, Time(1), &mut told);
    assert_eq!(notices(&told), [Notice::Disconnected(0), Notice::Disconnected(0)]);
    told.clear();
    one.disconnect(Time(2), &mut told);
    other.on_message(Message::Drep, Time(3), &mut told);
    assert_eq!(notices(&told), []);
    assert_eq!((one.state(), other.state()), (State::TimeWait, State::TimeWait));
}

#[test]
fn the_death_of_the_peer_in_each_state() {
    let died = |mut machine: Machine| {
        let mut out = Vec::new();
        machine.on_hangup(Time(0), &mut out);
        notices(&out)
    };
    assert_eq!(died(active()), [Notice::Rejected(rej(reason::CONSUMER_DEFINED))]);
    // Before the application accepts it gets no notice, and its answer fails.
    assert_eq!(died(passive()), []);
    let mut machine = passive();
    machine.on_hangup(Time(0), &mut Vec::new());
    assert_eq!(machine.accept(rep().terms, rep().psn, 2, Time(0), &mut Vec::new()), Err(Errno::INVAL));
    let mut machine = passive();
    machine.accept(rep().terms, rep().psn, 2, Time(0), &mut Vec::new()).unwrap();
    assert_eq!(died(machine), [Notice::Rejected(rej(reason::CONSUMER_DEFINED))]);
    let mut machine = active();
    machine.on_message(Message::Rep(rep()), Time(0), &mut Vec::new());
    assert_eq!(died(machine), [Notice::Rejected(rej(reason::CONSUMER_DEFINED))]);
    let (one, other) = connected();
    assert_eq!(died(one), [Notice::Disconnected(0)]);
    assert_eq!(died(other), [Notice::Disconnected(0)]);
    let (mut one, _) = connected();
    one.disconnect(Time(0), &mut Vec::new());
    assert_eq!(died(one), [Notice::Disconnected(0)]);
    let (mut one, _) = connected();
    one.on_message(Message::Dreq, Time(0), &mut Vec::new());
    assert_eq!(died(one), []);
}

#[test]
fn calls_in_the_wrong_state() {
    let out = &mut Vec::new();
    assert_eq!(active().accept(rep().terms, rep().psn, 2, Time(0), out), Err(Errno::INVAL));
    assert_eq!(active().establish(out), Err(Errno::INVAL));
    assert_eq!(passive().establish(out), Err(Errno::INVAL));
    assert_eq!(passive().communication_established(out), Err(Errno::INVAL));
    let (mut one, mut other) = connected();
    assert_eq!(one.communication_established(out), Err(Errno(libc::EISCONN)));
    assert_eq!(other.reject(rej(28), Time(0), out), Err(Errno::INVAL));
    assert_eq!(one.establish(out), Err(Errno::INVAL));
    one.disconnect(Time(0), out);
    assert!(one.for_ready().is_err() && one.for_init().is_err());
}

#[test]
fn a_flood_without_meaning_ends_it() {
    let (mut one, _) = connected();
    let mut out = Vec::new();
    for _ in 0..MAX_MEANINGLESS {
        one.on_message(Message::Mra, Time(0), &mut out);
    }
    assert_eq!(notices(&out), [Notice::Disconnected(0)]);
    let (mut one, _) = connected();
    out.clear();
    one.on_message(Message::SidrRep(SidrRep { status: 0, qp_num: 1, qkey: 2, private: vec![] }), Time(0), &mut out);
    assert_eq!(notices(&out), [Notice::Disconnected(0)]);
}

#[derive(Clone, Debug)]
enum Step {
    Accept,
    Establish,
    Reject,
    Disconnect,
    Notify,
    Destroy,
    Refused,
    Unreachable,
    Garbage,
    Hangup,
    Message(Message),
    Time(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Accept),
        2 => Just(Step::Establish),
        1 => Just(Step::Reject),
        2 => Just(Step::Disconnect),
        1 => Just(Step::Notify),
        1 => Just(Step::Refused),
        1 => Just(Step::Unreachable),
        1 => Just(Step::Garbage),
        1 => Just(Step::Hangup),
        1 => Just(Step::Destroy),
        12 => message().prop_map(Step::Message),
        6 => (0_u64..300).prop_map(Step::Time),
    ]
}

fn apply(machine: &mut Machine, step: Step, now: Time, out: &mut Vec<Output>) {
    // Calls may fail here.
    let _result = match step {
        Step::Accept => machine.accept(rep().terms, rep().psn, 2, now, out),
        Step::Establish => machine.establish(out),
        Step::Reject => machine.reject(rej(28), now, out),
        Step::Notify => machine.communication_established(out),
        Step::Disconnect => {
            machine.disconnect(now, out);
            Ok(())
        }
        Step::Destroy => {
            machine.destroy(out);
            Ok(())
        }
        Step::Refused => {
            machine.on_refused(now, out);
            Ok(())
        }
        Step::Unreachable => {
            machine.on_unreachable(libc::ETIMEDOUT, out);
            Ok(())
        }
        Step::Garbage => {
            machine.on_garbage(now, out);
            Ok(())
        }
        Step::Hangup => {
            machine.on_hangup(now, out);
            Ok(())
        }
        Step::Message(message) => {
            machine.on_message(message, now, out);
            Ok(())
        }
        Step::Time(_) => {
            machine.on_time(now, out);
            Ok(())
        }
    };
}

fn start(kind: u8) -> Machine {
    match kind {
        0 => active(),
        1 => passive(),
        2 => Machine::ask(TIMERS, Message::SidrReq(sidr_req()), Time(0), &mut Vec::new()),
        _ => Machine::asked(TIMERS, &Message::SidrReq(sidr_req())),
    }
}

proptest! {
    #[test]
    fn whatever_comes_the_invariants_hold(kind in 0_u8..4, steps in proptest::collection::vec(step(), 0..40)) {
        let mut machine = start(kind);
        let (mut now, mut all) = (0, Vec::new());
        for step in steps {
            if let Step::Time(passed) = step {
                now += passed;
            }
            let closed = machine.state() == State::Closed;
            let mut out = Vec::new();
            apply(&mut machine, step, Time(now), &mut out);
            if closed {
                prop_assert_eq!(machine.state(), State::Closed);
                prop_assert_eq!(notices(&out), []);
                prop_assert!(!out.iter().any(|output| matches!(output, Output::Send(_) | Output::Request(_))));
            }
            let waits = matches!(
                machine.state(),
                State::ReqSent | State::RepSent | State::DreqSent | State::TimeWait | State::SidrSent
            );
            prop_assert_eq!(machine.deadline().is_some(), waits, "{:?}", machine.state());
            all.extend(notices(&out));
        }
        let count = |kind: fn(&Notice) -> bool| all.iter().filter(|told| kind(told)).count();
        let answers = count(|told| {
            matches!(told, Notice::Response(_) | Notice::Datagram(_) | Notice::NoDatagram(..) | Notice::Unreachable(_))
        });
        prop_assert!(answers <= 1 || (answers == 2 && kind == 0), "{all:?}");
        prop_assert!(count(|told| matches!(told, Notice::Established)) <= 1);
        prop_assert!(count(|told| matches!(told, Notice::Disconnected(_))) <= 1);
        prop_assert!(count(|told| matches!(told, Notice::Rejected(_))) <= 1);
        prop_assert!(count(|told| matches!(told, Notice::TimewaitExit)) <= 1);
    }

    /// Two machines over a transport that keeps the order and may end: without further calls both
    /// reach a stable state, and neither stays connected after the other has ended.
    #[test]
    fn two_ends_come_to_rest(
        calls in proptest::collection::vec((any::<bool>(), 0_u8..6), 0..12),
        cut in proptest::option::of(0_usize..20),
    ) {
        let mut ends = [active(), passive()];
        let mut wires: [VecDeque<Message>; 2] = Default::default();
        let mut up = true;
        let mut calls = calls.into_iter();
        let mut now = 0;
        for round in 0..400 {
            now += 40;
            if cut == Some(round) {
                up = false;
            }
            let mut outs: [Vec<Output>; 2] = Default::default();
            if let Some((which, call)) = calls.next() {
                let which = usize::from(which);
                let step = [Step::Accept, Step::Establish, Step::Reject, Step::Disconnect, Step::Notify, Step::Destroy]
                    [usize::from(call)].clone();
                apply(&mut ends[which], step, Time(now), &mut outs[which]);
            }
            for which in 0..2 {
                if let Some(message) = wires[which].pop_front() {
                    ends[which].on_message(message, Time(now), &mut outs[which]);
                } else if !up {
                    ends[which].on_hangup(Time(now), &mut outs[which]);
                }
                ends[which].on_time(Time(now), &mut outs[which]);
            }
            for (which, out) in outs.into_iter().enumerate() {
                for output in out {
                    match output {
                        Output::Send(message) | Output::Request(message) if up => wires[1 - which].push_back(message),
                        Output::Hangup => up = false,
                        _ => {}
                    }
                }
            }
        }
        let rests = |state| matches!(
            state,
            State::Closed | State::Established | State::DreqReceived | State::ReqReceived | State::RepReceived
                | State::SidrReceived
        );
        prop_assert!(rests(ends[0].state()) && rests(ends[1].state()), "{:?}", ends);
        // The passive side may be established by its queue pair's event before the active side
        // confirms.
        let partners = [State::Established, State::RepReceived];
        for (end, other) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            prop_assert!(end.state() != State::Established || partners.contains(&other.state()), "{:?}", ends);
        }
    }
}
