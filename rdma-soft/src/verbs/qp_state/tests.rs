//! Tests of the order of the checks and of each check of a value. The table of transitions is
//! tested in `rdma-sys`, where it is defined.

use super::*;
use rdma_sys::ibv_mtu;

type A = Attributes;
type S = ibv_qp_state;

const RC: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;

fn attr(from: S, to: S) -> ibv_qp_attr {
    ibv_qp_attr { qp_state: to, cur_qp_state: from, ..Default::default() }
}

fn check(from: S, to: S, mask: A) -> Result<S, Refusal> {
    check_transition(RC, from, &attr(from, to), mask)
}

#[test]
fn refused_attributes_are_named() {
    let (reset, init) = (S::IBV_QPS_RESET, S::IBV_QPS_INIT);
    let required = A::STATE | A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS;
    assert_eq!(check(reset, init, required), Ok(init));
    assert_eq!(check(reset, init, required - A::PORT), Err(Refusal::Missing(A::PORT)));
    assert_eq!(check(reset, init, required | A::RATE_LIMIT), Err(Refusal::NotAllowed(A::RATE_LIMIT)));
    let unknown = A::from_bits_retain(1 << 28);
    assert_eq!(check(reset, init, required | unknown), Err(Refusal::NotAllowed(unknown)));
    assert_eq!(check(reset, S::IBV_QPS_ERR, A::STATE), Err(Refusal::NoTransition));
}

#[test]
fn without_the_state_attribute_the_state_stays() {
    let stays = check(S::IBV_QPS_RTS, S::IBV_QPS_RESET, A::MIN_RNR_TIMER);
    assert_eq!(stays, Ok(S::IBV_QPS_RTS));
    assert_eq!(check(S::IBV_QPS_RTR, S::IBV_QPS_RTS, A::SQ_PSN), Err(Refusal::NoTransition));
}

#[test]
fn the_assumed_state_must_be_the_actual_one() {
    let mut attr = attr(S::IBV_QPS_RTR, S::IBV_QPS_RTS);
    let mask = A::CUR_STATE | A::MIN_RNR_TIMER;
    let actual = S::IBV_QPS_RTS;
    assert_eq!(check_transition(RC, actual, &attr, mask), Err(Refusal::WrongCurrentState));
    attr.cur_qp_state = ibv_qp_state(9);
    assert_eq!(check_transition(RC, actual, &attr, mask), Err(Refusal::NoSuchState));
    attr.cur_qp_state = actual;
    assert_eq!(check_transition(RC, actual, &attr, mask), Ok(actual));
    attr.qp_state = S::IBV_QPS_UNKNOWN;
    assert_eq!(check_transition(RC, actual, &attr, A::STATE), Err(Refusal::NoSuchState));
}

const LIMITS: Limits =
    Limits { ports: 1, pkeys: 1, gids: 2, max_mtu: 5, max_rd_atomic: 16, max_dest_rd_atomic: 8, global_only: true };

fn good_values() -> ibv_qp_attr {
    let mut attr = ibv_qp_attr {
        port_num: 1,
        path_mtu: ibv_mtu::IBV_MTU_4096,
        qp_access_flags: QP_ACCESS,
        dest_qp_num: 0x00ff_fffe,
        timeout: 31,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: 31,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 8,
        ..Default::default()
    };
    attr.ah_attr.port_num = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.sgid_index = 1;
    attr
}

#[test]
fn values_are_checked_only_where_the_mask_names_them() {
    type Spoil = fn(&mut ibv_qp_attr);
    let everything = A::all() - A::ALT_PATH;
    assert_eq!(check_values(&good_values(), everything, &LIMITS), Ok(()));
    let spoilt: [(A, Spoil); 16] = [
        (A::PORT, |a| a.port_num = 0),
        (A::PORT, |a| a.port_num = 2),
        (A::PKEY_INDEX, |a| a.pkey_index = 1),
        (A::ACCESS_FLAGS, |a| a.qp_access_flags = 1 << 10),
        (A::AV, |a| a.ah_attr.port_num = 2),
        (A::AV, |a| a.ah_attr.is_global = 0),
        (A::AV, |a| a.ah_attr.grh.sgid_index = 2),
        (A::PATH_MTU, |a| a.path_mtu = ibv_mtu(0)),
        (A::PATH_MTU, |a| a.path_mtu = ibv_mtu(6)),
        (A::DEST_QPN, |a| a.dest_qp_num = 1 << 24),
        (A::TIMEOUT, |a| a.timeout = 32),
        (A::RETRY_CNT, |a| a.retry_cnt = 8),
        (A::RNR_RETRY, |a| a.rnr_retry = 8),
        (A::MIN_RNR_TIMER, |a| a.min_rnr_timer = 32),
        (A::MAX_QP_RD_ATOMIC, |a| a.max_rd_atomic = 17),
        (A::MAX_DEST_RD_ATOMIC, |a| a.max_dest_rd_atomic = 9),
    ];
    for (attribute, spoil) in spoilt {
        let mut attr = good_values();
        spoil(&mut attr);
        assert_eq!(check_values(&attr, everything, &LIMITS), Err(Refusal::BadValue(attribute)));
        assert_eq!(check_values(&attr, everything - attribute, &LIMITS), Ok(()));
    }
    assert_eq!(check_values(&good_values(), A::ALT_PATH, &LIMITS), Err(Refusal::Unsupported(A::ALT_PATH)));
    assert_eq!(Errno::from(Refusal::Unsupported(A::ALT_PATH)), Errno::OPNOTSUPP);
    assert_eq!(Errno::from(Refusal::NoTransition), Errno::INVAL);
}

#[test]
fn an_infiniband_path_may_be_local() {
    let mut attr = good_values();
    attr.ah_attr.is_global = 0;
    attr.ah_attr.grh.sgid_index = 200;
    assert_eq!(check_values(&attr, A::AV, &Limits { global_only: false, ..LIMITS }), Ok(()));
}

#[test]
fn merging_takes_what_the_mask_names_and_cuts_sequence_numbers() {
    let mut shown = ibv_qp_attr::default();
    let asked = ibv_qp_attr { timeout: 14, retry_cnt: 3, sq_psn: 0xff12_3456, rq_psn: 7, ..Default::default() };
    merge(&mut shown, &asked, A::TIMEOUT | A::SQ_PSN);
    assert_eq!((shown.timeout, shown.retry_cnt, shown.sq_psn, shown.rq_psn), (14, 0, 0x12_3456, 0));
}
