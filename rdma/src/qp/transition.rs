//! Why a change of state was refused: the specification's tables of attributes for reliable connections and datagrams.
//!
//! Providers answer every mistake with EINVAL. The table (InfiniBand specification, volume 1, table 91; the kernel has
//! the same) says what was missing or too much.

use super::attr::{QpAttrMask as M, QpState};
use crate::error::ErrorKind;

/// Attributes that a change needs, and those that it allows.
fn table(from: QpState, to: QpState) -> Option<(M, M)> {
    let rts = M::CUR_STATE | M::ALT_PATH | M::ACCESS_FLAGS | M::MIN_RNR_TIMER | M::PATH_MIG_STATE | M::RATE_LIMIT;
    Some(match (from, to) {
        (_, QpState::RESET | QpState::ERR) => (M::empty(), M::empty()),
        (QpState::RESET, QpState::INIT) => (M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS, M::empty()),
        (QpState::INIT, QpState::INIT) => (M::empty(), M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (QpState::INIT, QpState::RTR) => (
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
            M::ALT_PATH | M::ACCESS_FLAGS | M::PKEY_INDEX,
        ),
        (QpState::RTR, QpState::RTS) => {
            (M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC, rts)
        }
        (QpState::RTS | QpState::SQD, QpState::RTS) => (M::empty(), rts),
        (QpState::RTS, QpState::SQD) => (M::empty(), M::EN_SQD_ASYNC_NOTIFY),
        (QpState::SQD, QpState::SQD) => (
            M::empty(),
            M::PORT
                | M::AV
                | M::TIMEOUT
                | M::RETRY_CNT
                | M::RNR_RETRY
                | M::MAX_QP_RD_ATOMIC
                | M::MAX_DEST_RD_ATOMIC
                | M::ALT_PATH
                | M::ACCESS_FLAGS
                | M::PKEY_INDEX
                | M::MIN_RNR_TIMER
                | M::PATH_MIG_STATE,
        ),
        _ => return None,
    })
}

/// The same for datagrams.
fn datagram_table(from: QpState, to: QpState) -> Option<(M, M)> {
    let key = M::QKEY | M::CUR_STATE;
    Some(match (from, to) {
        (_, QpState::RESET | QpState::ERR) => (M::empty(), M::empty()),
        (QpState::RESET, QpState::INIT) => (M::PKEY_INDEX | M::PORT | M::QKEY, M::empty()),
        (QpState::INIT, QpState::INIT) => (M::empty(), M::PKEY_INDEX | M::PORT | M::QKEY),
        (QpState::INIT, QpState::RTR) => (M::empty(), M::PKEY_INDEX | M::QKEY),
        (QpState::RTR, QpState::RTS) => (M::SQ_PSN, key),
        (QpState::RTS | QpState::SQD | QpState::SQE, QpState::RTS) => (M::empty(), key),
        (QpState::RTS, QpState::SQD) => (M::empty(), M::EN_SQD_ASYNC_NOTIFY),
        (QpState::SQD, QpState::SQD) => (M::empty(), M::PKEY_INDEX | M::QKEY),
        _ => return None,
    })
}

/// What is wrong with a refused change; none if the attributes are the right ones, so that a value must be wrong.
pub(super) fn explain(datagram: bool, from: QpState, to: Option<QpState>, mask: M) -> Option<ErrorKind> {
    let to = to.unwrap_or(from);
    let table = if datagram { datagram_table } else { table };
    let Some((required, optional)) = table(from, to) else {
        return Some(ErrorKind::InvalidTransition { from, to, missing: M::empty(), not_allowed: M::empty() });
    };
    let missing = required - mask;
    let not_allowed = mask - required - optional - M::STATE - M::CUR_STATE;
    (!missing.is_empty() || !not_allowed.is_empty()).then_some(ErrorKind::InvalidTransition {
        from,
        to,
        missing,
        not_allowed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_extra_attributes_are_named() {
        let kind = explain(false, QpState::INIT, Some(QpState::RTR), M::STATE | M::AV | M::PATH_MTU | M::QKEY).unwrap();
        let text = kind.to_string();
        assert_eq!(
            text,
            "from INIT to RTR: missing RQ_PSN | MIN_RNR_TIMER | MAX_DEST_RD_ATOMIC | DEST_QPN: not allowed QKEY"
        );
    }

    #[test]
    fn a_change_that_does_not_exist_is_named() {
        let text = explain(false, QpState::RESET, Some(QpState::RTS), M::STATE).unwrap().to_string();
        assert_eq!(text, "from RESET to RTS: there is no such transition");
    }

    #[test]
    fn datagrams_have_a_table_of_their_own() {
        let text = explain(true, QpState::RESET, Some(QpState::INIT), M::STATE | M::PORT | M::ACCESS_FLAGS).unwrap();
        assert_eq!(text.to_string(), "from RESET to INIT: missing PKEY_INDEX | QKEY: not allowed ACCESS_FLAGS");
        assert_eq!(explain(true, QpState::INIT, Some(QpState::RTR), M::STATE), None);
        assert_eq!(explain(true, QpState::RTR, Some(QpState::RTS), M::STATE | M::SQ_PSN), None);
        assert!(explain(true, QpState::INIT, Some(QpState::RTR), M::STATE | M::AV).is_some());
    }

    #[test]
    fn the_right_attributes_are_not_blamed() {
        let mask = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
        assert_eq!(explain(false, QpState::RESET, Some(QpState::INIT), mask), None);
        assert_eq!(explain(false, QpState::RTS, Some(QpState::ERR), M::STATE), None);
        assert_eq!(explain(false, QpState::RTS, None, M::MIN_RNR_TIMER), None);
    }
}
