//! The state machine of a queue pair: which transitions exist, and which attributes each one demands and admits.
//!
//! The table is that of the InfiniBand specification (11.2.5.2, "modify queue pair"), with the reading that Linux gives it in
//! `ib_modify_qp_is_ok`: what real devices accept, this one accepts, and the other way round. The values are checked
//! separately, by [`check_values`], because they depend on the device.

use std::fmt;
use std::ops::{BitAnd, BitOr, Not};

use rdma_sys::{ibv_access_flags, ibv_mig_state, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type};

use super::Errno;

/// A set of attributes: bits of `ibv_qp_attr_mask`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes(u32);

impl Attributes {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const STATE: Self = Self::of(ibv_qp_attr_mask::IBV_QP_STATE);
    pub(crate) const CUR_STATE: Self = Self::of(ibv_qp_attr_mask::IBV_QP_CUR_STATE);
    pub(crate) const EN_SQD_ASYNC_NOTIFY: Self = Self::of(ibv_qp_attr_mask::IBV_QP_EN_SQD_ASYNC_NOTIFY);
    pub(crate) const ACCESS_FLAGS: Self = Self::of(ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS);
    pub(crate) const PKEY_INDEX: Self = Self::of(ibv_qp_attr_mask::IBV_QP_PKEY_INDEX);
    pub(crate) const PORT: Self = Self::of(ibv_qp_attr_mask::IBV_QP_PORT);
    pub(crate) const QKEY: Self = Self::of(ibv_qp_attr_mask::IBV_QP_QKEY);
    pub(crate) const AV: Self = Self::of(ibv_qp_attr_mask::IBV_QP_AV);
    pub(crate) const PATH_MTU: Self = Self::of(ibv_qp_attr_mask::IBV_QP_PATH_MTU);
    pub(crate) const TIMEOUT: Self = Self::of(ibv_qp_attr_mask::IBV_QP_TIMEOUT);
    pub(crate) const RETRY_CNT: Self = Self::of(ibv_qp_attr_mask::IBV_QP_RETRY_CNT);
    pub(crate) const RNR_RETRY: Self = Self::of(ibv_qp_attr_mask::IBV_QP_RNR_RETRY);
    pub(crate) const RQ_PSN: Self = Self::of(ibv_qp_attr_mask::IBV_QP_RQ_PSN);
    pub(crate) const MAX_QP_RD_ATOMIC: Self = Self::of(ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC);
    pub(crate) const ALT_PATH: Self = Self::of(ibv_qp_attr_mask::IBV_QP_ALT_PATH);
    pub(crate) const MIN_RNR_TIMER: Self = Self::of(ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER);
    pub(crate) const SQ_PSN: Self = Self::of(ibv_qp_attr_mask::IBV_QP_SQ_PSN);
    pub(crate) const MAX_DEST_RD_ATOMIC: Self = Self::of(ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC);
    pub(crate) const PATH_MIG_STATE: Self = Self::of(ibv_qp_attr_mask::IBV_QP_PATH_MIG_STATE);
    pub(crate) const CAP: Self = Self::of(ibv_qp_attr_mask::IBV_QP_CAP);
    pub(crate) const DEST_QPN: Self = Self::of(ibv_qp_attr_mask::IBV_QP_DEST_QPN);
    pub(crate) const RATE_LIMIT: Self = Self::of(ibv_qp_attr_mask::IBV_QP_RATE_LIMIT);

    /// Every attribute that has a name, with that name.
    const NAMES: &'static [(Self, &'static str)] = &[
        (Self::STATE, "STATE"),
        (Self::CUR_STATE, "CUR_STATE"),
        (Self::EN_SQD_ASYNC_NOTIFY, "EN_SQD_ASYNC_NOTIFY"),
        (Self::ACCESS_FLAGS, "ACCESS_FLAGS"),
        (Self::PKEY_INDEX, "PKEY_INDEX"),
        (Self::PORT, "PORT"),
        (Self::QKEY, "QKEY"),
        (Self::AV, "AV"),
        (Self::PATH_MTU, "PATH_MTU"),
        (Self::TIMEOUT, "TIMEOUT"),
        (Self::RETRY_CNT, "RETRY_CNT"),
        (Self::RNR_RETRY, "RNR_RETRY"),
        (Self::RQ_PSN, "RQ_PSN"),
        (Self::MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC"),
        (Self::ALT_PATH, "ALT_PATH"),
        (Self::MIN_RNR_TIMER, "MIN_RNR_TIMER"),
        (Self::SQ_PSN, "SQ_PSN"),
        (Self::MAX_DEST_RD_ATOMIC, "MAX_DEST_RD_ATOMIC"),
        (Self::PATH_MIG_STATE, "PATH_MIG_STATE"),
        (Self::CAP, "CAP"),
        (Self::DEST_QPN, "DEST_QPN"),
        (Self::RATE_LIMIT, "RATE_LIMIT"),
    ];

    const fn of(mask: ibv_qp_attr_mask) -> Self {
        Self(mask.0)
    }

    /// The attributes that a caller's mask names; bits without a meaning stay and are refused by every transition.
    pub(crate) const fn from_bits(mask: i32) -> Self {
        Self(mask as u32)
    }

    /// Whether every attribute of `other` is in the set.
    pub(crate) const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for Attributes {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Attributes {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for Attributes {
    type Output = Self;
    fn not(self) -> Self {
        Self(!self.0)
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = *self;
        let mut separator = "";
        for &(attribute, name) in Self::NAMES {
            if self.contains(attribute) {
                write!(f, "{separator}{name}")?;
                separator = " | ";
                rest = rest & !attribute;
            }
        }
        if !rest.is_empty() || separator.is_empty() {
            write!(f, "{separator}{:#x}", rest.0)?;
        }
        Ok(())
    }
}

/// The transports that have a column of their own in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Rc,
    Uc,
    Ud,
}

impl Transport {
    /// The transport of a queue pair type, if the table has it.
    pub(crate) fn of(qp_type: ibv_qp_type) -> Option<Self> {
        match qp_type {
            ibv_qp_type::IBV_QPT_RC => Some(Self::Rc),
            ibv_qp_type::IBV_QPT_UC => Some(Self::Uc),
            ibv_qp_type::IBV_QPT_UD => Some(Self::Ud),
            _ => None,
        }
    }
}

/// What one transition asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    required: Attributes,
    optional: Attributes,
}

const fn rule(required: Attributes, optional: Attributes) -> Option<Rule> {
    Some(Rule { required, optional })
}

const FREE: Option<Rule> = rule(Attributes::NONE, Attributes::NONE);

/// The specification's table. `None`: there is no such transition.
fn transition(transport: Transport, from: ibv_qp_state, to: ibv_qp_state) -> Option<Rule> {
    use Transport::{Rc, Uc, Ud};
    type A = Attributes;
    type S = ibv_qp_state;
    const BIRTH_CONNECTED: A = A::PKEY_INDEX.and(A::PORT).and(A::ACCESS_FLAGS);
    const BIRTH_DATAGRAM: A = A::PKEY_INDEX.and(A::PORT).and(A::QKEY);
    const CONNECT: A = A::AV.and(A::PATH_MTU).and(A::DEST_QPN).and(A::RQ_PSN);
    const MIGRATION: A = A::ALT_PATH.and(A::PATH_MIG_STATE);
    const RESUME: A = A::CUR_STATE.and(A::ACCESS_FLAGS);
    match (from, to) {
        // Every state leads back to RESET, and every state but RESET to ERR.
        (_, S::IBV_QPS_RESET) => FREE,
        (S::IBV_QPS_RESET, S::IBV_QPS_ERR) => None,
        (_, S::IBV_QPS_ERR) => FREE,

        (S::IBV_QPS_RESET, S::IBV_QPS_INIT) => match transport {
            Rc | Uc => rule(BIRTH_CONNECTED, A::NONE),
            Ud => rule(BIRTH_DATAGRAM, A::NONE),
        },
        (S::IBV_QPS_INIT, S::IBV_QPS_INIT) => match transport {
            Rc | Uc => rule(A::NONE, BIRTH_CONNECTED),
            Ud => rule(A::NONE, BIRTH_DATAGRAM),
        },
        (S::IBV_QPS_INIT, S::IBV_QPS_RTR) => match transport {
            Rc => rule(
                CONNECT.and(A::MAX_DEST_RD_ATOMIC).and(A::MIN_RNR_TIMER),
                A::ALT_PATH.and(A::ACCESS_FLAGS).and(A::PKEY_INDEX),
            ),
            Uc => rule(CONNECT, A::ALT_PATH.and(A::ACCESS_FLAGS).and(A::PKEY_INDEX)),
            Ud => rule(A::NONE, A::PKEY_INDEX.and(A::QKEY)),
        },
        (S::IBV_QPS_RTR, S::IBV_QPS_RTS) => match transport {
            Rc => rule(
                A::TIMEOUT.and(A::RETRY_CNT).and(A::RNR_RETRY).and(A::SQ_PSN).and(A::MAX_QP_RD_ATOMIC),
                RESUME.and(MIGRATION).and(A::MIN_RNR_TIMER),
            ),
            Uc => rule(A::SQ_PSN, RESUME.and(MIGRATION)),
            Ud => rule(A::SQ_PSN, A::CUR_STATE.and(A::QKEY)),
        },
        (S::IBV_QPS_RTS | S::IBV_QPS_SQD, S::IBV_QPS_RTS) => match transport {
            Rc => rule(A::NONE, RESUME.and(MIGRATION).and(A::MIN_RNR_TIMER)),
            Uc => rule(A::NONE, RESUME.and(MIGRATION)),
            Ud => rule(A::NONE, A::CUR_STATE.and(A::QKEY)),
        },
        (S::IBV_QPS_RTS, S::IBV_QPS_SQD) => rule(A::NONE, A::EN_SQD_ASYNC_NOTIFY),
        (S::IBV_QPS_SQD, S::IBV_QPS_SQD) => match transport {
            Rc => rule(
                A::NONE,
                A::PORT
                    .and(A::AV)
                    .and(A::TIMEOUT)
                    .and(A::RETRY_CNT)
                    .and(A::RNR_RETRY)
                    .and(A::MAX_QP_RD_ATOMIC)
                    .and(A::MAX_DEST_RD_ATOMIC)
                    .and(MIGRATION)
                    .and(A::ACCESS_FLAGS)
                    .and(A::PKEY_INDEX)
                    .and(A::MIN_RNR_TIMER),
            ),
            Uc => rule(A::NONE, A::AV.and(MIGRATION).and(A::ACCESS_FLAGS).and(A::PKEY_INDEX)),
            Ud => rule(A::NONE, A::PKEY_INDEX.and(A::QKEY)),
        },
        // Only unreliable transports know SQE.
        (S::IBV_QPS_SQE, S::IBV_QPS_RTS) => match transport {
            Rc => None,
            Uc => rule(A::NONE, RESUME),
            Ud => rule(A::NONE, A::CUR_STATE.and(A::QKEY)),
        },
        _ => None,
    }
}

/// Why a `modify_qp` was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The value of the state attribute, or of the assumed state, is no state.
    NoSuchState,
    /// The caller was wrong about the state the queue pair is in.
    WrongCurrentState,
    /// No such transition.
    NoTransition,
    /// The transition demands attributes that the mask lacks.
    Missing(Attributes),
    /// The transition does not admit these attributes.
    NotAllowed(Attributes),
    /// The value of this attribute is outside of what the device has.
    BadValue(Attributes),
    /// The device lacks the feature behind this attribute.
    Unsupported(Attributes),
}

impl From<Refusal> for Errno {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unsupported(_) => Self::OPNOTSUPP,
            _ => Self::INVAL,
        }
    }
}

/// Checks a request against the table and returns the state that it leads to.
pub(crate) fn check_transition(
    transport: Transport,
    actual: ibv_qp_state,
    attr: &ibv_qp_attr,
    mask: Attributes,
) -> Result<ibv_qp_state, Refusal> {
    type S = ibv_qp_state;
    let exists = |state: S| state.0 <= S::IBV_QPS_ERR.0;
    if mask.contains(Attributes::CUR_STATE) {
        if !exists(attr.cur_qp_state) {
            return Err(Refusal::NoSuchState);
        }
        if attr.cur_qp_state != actual {
            return Err(Refusal::WrongCurrentState);
        }
    }
    let next = if mask.contains(Attributes::STATE) { attr.qp_state } else { actual };
    if !exists(next) {
        return Err(Refusal::NoSuchState);
    }
    let rule = transition(transport, actual, next).ok_or(Refusal::NoTransition)?;
    let missing = rule.required & !mask;
    if !missing.is_empty() {
        return Err(Refusal::Missing(missing));
    }
    let extra = mask & !(rule.required | rule.optional | Attributes::STATE);
    if !extra.is_empty() {
        return Err(Refusal::NotAllowed(extra));
    }
    Ok(next)
}

/// What the values of attributes are checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) ports: u8,
    pub(crate) pkeys: u16,
    pub(crate) gids: usize,
    /// The largest `ibv_mtu` that the port does.
    pub(crate) max_mtu: u32,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    /// RoCE: every address needs a GID.
    pub(crate) global_only: bool,
}

/// The rights that a queue pair may grant to its peer.
const QP_ACCESS: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;

/// Checks the values of the attributes that the mask names.
pub(crate) fn check_values(attr: &ibv_qp_attr, mask: Attributes, limits: &Limits) -> Result<(), Refusal> {
    type A = Attributes;
    let port_exists = |port: u8| (1..=limits.ports).contains(&port);
    let av_fits = || {
        let av = &attr.ah_attr;
        let global = av.is_global != 0;
        port_exists(av.port_num)
            && (global || !limits.global_only)
            && (!global || usize::from(av.grh.sgid_index) < limits.gids)
    };
    let checks: [(A, &dyn Fn() -> bool); 11] = [
        (A::PORT, &|| port_exists(attr.port_num)),
        (A::PKEY_INDEX, &|| attr.pkey_index < limits.pkeys),
        (A::ACCESS_FLAGS, &|| attr.qp_access_flags & !QP_ACCESS == 0),
        (A::AV, &av_fits),
        (A::PATH_MTU, &|| (1..=limits.max_mtu).contains(&attr.path_mtu.0)),
        (A::DEST_QPN, &|| attr.dest_qp_num < 1 << 24),
        (A::TIMEOUT, &|| attr.timeout < 32),
        (A::RETRY_CNT, &|| attr.retry_cnt < 8),
        (A::RNR_RETRY, &|| attr.rnr_retry < 8),
        (A::MIN_RNR_TIMER, &|| attr.min_rnr_timer < 32),
        (A::MAX_QP_RD_ATOMIC, &|| attr.max_rd_atomic <= limits.max_rd_atomic),
    ];
    for (attribute, holds) in checks {
        if mask.contains(attribute) && !holds() {
            return Err(Refusal::BadValue(attribute));
        }
    }
    if mask.contains(A::MAX_DEST_RD_ATOMIC) && attr.max_dest_rd_atomic > limits.max_dest_rd_atomic {
        return Err(Refusal::BadValue(A::MAX_DEST_RD_ATOMIC));
    }
    // The port has no automatic path migration, so a path is migrated and has no alternate.
    if mask.contains(A::ALT_PATH) {
        return Err(Refusal::Unsupported(A::ALT_PATH));
    }
    if mask.contains(A::PATH_MIG_STATE) && attr.path_mig_state != ibv_mig_state::IBV_MIG_MIGRATED {
        return Err(Refusal::Unsupported(A::PATH_MIG_STATE));
    }
    Ok(())
}

/// Takes the attributes that the mask names from `from` into `into`, as `query_qp` will show them.
pub(crate) fn merge(into: &mut ibv_qp_attr, from: &ibv_qp_attr, mask: Attributes) {
    type A = Attributes;
    const PSN: u32 = 0x00ff_ffff;
    macro_rules! take {
        ($($attribute:ident => $field:ident),* $(,)?) => {
            $(if mask.contains(A::$attribute) { into.$field = from.$field; })*
        };
    }
    take! {
        ACCESS_FLAGS => qp_access_flags,
        PKEY_INDEX => pkey_index,
        PORT => port_num,
        QKEY => qkey,
        AV => ah_attr,
        PATH_MTU => path_mtu,
        TIMEOUT => timeout,
        RETRY_CNT => retry_cnt,
        RNR_RETRY => rnr_retry,
        MAX_QP_RD_ATOMIC => max_rd_atomic,
        MIN_RNR_TIMER => min_rnr_timer,
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
        PATH_MIG_STATE => path_mig_state,
        DEST_QPN => dest_qp_num,
        EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify,
    }
    // Packet sequence numbers have 24 bits; what is above them is cut off, as devices do.
    if mask.contains(A::RQ_PSN) {
        into.rq_psn = from.rq_psn & PSN;
    }
    if mask.contains(A::SQ_PSN) {
        into.sq_psn = from.sq_psn & PSN;
    }
}

#[cfg(test)]
#[path = "qp_state_tests.rs"]
mod tests;
