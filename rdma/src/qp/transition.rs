//! Explains why a change of state was refused. Providers report every mistake as EINVAL; the table
//! in `rdma-sys` names the attributes that are missing or not allowed.

use rdma_sys::{QpTransition, ibv_qp_state, ibv_qp_type};

use crate::error::ErrorKind;
use crate::types::{QpAttrMask as M, QpState};

/// Returns the attributes that are missing or not allowed. `None` if the mask is right: then a
/// value must be wrong.
pub(super) fn explain(qp_type: ibv_qp_type, from: QpState, to: Option<QpState>, mask: M) -> Option<ErrorKind> {
    let to = to.unwrap_or(from);
    let transition = QpTransition::of(qp_type, ibv_qp_state(from.as_raw()), ibv_qp_state(to.as_raw()));
    let (missing, not_allowed) = match transition {
        Some(QpTransition { required, optional }) => (required - mask, mask - required - optional - M::STATE),
        None => (M::empty(), M::empty()),
    };
    let refused = transition.is_none() || !missing.is_empty() || !not_allowed.is_empty();
    refused.then_some(ErrorKind::InvalidTransition { from, to, missing, not_allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RC: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;
    const UC: ibv_qp_type = ibv_qp_type::IBV_QPT_UC;
    const UD: ibv_qp_type = ibv_qp_type::IBV_QPT_UD;

    #[test]
    fn missing_and_extra_attributes_are_named() {
        let kind = explain(RC, QpState::INIT, Some(QpState::RTR), M::STATE | M::AV | M::PATH_MTU | M::QKEY).unwrap();
        let text = kind.to_string();
        assert_eq!(
            text,
            "from INIT to RTR: missing RQ_PSN | MIN_RNR_TIMER | MAX_DEST_RD_ATOMIC | DEST_QPN: not allowed QKEY"
        );
    }

    #[test]
    fn a_change_that_does_not_exist_is_named() {
        let text = explain(RC, QpState::RESET, Some(QpState::RTS), M::STATE).unwrap().to_string();
        assert_eq!(text, "from RESET to RTS: there is no such transition");
    }

    #[test]
    fn datagrams_have_a_table_of_their_own() {
        let text = explain(UD, QpState::RESET, Some(QpState::INIT), M::STATE | M::PORT | M::ACCESS_FLAGS).unwrap();
        assert_eq!(text.to_string(), "from RESET to INIT: missing PKEY_INDEX | QKEY: not allowed ACCESS_FLAGS");
        assert_eq!(explain(UD, QpState::INIT, Some(QpState::RTR), M::STATE), None);
        assert_eq!(explain(UD, QpState::RTR, Some(QpState::RTS), M::STATE | M::SQ_PSN), None);
        assert!(explain(UD, QpState::INIT, Some(QpState::RTR), M::STATE | M::AV).is_some());
    }

    #[test]
    fn unreliable_connections_have_a_table_of_their_own() {
        let mask = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        assert_eq!(explain(UC, QpState::INIT, Some(QpState::RTR), mask), None);
        let text = explain(UC, QpState::INIT, Some(QpState::RTR), mask | M::MIN_RNR_TIMER).unwrap().to_string();
        assert_eq!(text, "from INIT to RTR: not allowed MIN_RNR_TIMER");
    }

    #[test]
    fn a_reset_queue_pair_cannot_go_to_the_error_state() {
        for qp_type in [RC, UC, UD] {
            let text = explain(qp_type, QpState::RESET, Some(QpState::ERR), M::STATE).unwrap().to_string();
            assert_eq!(text, "from RESET to ERR: there is no such transition");
        }
    }

    #[test]
    fn attributes_that_the_specification_does_not_allow_are_named() {
        let required = M::STATE | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
        let text = explain(RC, QpState::RTR, Some(QpState::RTS), required | M::RATE_LIMIT).unwrap().to_string();
        assert_eq!(text, "from RTR to RTS: not allowed RATE_LIMIT");
        let text = explain(RC, QpState::RTS, Some(QpState::SQD), M::STATE | M::CUR_STATE).unwrap().to_string();
        assert_eq!(text, "from RTS to SQD: not allowed CUR_STATE");
    }

    #[test]
    fn the_right_attributes_are_not_blamed() {
        let mask = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
        assert_eq!(explain(RC, QpState::RESET, Some(QpState::INIT), mask), None);
        assert_eq!(explain(RC, QpState::RTS, Some(QpState::ERR), M::STATE), None);
        assert_eq!(explain(RC, QpState::RTS, None, M::MIN_RNR_TIMER), None);
    }
}
