//! The table against the specification's text, written out a second time and in another shape: one line per cell.

use super::*;
use rdma_sys::ibv_mtu;

type A = Attributes;
type S = ibv_qp_state;

const STATES: [S; 7] =
    [S::IBV_QPS_RESET, S::IBV_QPS_INIT, S::IBV_QPS_RTR, S::IBV_QPS_RTS, S::IBV_QPS_SQD, S::IBV_QPS_SQE, S::IBV_QPS_ERR];

fn set(names: &str) -> A {
    names.split_whitespace().fold(A::NONE, |set, name| {
        let &(attribute, _) = A::NAMES.iter().find(|(_, known)| *known == name).unwrap_or_else(|| panic!("{name}"));
        set | attribute
    })
}

/// (from, to, required, optional) of reliable connections.
const RC: &[(u32, u32, &str, &str)] = &[
    (0, 0, "", ""),
    (0, 1, "PKEY_INDEX PORT ACCESS_FLAGS", ""),
    (1, 0, "", ""),
    (1, 1, "", "PKEY_INDEX PORT ACCESS_FLAGS"),
    (1, 2, "AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER", "ALT_PATH ACCESS_FLAGS PKEY_INDEX"),
    (1, 6, "", ""),
    (2, 0, "", ""),
    (
        2,
        3,
        "TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC",
        "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE",
    ),
    (2, 6, "", ""),
    (3, 0, "", ""),
    (3, 3, "", "CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER"),
    (3, 4, "", "EN_SQD_ASYNC_NOTIFY"),
    (3, 6, "", ""),
    (4, 0, "", ""),
    (4, 3, "", "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE"),
    (
        4,
        4,
        "",
        "PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX \
         MIN_RNR_TIMER PATH_MIG_STATE",
    ),
    (4, 6, "", ""),
    (5, 0, "", ""),
    (5, 6, "", ""),
    (6, 0, "", ""),
    (6, 6, "", ""),
];

const UC: &[(u32, u32, &str, &str)] = &[
    (0, 0, "", ""),
    (0, 1, "PKEY_INDEX PORT ACCESS_FLAGS", ""),
    (1, 0, "", ""),
    (1, 1, "", "PKEY_INDEX PORT ACCESS_FLAGS"),
    (1, 2, "AV PATH_MTU DEST_QPN RQ_PSN", "ALT_PATH ACCESS_FLAGS PKEY_INDEX"),
    (1, 6, "", ""),
    (2, 0, "", ""),
    (2, 3, "SQ_PSN", "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE"),
    (2, 6, "", ""),
    (3, 0, "", ""),
    (3, 3, "", "CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE"),
    (3, 4, "", "EN_SQD_ASYNC_NOTIFY"),
    (3, 6, "", ""),
    (4, 0, "", ""),
    (4, 3, "", "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE"),
    (4, 4, "", "AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE"),
    (4, 6, "", ""),
    (5, 0, "", ""),
    (5, 3, "", "CUR_STATE ACCESS_FLAGS"),
    (5, 6, "", ""),
    (6, 0, "", ""),
    (6, 6, "", ""),
];

const UD: &[(u32, u32, &str, &str)] = &[
    (0, 0, "", ""),
    (0, 1, "PKEY_INDEX PORT QKEY", ""),
    (1, 0, "", ""),
    (1, 1, "", "PKEY_INDEX PORT QKEY"),
    (1, 2, "", "PKEY_INDEX QKEY"),
    (1, 6, "", ""),
    (2, 0, "", ""),
    (2, 3, "SQ_PSN", "CUR_STATE QKEY"),
    (2, 6, "", ""),
    (3, 0, "", ""),
    (3, 3, "", "CUR_STATE QKEY"),
    (3, 4, "", "EN_SQD_ASYNC_NOTIFY"),
    (3, 6, "", ""),
    (4, 0, "", ""),
    (4, 3, "", "CUR_STATE QKEY"),
    (4, 4, "", "PKEY_INDEX QKEY"),
    (4, 6, "", ""),
    (5, 0, "", ""),
    (5, 3, "", "CUR_STATE QKEY"),
    (5, 6, "", ""),
    (6, 0, "", ""),
    (6, 6, "", ""),
];

fn attr(from: S, to: S) -> ibv_qp_attr {
    ibv_qp_attr { qp_state: to, cur_qp_state: from, ..Default::default() }
}

fn check(transport: Transport, from: S, to: S, mask: A) -> Result<S, Refusal> {
    check_transition(transport, from, &attr(from, to), mask)
}

#[test]
fn every_cell_and_every_attribute() {
    for (transport, cells) in [(Transport::Rc, RC), (Transport::Uc, UC), (Transport::Ud, UD)] {
        for from in STATES {
            for to in STATES {
                check_cell(transport, cells, from, to);
            }
        }
    }
}

fn check_cell(transport: Transport, cells: &[(u32, u32, &str, &str)], from: S, to: S) {
    let Some(&(_, _, required, optional)) = cells.iter().find(|cell| (cell.0, cell.1) == (from.0, to.0)) else {
        let refused = check(transport, from, to, A::STATE);
        assert_eq!(refused, Err(Refusal::NoTransition), "{transport:?} {from:?} -> {to:?}");
        return;
    };
    let (required, optional) = (set(required), set(optional));
    assert_eq!(check(transport, from, to, A::STATE | required), Ok(to), "{transport:?} {from:?} -> {to:?}");
    assert_eq!(check(transport, from, to, A::STATE | required | optional), Ok(to));
    for &(attribute, name) in A::NAMES {
        let context = format!("{transport:?} {from:?} -> {to:?}, {name}");
        if attribute == A::STATE {
            continue;
        }
        if required.contains(attribute) {
            let without = A::STATE | (required & !attribute);
            assert_eq!(check(transport, from, to, without), Err(Refusal::Missing(attribute)), "{context}");
        } else if !optional.contains(attribute) {
            let with = A::STATE | required | attribute;
            assert_eq!(check(transport, from, to, with), Err(Refusal::NotAllowed(attribute)), "{context}");
        }
    }
    let unknown = A::from_bits(1 << 28);
    assert_eq!(check(transport, from, to, A::STATE | required | unknown), Err(Refusal::NotAllowed(unknown)));
}

#[test]
fn without_the_state_attribute_the_state_stays() {
    let stays = check(Transport::Rc, S::IBV_QPS_RTS, S::IBV_QPS_RESET, A::MIN_RNR_TIMER);
    assert_eq!(stays, Ok(S::IBV_QPS_RTS));
    assert_eq!(check(Transport::Rc, S::IBV_QPS_RTR, S::IBV_QPS_RTS, A::SQ_PSN), Err(Refusal::NoTransition));
}

#[test]
fn the_assumed_state_must_be_the_actual_one() {
    let mut attr = attr(S::IBV_QPS_RTR, S::IBV_QPS_RTS);
    let mask = A::CUR_STATE | A::MIN_RNR_TIMER;
    let actual = S::IBV_QPS_RTS;
    assert_eq!(check_transition(Transport::Rc, actual, &attr, mask), Err(Refusal::WrongCurrentState));
    attr.cur_qp_state = ibv_qp_state(9);
    assert_eq!(check_transition(Transport::Rc, actual, &attr, mask), Err(Refusal::NoSuchState));
    attr.cur_qp_state = actual;
    assert_eq!(check_transition(Transport::Rc, actual, &attr, mask), Ok(actual));
    attr.qp_state = S::IBV_QPS_UNKNOWN;
    assert_eq!(check_transition(Transport::Rc, actual, &attr, A::STATE), Err(Refusal::NoSuchState));
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
    let everything = set(
        "PORT PKEY_INDEX ACCESS_FLAGS AV PATH_MTU DEST_QPN TIMEOUT RETRY_CNT RNR_RETRY MIN_RNR_TIMER MAX_QP_RD_ATOMIC \
         MAX_DEST_RD_ATOMIC PATH_MIG_STATE SQ_PSN RQ_PSN",
    );
    assert_eq!(check_values(&good_values(), everything, &LIMITS), Ok(()));
    let spoilt: [(A, Spoil); 16] = [
        (A::PORT, |a| a.port_num = 0),
        (A::PORT, |a| a.port_num = 2),
        (A::PKEY_INDEX, |a| a.pkey_index = 1),
        (A::ACCESS_FLAGS, |a| a.qp_access_flags = 1 << 6),
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
        assert_eq!(check_values(&attr, everything & !attribute, &LIMITS), Ok(()));
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

#[test]
fn masks_print_their_names() {
    assert_eq!(format!("{:?}", A::STATE | A::AV), "STATE | AV");
    assert_eq!(format!("{:?}", A::AV | A::from_bits(1 << 30)), "AV | 0x40000000");
    assert_eq!(format!("{:?}", A::NONE), "0x0");
}
