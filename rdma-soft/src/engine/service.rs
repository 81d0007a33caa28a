//! A queue pair: its common part, and its transport service.
//!
//! # A new transport
//!
//! 1. Its attributes stand in `rdma_sys::QpTransition` (XRC's do already);
//!    `tests/tests/it/transitions.rs` compares them with a device.
//! 2. Here it is a variant of `Service` with a file of its own, as `uc.rs` is. `Tables::judged` at
//!    its post, and `judge_arrival` or `judge_message` at its receiver, let plans of faults reach
//!    it.
//! 3. In `rdma` it is a type that implements `Transport`, and `Operation<T>` for its operations: no
//!    other operation compiles. A transport with one peer implements `Connected` and gets bring-up,
//!    sends and writes by it.

use super::Outbound;
use super::peers::Work;
use super::qp::Qp;
use super::rc::Rc;
use super::tables::Tables;
use super::types::{Errno, LinkId, ModifyQp, QpId, QpInit, QpState, QpStatus, ServiceType, Transmit};
use super::uc::Uc;
use super::ud::Ud;

/// The transport service of a queue pair, with its state.
#[derive(Debug)]
pub(super) enum Service {
    /// Reliable connection.
    Rc(Rc),
    /// Unreliable connection.
    Uc(Uc),
    /// Unreliable datagrams.
    Ud(Ud),
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) qp: Qp,
    pub(super) service: Service,
}

impl QueuePair {
    pub(super) fn new(id: QpId, qpn: u32, init: &QpInit, incarnation: u8, tables: &Tables) -> Result<Self, Errno> {
        let qp = Qp::new(id, qpn, init, tables)?;
        let service = match init.service {
            ServiceType::Rc => Service::Rc(Rc::new(incarnation)),
            ServiceType::Uc => Service::Uc(Uc::new(incarnation)),
            ServiceType::Ud => Service::Ud(Ud::new(qp.sq.capacity(), incarnation)?),
        };
        Ok(Self { qp, service })
    }

    pub(super) const fn incarnation(&self) -> u8 {
        match &self.service {
            Service::Rc(rc) => rc.incarnation(),
            Service::Uc(uc) => uc.incarnation(),
            Service::Ud(ud) => ud.incarnation(),
        }
    }

    pub(super) const fn status(&self) -> QpStatus {
        match &self.service {
            Service::Rc(rc) => rc.status(&self.qp),
            Service::Uc(uc) => uc.status(&self.qp),
            Service::Ud(ud) => ud.status(&self.qp),
        }
    }

    pub(super) fn modify(&mut self, change: &ModifyQp, tables: &mut Tables) {
        let qp = &mut self.qp;
        qp.merge(change, tables);
        let next = change.state.filter(|state| *state != qp.state);
        match &mut self.service {
            Service::Rc(rc) => {
                if let Some(state) = next {
                    rc.enter(qp, state, tables);
                }
                Rc::publish(qp, tables);
            }
            Service::Uc(uc) => {
                if let Some(state) = next {
                    uc.enter(qp, state, tables);
                }
            }
            Service::Ud(ud) => {
                if let Some(state) = next {
                    ud.enter(qp, state, tables);
                }
            }
        }
    }

    /// Restores the state that the queue pair had after its creation.
    pub(super) fn reset(&mut self, tables: &mut Tables) {
        match &mut self.service {
            Service::Rc(rc) => rc.reset(&mut self.qp, tables),
            Service::Uc(uc) => uc.reset(&mut self.qp, tables),
            Service::Ud(ud) => ud.reset(&mut self.qp, tables),
        }
    }

    /// Lets no further copy of foreign memory begin for the queue pair. `EAGAIN` while one is
    /// running.
    pub(super) fn end_copies(&mut self, tables: &mut Tables) -> Result<(), Errno> {
        if !tables.copies.uses_qp(self.qp.id) {
            return Ok(());
        }
        self.fail(tables);
        Err(Errno::AGAIN)
    }

    /// Whether the queue pair has left RESET and is not in ERR.
    pub(super) fn is_used(&self) -> bool {
        !matches!(self.qp.state, QpState::Reset | QpState::Err)
    }

    /// Moves the queue pair to ERR for a reason that is no request's fault.
    pub(super) fn fail(&mut self, tables: &mut Tables) {
        match &mut self.service {
            Service::Rc(rc) => rc.fail(&mut self.qp, tables),
            Service::Uc(uc) => uc.fail(&mut self.qp, tables),
            Service::Ud(ud) => ud.fail(&mut self.qp, tables),
        }
    }

    /// Sends the frames of one entry of a link's work list.
    pub(super) fn transmit(
        &mut self,
        work: Work,
        link: LinkId,
        tables: &mut Tables,
        out: &mut impl Outbound,
        budget: &mut usize,
    ) -> Transmit {
        match (&mut self.service, work) {
            (Service::Rc(rc), Work::Answers(_)) => rc.answer(&mut self.qp, tables, out, budget),
            (Service::Rc(rc), _) => rc.transmit(&mut self.qp, tables, out, budget),
            (Service::Uc(uc), _) => uc.transmit(&mut self.qp, link, tables, out, budget),
            (Service::Ud(ud), _) => ud.transmit(&mut self.qp, link, tables, out, budget),
        }
    }

    /// Ends the delay of the next request, which a fault has caused.
    pub(super) fn end_delay(&mut self, tables: &mut Tables) {
        tables.end_delay(self.qp.id, self.qp.sq.next);
        match &mut self.service {
            Service::Rc(rc) => rc.schedule(&self.qp, tables),
            Service::Uc(uc) => uc.schedule(&mut self.qp, tables),
            Service::Ud(ud) => ud.schedule(&mut self.qp, tables),
        }
    }

    /// Whether messages wait for a link.
    pub(super) const fn is_waiting(&self) -> bool {
        match &self.service {
            Service::Rc(_) => false,
            Service::Uc(uc) => uc.is_waiting(),
            Service::Ud(ud) => ud.is_waiting(),
        }
    }

    /// Tries again to send the messages that wait for a link.
    pub(super) fn resume(&mut self, tables: &mut Tables) {
        match &mut self.service {
            Service::Rc(rc) => rc.schedule(&self.qp, tables),
            Service::Uc(uc) => uc.schedule(&mut self.qp, tables),
            Service::Ud(ud) => ud.resume(&mut self.qp, tables),
        }
    }

    pub(super) fn handle_timer(&mut self, generation: u32, tables: &mut Tables) {
        match &mut self.service {
            Service::Rc(rc) => rc.handle_timer(&mut self.qp, generation, tables),
            Service::Uc(uc) => uc.handle_timer(generation, tables),
            Service::Ud(ud) => ud.handle_timer(generation, tables),
        }
    }

    /// A link is gone. With `is_last`, no other link leads to the process that the queue pair is
    /// connected to.
    pub(super) fn handle_link_down(&mut self, link: LinkId, is_last: bool, tables: &mut Tables) {
        match &mut self.service {
            Service::Rc(rc) => rc.handle_link_down(&mut self.qp, link, is_last, tables),
            Service::Uc(uc) => uc.handle_link_down(&mut self.qp, link, tables),
            Service::Ud(ud) => ud.handle_link_down(&mut self.qp, link, tables),
        }
    }
}
