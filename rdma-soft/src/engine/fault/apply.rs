//! The services' questions to the plan: whether a request meets a fault, and its rest.

use rdma_sys::{ibv_event_type, ibv_wc_status};

use super::super::errand::Errand;
use super::super::qp::Qp;
use super::super::tables::Tables;
use super::super::timer::Owner;
use super::super::types::{Element, Event, Op, QpId, QpState, SendData, SendFlags, SendRequest};
use super::super::wire::{self, Frame, Kind};
use super::plan::{Attempts, Pick, Subject};
use super::{Active, Arrival, Fault, FaultPlan, FaultReport, Faults, Injected, Operations};

/// The fate of a request that needs no answer.
pub(in super::super) enum Unanswered {
    /// It is sent.
    Sent,
    /// It waits.
    Waits,
    /// It is lost.
    Lost,
    /// It fails with this status.
    Fails(ibv_wc_status),
    /// The queue pair goes to ERR.
    Flushed,
}

impl Tables {
    /// Replaces the plan. Requests that wait because of the old plan go on.
    pub(in super::super) fn set_faults(&mut self, plan: Option<&FaultPlan>) {
        for index in self.timed_rules() {
            self.timers.cancel(Owner::Fault(index));
        }
        let old = core::mem::replace(&mut self.faults, plan.map(|plan| Box::new(Faults::new(plan))));
        for qp in old.iter().flat_map(|old| &old.delayed) {
            self.timers.start(Owner::Delay(QpId(*qp)), 0, 0);
        }
        for qp in old.iter().flat_map(|old| &old.late) {
            self.timers.start(Owner::Late(QpId(*qp)), 0, 0);
        }
        if old.is_some_and(|old| old.port_is_down) {
            self.timers.cancel(Owner::PortUp);
            self.port_event(ibv_event_type::IBV_EVENT_PORT_ACTIVE);
        }
        let Self { faults, timers, .. } = self;
        for (index, active) in (0..).zip(faults.iter().flat_map(|faults| &faults.rules)) {
            if let Pick::At(nanos) = active.rule.pick {
                timers.start(Owner::Fault(index), 0, nanos);
            }
        }
    }

    /// Returns the indices of the rules whose time comes by itself.
    fn timed_rules(&self) -> Vec<u32> {
        let rules = self.faults.iter().flat_map(|faults| &faults.rules);
        let is_timed = |active: &Active| matches!(active.rule.pick, Pick::At(_));
        (0..).zip(rules).filter(|(_, active)| is_timed(active)).map(|(index, _)| index).collect()
    }

    /// Returns how often the plan has picked requests.
    pub(in super::super) fn fault_report(&self) -> FaultReport {
        self.faults.as_ref().map(|faults| faults.report()).unwrap_or_default()
    }

    /// Whether the plan is for requests that peers could execute without this engine.
    pub(in super::super) fn faults_bar_direct_requests(&self) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.bars_direct_requests())
    }

    /// Whether a fault has taken the port down.
    pub(in super::super) fn port_is_down(&self) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.port_is_down)
    }

    /// Ends the time for which the port is down.
    pub(in super::super) fn handle_port_up(&mut self) {
        if let Some(faults) = self.faults.as_mut().filter(|faults| faults.port_is_down) {
            faults.port_is_down = false;
            self.port_event(ibv_event_type::IBV_EVENT_PORT_ACTIVE);
        }
    }

    fn port_event(&mut self, event_type: ibv_event_type) {
        self.events.push(Event::Async { event_type, element: Element::Port });
    }

    /// Handles the timer of a rule.
    pub(in super::super) fn handle_fault_timer(&mut self, index: u32) {
        let Some(active) = self.faults.as_mut().and_then(|faults| faults.rules.get_mut(index as usize)) else { return };
        active.injected += 1;
        let fault = active.rule.fault;
        self.begin(fault, 0, false);
    }

    /// Reports a fault to the driver, and lets happen what concerns no single request.
    fn begin(&mut self, fault: Fault, qpn: u32, inbound: bool) {
        let injected = Injected { name: fault.name(), qpn, inbound, dies: fault == Fault::Die };
        self.errands.push_back(Errand::Fault(injected));
        match fault {
            Fault::PortDown(nanos) => {
                self.timers.start(Owner::PortUp, 0, nanos);
                if let Some(faults) = self.faults.as_mut().filter(|faults| !faults.port_is_down) {
                    faults.port_is_down = true;
                    self.port_event(ibv_event_type::IBV_EVENT_PORT_ERR);
                }
            }
            Fault::DeviceFatal => {
                let event_type = ibv_event_type::IBV_EVENT_DEVICE_FATAL;
                self.events.push(Event::Async { event_type, element: Element::Device });
                // The queue pairs fail outside of the call that has met the fault.
                self.timers.start(Owner::Fatal, 0, 0);
            }
            _ => {}
        }
    }

    /// Returns a request that is about to be posted to `qp` as the plan has it: marked if a fault
    /// waits for it.
    #[cold]
    pub(in super::super) fn judged(
        &mut self,
        qp: &Qp,
        request: &SendRequest,
        data: SendData<'_>,
        operation: Operations,
        is_reliable: bool,
    ) -> SendRequest {
        let mut request = *request;
        // A request that the queue refuses does not count.
        let admitted = qp.sq.admit(request.op, data).ok().filter(|_| matches!(qp.state, QpState::Rts | QpState::Sqd));
        let Some(total) = admitted else { return request };
        let with_imm = request.op == Op::Write && request.flags.contains(SendFlags::IMM);
        let subject = Subject {
            qpn: qp.qpn,
            inbound: false,
            operation,
            takes_receive: request.op == Op::Send || with_imm,
            is_empty: total == 0,
            is_reliable,
        };
        let fault = self.judge(&subject).and_then(of_request);
        match if self.port_is_down() { Some(Fault::PortDown(0)) } else { fault } {
            // No region has this key, so the target refuses the request.
            Some(Fault::Access) => request.rkey = 0,
            None => {}
            Some(fault) => {
                request.flags |= SendFlags::FAULT;
                if let Some(faults) = &mut self.faults {
                    faults.posted.insert((qp.id.0, qp.sq.tail), fault);
                }
            }
        }
        request
    }

    /// Judges a request whose first frame has arrived at `qp`; a request that arrives again keeps
    /// its judgement. Uses up one attempt of a fault that spoils several.
    pub(in super::super) fn judge_arrival(&mut self, qp: &Qp, frame: &Frame) -> Option<Fault> {
        let faults = self.faults.as_mut()?;
        let is_new = faults.arrived.get(&qp.id.0).is_none_or(|arrival| arrival.number != frame.number);
        if is_new {
            let fault = self.judge(&arriving(qp, frame, true)).and_then(of_request);
            self.faults.as_mut()?.arrived.insert(qp.id.0, Arrival { number: frame.number, fault });
        }
        if self.port_is_down() {
            return Some(Fault::Loss(Attempts::All));
        }
        let arrival = self.faults.as_mut()?.arrived.get_mut(&qp.id.0)?;
        let fault = arrival.fault?;
        arrival.fault = after_attempt(fault);
        Some(fault)
    }

    /// Judges a message without an answer that has arrived at `qp`.
    pub(in super::super) fn judge_message(&mut self, qp: &Qp, frame: &Frame) -> Option<Fault> {
        let fault = self.judge(&arriving(qp, frame, false)).and_then(of_request);
        if self.port_is_down() { Some(Fault::Loss(Attempts::All)) } else { fault }
    }

    /// Lets every rule count a request, and begins the fault of the first rule that picks it.
    fn judge(&mut self, subject: &Subject) -> Option<Fault> {
        let fault = self.faults.as_mut()?.judge(subject)?;
        self.begin(fault, subject.qpn, subject.inbound);
        Some(fault)
    }

    /// Lets the fault happen that waits for a posted request without an answer.
    #[cold]
    pub(in super::super) fn fault_of_unanswered(&mut self, qp: &Qp, position: u64) -> Unanswered {
        match self.take_fault(qp.id, position) {
            None | Some(Fault::Late(..) | Fault::Access | Fault::Die | Fault::DeviceFatal) => Unanswered::Sent,
            Some(Fault::Delay(nanos, _)) => {
                self.delay(qp.id, nanos);
                Unanswered::Waits
            }
            Some(Fault::Protection) => Unanswered::Fails(ibv_wc_status::IBV_WC_LOC_PROT_ERR),
            Some(Fault::Flush) => Unanswered::Flushed,
            Some(Fault::CqError) => {
                self.cqs.overflow(qp.send_cq, &mut self.events);
                Unanswered::Waits
            }
            Some(Fault::Loss(_) | Fault::PortDown(_) | Fault::Rnr(_) | Fault::Operation | Fault::Response) => {
                // There is no second attempt.
                if let Some(faults) = &mut self.faults {
                    faults.posted.remove(&(qp.id.0, position));
                }
                Unanswered::Lost
            }
        }
    }

    /// Returns the fault that waits for a posted request, and uses up one attempt of a fault that
    /// spoils several. A delay waits until its timer fires, a local error until the request is the
    /// oldest.
    pub(in super::super) fn take_fault(&mut self, qp: QpId, position: u64) -> Option<Fault> {
        let faults = self.faults.as_mut()?;
        let fault = *faults.posted.get(&(qp.0, position))?;
        if matches!(fault, Fault::PortDown(_)) && !faults.port_is_down {
            faults.posted.remove(&(qp.0, position));
            return None;
        }
        match after_attempt(fault) {
            Some(left) => faults.posted.insert((qp.0, position), left),
            None if matches!(fault, Fault::Delay(..) | Fault::Late(..) | Fault::Protection) => None,
            None => faults.posted.remove(&(qp.0, position)),
        };
        Some(fault)
    }

    /// Whether a fault waits for a posted request.
    pub(in super::super) fn has_fault(&self, qp: QpId, position: u64) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.posted.contains_key(&(qp.0, position)))
    }

    /// Starts the delay of a queue pair's next request, unless it runs.
    pub(in super::super) fn delay(&mut self, qp: QpId, nanos: u64) {
        let Some(faults) = &mut self.faults else { return };
        if !faults.delayed.contains(&qp.0) {
            faults.delayed.push(qp.0);
            self.timers.start(Owner::Delay(qp), 0, nanos);
        }
    }

    /// Ends a delay: the request at `position` may start.
    pub(in super::super) fn end_delay(&mut self, qp: QpId, position: u64) {
        if let Some(faults) = &mut self.faults {
            faults.delayed.retain(|delayed| *delayed != qp.0);
            if matches!(faults.posted.get(&(qp.0, position)), Some(Fault::Delay(..))) {
                faults.posted.remove(&(qp.0, position));
            }
        }
    }

    /// Whether the request at `position`, which is the oldest and answered, completes later. Starts
    /// the time.
    #[cold]
    pub(in super::super) fn completes_late(&mut self, qp: QpId, position: u64) -> bool {
        let Some(faults) = &mut self.faults else { return false };
        let Some(Fault::Late(nanos, _)) = faults.posted.get(&(qp.0, position)) else { return false };
        if !faults.late.contains(&qp.0) {
            faults.late.push(qp.0);
            self.timers.start(Owner::Late(qp), 0, *nanos);
        }
        true
    }

    /// Ends the time by which the request at `position` is late.
    pub(in super::super) fn end_late(&mut self, qp: QpId, position: u64) {
        self.timers.cancel(Owner::Late(qp));
        let Some(faults) = &mut self.faults else { return };
        faults.late.retain(|late| *late != qp.0);
        if matches!(faults.posted.get(&(qp.0, position)), Some(Fault::Late(..))) {
            faults.posted.remove(&(qp.0, position));
        }
    }

    /// Forgets the requests of a queue pair that is reset, or whose send queue has failed.
    pub(in super::super) fn forget_faults(&mut self, qp: QpId) {
        self.timers.cancel(Owner::Delay(qp));
        self.timers.cancel(Owner::Late(qp));
        if let Some(faults) = &mut self.faults {
            faults.posted.retain(|(id, _), _| *id != qp.0);
            faults.delayed.retain(|id| *id != qp.0);
            faults.late.retain(|id| *id != qp.0);
            faults.arrived.remove(&qp.0);
        }
    }
}

/// Returns what a fault means for the request that has met it.
fn of_request(fault: Fault) -> Option<Fault> {
    match fault {
        Fault::DeviceFatal => Some(Fault::Flush),
        // A port that is down concerns all requests.
        Fault::Die | Fault::PortDown(_) => None,
        fault => Some(fault),
    }
}

/// Returns what is left of a fault after one attempt of its request.
fn after_attempt(fault: Fault) -> Option<Fault> {
    let left = |attempts| match attempts {
        Attempts::All => Some(Attempts::All),
        Attempts::Some(attempts) => (attempts > 1).then(|| Attempts::Some(attempts - 1)),
    };
    match fault {
        Fault::Loss(attempts) => left(attempts).map(Fault::Loss),
        Fault::Rnr(attempts) => left(attempts).map(Fault::Rnr),
        Fault::PortDown(_) => Some(fault),
        _ => None,
    }
}

/// Describes a request that has arrived at a queue pair.
fn arriving(qp: &Qp, frame: &Frame, is_reliable: bool) -> Subject {
    let operation = match frame.kind {
        Kind::Send | Kind::UcSend => Operations::SEND,
        Kind::Read => Operations::READ,
        Kind::CompareSwap | Kind::FetchAdd => Operations::ATOMIC,
        Kind::Datagram => Operations::DATAGRAM,
        _ => Operations::WRITE,
    };
    let takes_receive = matches!(frame.kind, Kind::Send | Kind::UcSend) || frame.flags & wire::IMM != 0;
    Subject { qpn: qp.qpn, inbound: true, operation, takes_receive, is_empty: frame.total == 0, is_reliable }
}
