//! Checks of `ibv_modify_qp`: first the transition and its attributes against the table in
//! `rdma-sys`, which matches Linux's, then the values of the attributes against the device's
//! limits.

use rdma_sys::{QpTransition, ibv_access_flags, ibv_mig_state, ibv_qp_attr, ibv_qp_state, ibv_qp_type};

pub(crate) use rdma_sys::QpAttrMask as Attributes;

use super::Errno;

/// Why a `modify_qp` was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The value of `qp_state` or `cur_qp_state` is not a state.
    NoSuchState,
    /// `cur_qp_state` is not the actual state of the queue pair.
    WrongCurrentState,
    /// The table has no such transition for the queue pair's type.
    NoTransition,
    /// The transition requires attributes that the mask lacks.
    Missing(Attributes),
    /// The mask has attributes that the transition does not allow.
    NotAllowed(Attributes),
    /// The value of this attribute is outside the device's range.
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

/// Checks the mask and the states against the table and returns the next state.
pub(crate) fn check_transition(
    qp_type: ibv_qp_type,
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
    let QpTransition { required, optional } = QpTransition::of(qp_type, actual, next).ok_or(Refusal::NoTransition)?;
    let missing = required - mask;
    if !missing.is_empty() {
        return Err(Refusal::Missing(missing));
    }
    let extra = mask - required - optional - Attributes::STATE;
    if !extra.is_empty() {
        return Err(Refusal::NotAllowed(extra));
    }
    Ok(next)
}

/// The device's limits for the values of attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) ports: u8,
    pub(crate) pkeys: u16,
    pub(crate) gids: usize,
    /// The largest `ibv_mtu` that the port supports.
    pub(crate) max_mtu: u32,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    /// Whether every address needs a GID, as on RoCE.
    pub(crate) global_only: bool,
}

/// The access flags of a queue pair: those of regions, because programs give their queue pairs the
/// flags of their regions, and devices take the remote rights of them and ignore the others.
const QP_ACCESS: u32 = rdma_sys::IBV_ACCESS_OPTIONAL_RANGE
    | ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0
    | ibv_access_flags::IBV_ACCESS_MW_BIND.0
    | ibv_access_flags::IBV_ACCESS_ZERO_BASED.0
    | ibv_access_flags::IBV_ACCESS_ON_DEMAND.0
    | ibv_access_flags::IBV_ACCESS_HUGETLB.0
    | ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL.0
    | ibv_access_flags::IBV_ACCESS_FLUSH_PERSISTENT.0;

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
    // The port has no automatic path migration: a path is always `MIGRATED` and has no alternate.
    if mask.contains(A::ALT_PATH) {
        return Err(Refusal::Unsupported(A::ALT_PATH));
    }
    if mask.contains(A::PATH_MIG_STATE) && attr.path_mig_state != ibv_mig_state::IBV_MIG_MIGRATED {
        return Err(Refusal::Unsupported(A::PATH_MIG_STATE));
    }
    Ok(())
}

/// Copies the attributes that the mask names from `from` to `into`, for `query_qp` to return.
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
    // Packet sequence numbers have 24 bits; devices ignore the others.
    if mask.contains(A::RQ_PSN) {
        into.rq_psn = from.rq_psn & PSN;
    }
    if mask.contains(A::SQ_PSN) {
        into.sq_psn = from.sq_psn & PSN;
    }
}

#[cfg(test)]
mod tests;
