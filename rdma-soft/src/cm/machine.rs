//! One side of a connection as an IO-free state machine. Inputs are calls, messages, the end of the
//! transport and the time; outputs are messages to send and notices for the application. The
//! states, timers and replies are those of the communication manager in the InfiniBand
//! specification (volume 1, chapter 12), with Linux's choices.
//!
//! The transport loses no message and keeps their order, but ends when the peer ends, and a
//! listener whose queue is full drops requests. So the machine repeats requests and replies, as on
//! a network.
//!
//! Invariants, which the property tests check with random calls, messages and clocks:
//!
//! 1. After any message from a peer the machine is in one of its states. Over its life a machine
//!    emits at most one notice that answers the request, one `Established`, one `Disconnected` and
//!    one `TimewaitExit`.
//! 2. A state that waits for the peer has a deadline.
//! 3. A closed machine stays closed and produces no output.
//!
//! A request that meets no listener is repeated for half a second, because a server may be between
//! two calls of `rdma_listen`. The end of the socket stands for the message that a destroyed id
//! would have sent.

use super::wire::{Message, Rej, Rep, Req, SidrRep, Terms};
use crate::engine::{Errno, Time};
use crate::log::log;

/// Number of messages without effect after which a machine treats its peer as broken.
const MAX_MEANINGLESS: u8 = 64;

/// Reason codes of rejections that the machine itself sends.
pub(super) mod reason {
    pub(crate) const NO_RESOURCES: u16 = 3;
    pub(crate) const TIMEOUT: u16 = 4;
    pub(crate) const INVALID_SERVICE_ID: u16 = 8;
    pub(crate) const CONSUMER_DEFINED: u16 = 28;
    pub(crate) const VENDOR_OPTION_NOT_SUPPORTED: u16 = 35;
}

/// Status codes of replies to a request for a datagram service (SIDR).
pub(super) mod sidr {
    pub(crate) const SUCCESS: u8 = 0;
    pub(crate) const UNSUPPORTED: u8 = 1;
    pub(crate) const REJECT: u8 = 2;
    pub(crate) const NO_QP: u8 = 3;
}

/// Timeouts of a machine in nanoseconds, and its number of retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timers {
    /// Time to wait for a reply before the message is repeated.
    pub(super) response: u64,
    /// Time to wait for a reply of a peer that asked for more time by an MRA.
    pub(super) service: u64,
    /// Number of times that a message is repeated.
    pub(super) retries: u32,
    /// Time in `TimeWait` after the end of a connection.
    pub(super) timewait: u64,
    /// Time to retry a refused request: the listener may be between two calls of `rdma_listen`.
    pub(super) listener: u64,
}

impl Timers {
    const SECOND: u64 = 1_000_000_000;

    /// Linux's timeouts on RoCE: 4.3 s for the peer's manager and a second each way, 15 retries, a
    /// minute for a slow service.
    pub(super) const LINUX: Self = Self::new(6 * Self::SECOND, 67 * Self::SECOND, 2 * Self::SECOND);

    /// Timeouts in proportion to `response`, the time to wait for a reply, in nanoseconds.
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
    /// Final state.
    Closed,
}

/// An action for the driver of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// Send this request; open a transport first if there is none.
    Request(Message),
    /// Send this message if there is a transport.
    Send(Message),
    /// End the transport, after all messages are sent.
    Hangup,
    /// Queue an event for the application.
    Notify(Notice),
}

/// An event for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// The peer accepts; the application must establish the connection.
    Response(Rep),
    Established,
    Rejected(Rej),
    /// The peer does not answer, or its host is not reached; a negative error number.
    Unreachable(i32),
    /// The connection has ended; 0 or a negative error number.
    Disconnected(i32),
    TimewaitExit,
    /// The queue pair of a datagram service.
    Datagram(SidrRep),
    /// The refusal of a datagram service: status and private data.
    NoDatagram(u8, Vec<u8>),
    /// A process of another user listens at the destination.
    OtherUser,
}

/// The parameters that both sides have agreed upon, from the view of this side's queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) remote_qpn: u32,
    /// The first PSN that the queue pair expects (`rq_psn`), and the first that it sends
    /// (`sq_psn`).
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
    /// The parameters that the request sets for both sides.
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

/// One side of a connection, from the request to the final state.
#[derive(Debug)]
pub(super) struct Machine {
    timers: Timers,
    state: State,
    deadline: Option<Time>,
    retries: u32,
    /// The peer has received the message and asked for more time (MRA).
    slow: bool,
    /// The message to repeat until the peer replies.
    repeated: Option<Message>,
    /// Time of the request's first refusal; `asks_again` says that the next deadline repeats the
    /// request without using a retry.
    refused: Option<Time>,
    asks_again: bool,
    /// Whether this is the passive side, which received the request.
    passive: bool,
    /// Whether the application has answered the request (true on the active side); no notice is
    /// emitted before.
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

    /// Makes the active side, which requests a connection or a datagram service.
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

    /// Makes the passive side, which received `request`.
    pub(super) fn asked(timers: Timers, request: &Message) -> Self {
        let Message::Req(req) = request else {
            return Self::new(timers, State::SidrReceived, true, Agreed::default());
        };
        let (remote_qpn, sq_psn) = (req.terms.qp_num, req.psn);
        // The peer's responder resources limit our initiator depth, and the reverse.
        let (responder_resources, initiator_depth) = (req.terms.initiator_depth, req.terms.responder_resources);
        let agreed = Agreed { remote_qpn, sq_psn, responder_resources, initiator_depth, ..Agreed::of(req) };
        Self::new(timers, State::ReqReceived, true, agreed)
    }

    /// Starts the wait for a reply; `message` is repeated until the reply comes.
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

    /// The time at which [`Machine::on_time`] must be called next.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// The parameters for the queue pair's transition to INIT.
    pub(super) fn for_init(&self) -> Result<Agreed, Errno> {
        match self.state {
            State::ReqSent => Ok(self.agreed),
            _ => self.for_ready(),
        }
    }

    /// The parameters for the queue pair's transition to RTR or RTS.
    pub(super) fn for_ready(&self) -> Result<Agreed, Errno> {
        match self.state {
            State::ReqReceived | State::RepReceived | State::RepSent | State::Established => Ok(self.agreed),
            _ => Err(Errno::INVAL),
        }
    }

    /// Accepts the request. `psn` applies to a connection, `qkey` to a datagram service.
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

    /// Confirms the peer's acceptance: sends the RTU.
    pub(super) fn establish(&mut self, out: &mut Outputs) -> Result<(), Errno> {
        if self.state != State::RepReceived {
            return Err(Errno::INVAL);
        }
        self.state = State::Established;
        out.push(Output::Send(Message::Rtu));
        Ok(())
    }

    /// Rejects the peer's request or acceptance, or gives up the own request.
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

    /// Requests the end of the connection, or agrees to the peer's request. Without a connection
    /// has no effect.
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

    /// Handles `IBV_EVENT_COMM_EST`: the queue pair has received a message, so the connection is
    /// established even if the peer's RTU has not come yet.
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

    /// Ends the machine in any state because the application destroys the id; tells the peer.
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

    /// Handles a request that found no listener. The listener may be between two calls of
    /// `rdma_listen`, so the request is repeated for `Timers::listener` before it fails.
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

    /// Handles a request that found a listener of another user.
    pub(super) fn on_other_user(&mut self, out: &mut Outputs) {
        if matches!(self.state, State::ReqSent | State::SidrSent) {
            self.end(out);
            out.push(Output::Notify(Notice::OtherUser));
        }
    }

    /// Handles a request that has not reached the peer's host; `errno` is positive.
    pub(super) fn on_unreachable(&mut self, errno: i32, out: &mut Outputs) {
        if matches!(self.state, State::ReqSent | State::SidrSent) {
            self.end(out);
            out.push(Output::Notify(Notice::Unreachable(-errno)));
        }
    }

    /// Handles a message from the peer.
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
                // Counted, so that a peer cannot extend the deadline for ever.
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
            // A repeated message: tell the peer that the first one arrived and will be answered.
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
            // Messages that the peer sent before it received our latest one; ignored, but counted.
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

    /// Handles a packet that is not a valid message.
    pub(super) fn on_garbage(&mut self, now: Time, out: &mut Outputs) {
        if !matches!(self.state, State::TimeWait | State::Closed) {
            self.break_off(now, out);
        }
    }

    /// Handles the end of the transport, after all the peer's messages: acts on the message that
    /// the connection manager of an ended peer would send.
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

    /// Handles the passing of the deadline; does nothing before.
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

    /// Ends the transport of a peer that breaks the protocol, and treats the peer as ended.
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
        // An application that has not answered yet learns of the end when its answer fails.
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

    /// Clears the deadline and the message to repeat.
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
mod tests;
