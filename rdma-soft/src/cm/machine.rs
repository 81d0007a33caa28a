//! One end of a connection as a state machine without input and output: calls, messages, the end of
//! the transport and the time go in; messages to send and notices to the application come out. The
//! states, timers and answers are those of the communication manager of the InfiniBand
//! specification (volume 1, chapter 12), with the choices of Linux.
//!
//! The transport loses nothing and keeps the order, but it ends when the peer does, and a listener
//! whose queue is full drops a request: so requests and answers are repeated, as on a network.
//!
//! Invariants, which the property tests check against random calls, messages and clocks:
//!
//! 1. After any message of a peer the machine is in one of its states, and its notices are at most
//!    one answer to a request, one `Established`, one `Disconnected` and one `TimewaitExit`.
//! 2. A state that waits for the peer has a deadline.
//! 3. A machine that is closed stays so, and does nothing.

use super::message::{Message, Rej, Rep, Req, SidrRep, Terms};
use crate::engine::{Errno, Time};
use crate::log::log;

/// Messages without a meaning in the machine's state that a peer may send before it counts as
/// broken.
const MAX_MEANINGLESS: u8 = 64;

/// Reasons of a rejection that the machine itself gives.
pub(super) mod reason {
    pub(crate) const TIMEOUT: u16 = 4;
    pub(crate) const INVALID_SERVICE_ID: u16 = 8;
    pub(crate) const CONSUMER_DEFINED: u16 = 28;
    pub(crate) const VENDOR_OPTION_NOT_SUPPORTED: u16 = 35;
}

/// Answers to a request for a datagram service.
pub(super) mod sidr {
    pub(crate) const SUCCESS: u8 = 0;
    pub(crate) const UNSUPPORTED: u8 = 1;
    pub(crate) const REJECT: u8 = 2;
}

/// How long the machine waits; nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timers {
    /// For an answer, before it asks again.
    pub(super) response: u64,
    /// For an answer of a peer that asked for more time.
    pub(super) service: u64,
    /// How often it asks again.
    pub(super) retries: u32,
    /// After a connection's end.
    pub(super) timewait: u64,
    /// For a listener, which may be between two calls of `rdma_listen`.
    pub(super) listener: u64,
}

impl Timers {
    const SECOND: u64 = 1_000_000_000;

    /// As Linux has them on RoCE: 4.3 s for the peer's manager and a second each way, 15 retries, a
    /// minute for a slow service.
    pub(super) const LINUX: Self = Self::new(6 * Self::SECOND, 67 * Self::SECOND, 2 * Self::SECOND);

    /// Times in proportion to that for an answer.
    pub(super) const fn for_response(response: u64) -> Self {
        Self::new(response, response * 11, response / 3)
    }

    const fn new(response: u64, service: u64, timewait: u64) -> Self {
        Self { response, service, retries: 15, timewait, listener: response / 12 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    ReqSent,
    ReqReceived,
    RepSent,
    RepReceived,
    Established,
    DreqSent,
    DreqReceived,
    TimeWait,
    SidrSent,
    SidrReceived,
    /// Nothing will happen any more.
    Closed,
}

/// A step for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// Send this request, over a new transport if there is none.
    Request(Message),
    /// Send this, if there is a transport.
    Send(Message),
    /// End the transport, once all is sent.
    Hangup,
    /// Tell the application.
    Notify(Notice),
}

/// An event for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// The peer accepts; the application has to establish.
    Response(Rep),
    Established,
    Rejected(Rej),
    /// A negative error number.
    Unreachable(i32),
    /// 0, or a negative error number.
    Disconnected(i32),
    TimewaitExit,
    /// A datagram service's queue pair.
    Datagram(SidrRep),
    /// A datagram service's refusal: its status, and its private data.
    NoDatagram(u8, Vec<u8>),
    /// A process of another user listens at the destination.
    OtherUser,
}

/// The parameters that both ends have agreed upon, as this end's queue pair needs them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) remote_qpn: u32,
    /// The packet sequence numbers that the queue pair expects first, and begins with.
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) ack_timeout: u8,
    pub(super) traffic_class: u8,
}

impl Agreed {
    /// The parameters that a request decides for both ends.
    fn of(req: &Req) -> Self {
        Self {
            responder_resources: req.terms.responder_resources,
            initiator_depth: req.terms.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry_count: req.terms.rnr_retry_count,
            ack_timeout: req.ack_timeout,
            traffic_class: req.traffic_class,
            ..Self::default()
        }
    }
}

/// One end of a connection, from the request on.
#[derive(Debug)]
pub(super) struct Machine {
    timers: Timers,
    state: State,
    deadline: Option<Time>,
    retries: u32,
    /// The peer has the message and needs time.
    slow: bool,
    /// The message that is repeated until it is answered.
    repeated: Option<Message>,
    /// When the request was refused first, and whether the next deadline only repeats it.
    refused: Option<Time>,
    asks_again: bool,
    /// The end that was asked.
    passive: bool,
    /// The application has answered the request; before it has, it gets no notice.
    answered: bool,
    disconnected: bool,
    meaningless: u8,
    agreed: Agreed,
}

type Outputs = Vec<Output>;

impl Machine {
    fn new(timers: Timers, state: State, passive: bool, agreed: Agreed) -> Self {
        Self {
            timers,
            state,
            deadline: None,
            retries: timers.retries,
            slow: false,
            repeated: None,
            refused: None,
            asks_again: false,
            passive,
            answered: !passive,
            disconnected: false,
            meaningless: 0,
            agreed,
        }
    }

    /// The end that asks for a connection, or for a datagram service.
    pub(super) fn ask(timers: Timers, request: Message, now: Time, out: &mut Outputs) -> Self {
        let (state, agreed) = match &request {
            Message::Req(req) => (State::ReqSent, Agreed { rq_psn: req.psn, ..Agreed::of(req) }),
            _ => (State::SidrSent, Agreed::default()),
        };
        let mut machine = Self::new(timers, state, false, agreed);
        out.push(Output::Request(request.clone()));
        machine.await_answer(request, now);
        machine
    }

    /// The end that is asked.
    pub(super) fn asked(timers: Timers, request: &Message) -> Self {
        let Message::Req(req) = request else {
            return Self::new(timers, State::SidrReceived, true, Agreed::default());
        };
        let (remote_qpn, sq_psn) = (req.terms.qp_num, req.psn);
        // What the peer has for our requests is how many we may have under way, and the other way
        // round.
        let (responder_resources, initiator_depth) = (req.terms.initiator_depth, req.terms.responder_resources);
        let agreed = Agreed { remote_qpn, sq_psn, responder_resources, initiator_depth, ..Agreed::of(req) };
        Self::new(timers, State::ReqReceived, true, agreed)
    }

    /// Waits for the answer to a message, which is repeated until it comes.
    fn await_answer(&mut self, message: Message, now: Time) {
        self.repeated = Some(message);
        self.retries = self.timers.retries;
        self.slow = false;
        self.deadline = Some(now.after(self.timers.response));
    }

    #[cfg(test)]
    pub(super) fn state(&self) -> State {
        self.state
    }

    /// When [`Machine::on_time`] is to be called next.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// The parameters of a queue pair that goes to INIT.
    pub(super) fn for_init(&self) -> Result<Agreed, Errno> {
        match self.state {
            State::ReqSent => Ok(self.agreed),
            _ => self.for_ready(),
        }
    }

    /// The parameters of a queue pair that goes to RTR or RTS.
    pub(super) fn for_ready(&self) -> Result<Agreed, Errno> {
        match self.state {
            State::ReqReceived | State::RepReceived | State::RepSent | State::Established => Ok(self.agreed),
            _ => Err(Errno::INVAL),
        }
    }

    /// Accepts; `psn` is for a connection, `qkey` for a datagram service.
    pub(super) fn accept(
        &mut self,
        terms: Terms,
        psn: u32,
        qkey: u32,
        now: Time,
        out: &mut Outputs,
    ) -> Result<(), Errno> {
        match self.state {
            State::ReqReceived => {
                self.agreed.rq_psn = psn;
                self.agreed.responder_resources = terms.responder_resources;
                self.agreed.initiator_depth = terms.initiator_depth;
                self.state = State::RepSent;
                let rep = Message::Rep(Rep { psn, terms });
                out.push(Output::Send(rep.clone()));
                self.await_answer(rep, now);
            }
            State::SidrReceived => {
                let rep = SidrRep { status: sidr::SUCCESS, qp_num: terms.qp_num, qkey, private: terms.private };
                out.push(Output::Send(Message::SidrRep(rep)));
                self.end(out);
            }
            _ => return Err(Errno::INVAL),
        }
        self.answered = true;
        Ok(())
    }

    /// Confirms the peer's acceptance.
    pub(super) fn establish(&mut self, out: &mut Outputs) -> Result<(), Errno> {
        if self.state != State::RepReceived {
            return Err(Errno::INVAL);
        }
        self.state = State::Established;
        out.push(Output::Send(Message::Rtu));
        Ok(())
    }

    /// Rejects, or gives up.
    pub(super) fn reject(&mut self, rej: Rej, now: Time, out: &mut Outputs) -> Result<(), Errno> {
        match self.state {
            State::ReqReceived | State::RepReceived | State::ReqSent => {
                out.push(Output::Send(Message::Rej(rej)));
                self.end(out);
            }
            State::RepSent => {
                out.push(Output::Send(Message::Rej(rej)));
                self.wait(now, out);
            }
            State::SidrReceived => {
                let rep = SidrRep { status: sidr::REJECT, private: rej.private, ..SidrRep::default() };
                out.push(Output::Send(Message::SidrRep(rep)));
                self.end(out);
            }
            _ => return Err(Errno::INVAL),
        }
        self.answered = true;
        Ok(())
    }

    /// Asks for the connection's end, or agrees to it. Changes nothing where there is no
    /// connection.
    pub(super) fn disconnect(&mut self, now: Time, out: &mut Outputs) {
        match self.state {
            State::Established => {
                self.state = State::DreqSent;
                out.push(Output::Send(Message::Dreq));
                self.await_answer(Message::Dreq, now);
            }
            State::DreqReceived => {
                out.push(Output::Send(Message::Drep));
                self.wait(now, out);
            }
            _ => {}
        }
    }

    /// The queue pair has received something: the connection is there, whether or not the peer's
    /// confirmation has come.
    pub(super) fn communication_established(&mut self, out: &mut Outputs) -> Result<(), Errno> {
        match self.state {
            State::RepSent => {
                self.be_established(out);
                Ok(())
            }
            State::Established => Err(Errno(libc::EISCONN)),
            _ => Err(Errno::INVAL),
        }
    }

    /// The application destroys the id, in any state; the peer gets the message that it needs.
    pub(super) fn destroy(&mut self, out: &mut Outputs) {
        let rej = |reason| Some(Message::Rej(Rej { reason, ..Rej::default() }));
        let last = match self.state {
            State::ReqSent => rej(reason::TIMEOUT),
            State::ReqReceived | State::RepReceived | State::RepSent => rej(reason::CONSUMER_DEFINED),
            State::Established => Some(Message::Dreq),
            State::DreqReceived => Some(Message::Drep),
            State::SidrReceived => Some(Message::SidrRep(SidrRep { status: sidr::REJECT, ..SidrRep::default() })),
            State::DreqSent | State::TimeWait | State::SidrSent | State::Closed => None,
        };
        out.extend(last.map(Output::Send));
        self.end(out);
    }

    /// No process listens at the destination. A listener may be between two calls of `rdma_listen`,
    /// so the request is made again for a moment before it fails.
    pub(super) fn on_refused(&mut self, now: Time, out: &mut Outputs) {
        let notice = match self.state {
            State::ReqSent => Notice::Rejected(Rej { reason: reason::INVALID_SERVICE_ID, ..Rej::default() }),
            State::SidrSent => Notice::NoDatagram(sidr::UNSUPPORTED, Vec::new()),
            _ => return,
        };
        if now < self.refused.get_or_insert(now).after(self.timers.listener) {
            self.asks_again = true;
            self.deadline = Some(now.after(self.timers.listener / 50));
            return;
        }
        self.end(out);
        out.push(Output::Notify(notice));
    }

    /// A process of another user listens at the destination.
    pub(super) fn on_other_user(&mut self, out: &mut Outputs) {
        if matches!(self.state, State::ReqSent | State::SidrSent) {
            self.end(out);
            out.push(Output::Notify(Notice::OtherUser));
        }
    }

    /// A message of the peer.
    pub(super) fn on_message(&mut self, message: Message, now: Time, out: &mut Outputs) {
        use Message as M;
        use State as S;
        match (self.state, message) {
            (S::ReqSent, M::Rep(rep)) => {
                self.agreed.remote_qpn = rep.terms.qp_num;
                self.agreed.sq_psn = rep.psn;
                self.agreed.responder_resources = rep.terms.initiator_depth;
                self.agreed.initiator_depth = rep.terms.responder_resources;
                self.agreed.rnr_retry_count = rep.terms.rnr_retry_count;
                self.state = S::RepReceived;
                self.stop_waiting();
                out.push(Output::Notify(Notice::Response(rep)));
            }
            (S::ReqSent | S::RepSent, M::Mra) => {
                self.slow = true;
                self.deadline = Some(now.after(self.timers.service));
                // Time is not given without end.
                self.count_meaningless(now, out);
            }
            (S::ReqSent | S::SidrSent, M::Busy) => out.push(Output::Hangup),
            (S::ReqSent | S::RepReceived | S::ReqReceived, M::Rej(rej)) => {
                self.end(out);
                self.notify(Notice::Rejected(rej), out);
            }
            (S::RepSent, M::Rej(rej)) => {
                self.wait(now, out);
                self.notify(Notice::Rejected(rej), out);
            }
            // Asked again: it is not lost, and will be answered.
            (S::ReqReceived, M::Req(_)) | (S::RepReceived, M::Rep(_)) => {
                out.push(Output::Send(M::Mra));
                self.count_meaningless(now, out);
            }
            (S::RepSent, M::Rtu) => self.be_established(out),
            (S::Established, M::Rep(_)) if !self.passive => {
                out.push(Output::Send(M::Rtu));
                self.count_meaningless(now, out);
            }
            (S::RepSent | S::Established | S::DreqSent, M::Dreq) => {
                self.state = S::DreqReceived;
                self.stop_waiting();
                self.notify_disconnected(0, out);
            }
            (S::DreqSent | S::DreqReceived, M::Drep) => {
                self.wait(now, out);
                self.notify_disconnected(0, out);
            }
            (S::SidrSent, M::SidrRep(rep)) => {
                self.end(out);
                let notice = match rep.status {
                    sidr::SUCCESS => Notice::Datagram(rep),
                    status => Notice::NoDatagram(status, rep.private),
                };
                out.push(Output::Notify(notice));
            }
            // Said before the sender knew better.
            (S::RepReceived | S::Established | S::DreqSent | S::DreqReceived, M::Mra)
            | (S::RepSent | S::Established | S::DreqSent | S::DreqReceived, M::Req(_))
            | (S::Established | S::DreqSent | S::DreqReceived, M::Rtu)
            | (S::DreqSent | S::DreqReceived, M::Rep(_))
            | (S::DreqReceived, M::Dreq)
            | (S::SidrReceived, M::SidrReq(_)) => self.count_meaningless(now, out),
            (S::TimeWait | S::Closed, _) => {}
            (state, message) => {
                log!(DEBUG, ?state, ?message, "soft0: a peer does not keep to the protocol of connections");
                self.break_off(now, out);
            }
        }
    }

    /// The packet was no message.
    pub(super) fn on_garbage(&mut self, now: Time, out: &mut Outputs) {
        if !matches!(self.state, State::TimeWait | State::Closed) {
            self.break_off(now, out);
        }
    }

    /// The peer is gone, with all that it had to say said: what its manager would have said for it
    /// is taken as said.
    pub(super) fn on_hangup(&mut self, now: Time, out: &mut Outputs) {
        let rej = |reason| Notice::Rejected(Rej { reason, ..Rej::default() });
        match self.state {
            State::ReqSent | State::RepReceived => {
                self.end(out);
                out.push(Output::Notify(rej(reason::CONSUMER_DEFINED)));
            }
            State::ReqReceived => {
                self.end(out);
                self.notify(rej(reason::TIMEOUT), out);
            }
            State::RepSent => {
                self.wait(now, out);
                self.notify(rej(reason::CONSUMER_DEFINED), out);
            }
            State::Established => {
                self.state = State::DreqReceived;
                self.notify_disconnected(0, out);
            }
            State::DreqSent => {
                self.wait(now, out);
                self.notify_disconnected(0, out);
            }
            State::SidrSent => {
                self.end(out);
                out.push(Output::Notify(Notice::NoDatagram(sidr::REJECT, Vec::new())));
            }
            State::DreqReceived | State::SidrReceived | State::TimeWait | State::Closed => {}
        }
    }

    /// Time has passed.
    pub(super) fn on_time(&mut self, now: Time, out: &mut Outputs) {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        if self.state == State::TimeWait {
            self.state = State::Closed;
            self.deadline = None;
            self.notify(Notice::TimewaitExit, out);
            return;
        }
        if !std::mem::take(&mut self.asks_again) {
            let Some(left) = self.retries.checked_sub(1) else { return self.give_up(now, out) };
            self.retries = left;
        }
        let wait = if self.slow { self.timers.service } else { self.timers.response };
        self.deadline = Some(now.after(wait));
        if let Some(repeated) = self.repeated.clone() {
            out.push(match self.state {
                State::ReqSent | State::SidrSent => Output::Request(repeated),
                _ => Output::Send(repeated),
            });
        }
    }

    fn give_up(&mut self, now: Time, out: &mut Outputs) {
        match self.state {
            State::DreqSent => {
                self.wait(now, out);
                self.notify_disconnected(-libc::ETIMEDOUT, out);
            }
            _ => {
                self.end(out);
                self.notify(Notice::Unreachable(-libc::ETIMEDOUT), out);
            }
        }
    }

    fn be_established(&mut self, out: &mut Outputs) {
        self.state = State::Established;
        self.stop_waiting();
        self.notify(Notice::Established, out);
    }

    /// A peer that breaks the protocol is treated as gone.
    fn break_off(&mut self, now: Time, out: &mut Outputs) {
        out.push(Output::Hangup);
        self.on_hangup(now, out);
    }

    fn count_meaningless(&mut self, now: Time, out: &mut Outputs) {
        self.meaningless += 1;
        if self.meaningless >= MAX_MEANINGLESS {
            self.break_off(now, out);
        }
    }

    fn notify(&self, notice: Notice, out: &mut Outputs) {
        // An application that has not answered gets no notice: its answer fails.
        if self.answered {
            out.push(Output::Notify(notice));
        }
    }

    fn notify_disconnected(&mut self, status: i32, out: &mut Outputs) {
        if !self.disconnected {
            self.disconnected = true;
            out.push(Output::Notify(Notice::Disconnected(status)));
        }
    }

    /// Nothing is awaited.
    fn stop_waiting(&mut self) {
        self.deadline = None;
        self.repeated = None;
        self.slow = false;
    }

    fn wait(&mut self, now: Time, out: &mut Outputs) {
        self.stop_waiting();
        self.state = State::TimeWait;
        self.deadline = Some(now.after(self.timers.timewait));
        out.push(Output::Hangup);
    }

    fn end(&mut self, out: &mut Outputs) {
        self.stop_waiting();
        self.state = State::Closed;
        out.push(Output::Hangup);
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
