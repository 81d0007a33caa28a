//! The table against Linux's `qp_state_table` (drivers/infiniband/core/verbs.c), written out cell
//! by cell, and against ibv_modify_qp(3) where that is installed.

use rdma_sys::{QpAttrMask, QpTransition, ibv_qp_state as S, ibv_qp_type as T};
use std::process::Command;

type A = QpAttrMask;

const STATES: [S; 7] =
    [S::IBV_QPS_RESET, S::IBV_QPS_INIT, S::IBV_QPS_RTR, S::IBV_QPS_RTS, S::IBV_QPS_SQD, S::IBV_QPS_SQE, S::IBV_QPS_ERR];

/// From, to, required, optional.
type Cell = (S, S, &'static str, &'static str);

const RC: &[Cell] = &[
    (S::IBV_QPS_RESET, S::IBV_QPS_INIT, "PKEY_INDEX PORT ACCESS_FLAGS", ""),
    (S::IBV_QPS_INIT, S::IBV_QPS_INIT, "", "PKEY_INDEX PORT ACCESS_FLAGS"),
    (
        S::IBV_QPS_INIT,
        S::IBV_QPS_RTR,
        "AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER",
        "ALT_PATH ACCESS_FLAGS PKEY_INDEX",
    ),
    (
        S::IBV_QPS_RTR,
        S::IBV_QPS_RTS,
        "TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC",
        "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE",
    ),
    (S::IBV_QPS_RTS, S::IBV_QPS_RTS, "", "CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER"),
    (S::IBV_QPS_RTS, S::IBV_QPS_SQD, "", "EN_SQD_ASYNC_NOTIFY"),
    (S::IBV_QPS_SQD, S::IBV_QPS_RTS, "", "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE"),
    (
        S::IBV_QPS_SQD,
        S::IBV_QPS_SQD,
        "",
        "PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX \
         MIN_RNR_TIMER PATH_MIG_STATE",
    ),
];

const UC: &[Cell] = &[
    (S::IBV_QPS_RESET, S::IBV_QPS_INIT, "PKEY_INDEX PORT ACCESS_FLAGS", ""),
    (S::IBV_QPS_INIT, S::IBV_QPS_INIT, "", "PKEY_INDEX PORT ACCESS_FLAGS"),
    (S::IBV_QPS_INIT, S::IBV_QPS_RTR, "AV PATH_MTU DEST_QPN RQ_PSN", "ALT_PATH ACCESS_FLAGS PKEY_INDEX"),
    (S::IBV_QPS_RTR, S::IBV_QPS_RTS, "SQ_PSN", "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE"),
    (S::IBV_QPS_RTS, S::IBV_QPS_RTS, "", "CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE"),
    (S::IBV_QPS_RTS, S::IBV_QPS_SQD, "", "EN_SQD_ASYNC_NOTIFY"),
    (S::IBV_QPS_SQD, S::IBV_QPS_RTS, "", "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE"),
    (S::IBV_QPS_SQD, S::IBV_QPS_SQD, "", "AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE"),
    (S::IBV_QPS_SQE, S::IBV_QPS_RTS, "", "CUR_STATE ACCESS_FLAGS"),
];

const UD: &[Cell] = &[
    (S::IBV_QPS_RESET, S::IBV_QPS_INIT, "PKEY_INDEX PORT QKEY", ""),
    (S::IBV_QPS_INIT, S::IBV_QPS_INIT, "", "PKEY_INDEX PORT QKEY"),
    (S::IBV_QPS_INIT, S::IBV_QPS_RTR, "", "PKEY_INDEX QKEY"),
    (S::IBV_QPS_RTR, S::IBV_QPS_RTS, "SQ_PSN", "CUR_STATE QKEY"),
    (S::IBV_QPS_RTS, S::IBV_QPS_RTS, "", "CUR_STATE QKEY"),
    (S::IBV_QPS_RTS, S::IBV_QPS_SQD, "", "EN_SQD_ASYNC_NOTIFY"),
    (S::IBV_QPS_SQD, S::IBV_QPS_RTS, "", "CUR_STATE QKEY"),
    (S::IBV_QPS_SQD, S::IBV_QPS_SQD, "", "PKEY_INDEX QKEY"),
    (S::IBV_QPS_SQE, S::IBV_QPS_RTS, "", "CUR_STATE QKEY"),
];

const RAW_PACKET: &[Cell] = &[
    (S::IBV_QPS_RESET, S::IBV_QPS_INIT, "PORT", ""),
    (S::IBV_QPS_INIT, S::IBV_QPS_INIT, "", ""),
    (S::IBV_QPS_INIT, S::IBV_QPS_RTR, "", ""),
    (S::IBV_QPS_RTR, S::IBV_QPS_RTS, "", "RATE_LIMIT"),
    (S::IBV_QPS_RTS, S::IBV_QPS_RTS, "", "RATE_LIMIT"),
    (S::IBV_QPS_RTS, S::IBV_QPS_SQD, "", ""),
    (S::IBV_QPS_SQD, S::IBV_QPS_RTS, "", ""),
    (S::IBV_QPS_SQD, S::IBV_QPS_SQD, "", ""),
    (S::IBV_QPS_SQE, S::IBV_QPS_RTS, "", ""),
];

const XRC_SEND: &[Cell] = &[
    (S::IBV_QPS_RESET, S::IBV_QPS_INIT, "PKEY_INDEX PORT ACCESS_FLAGS", ""),
    (S::IBV_QPS_INIT, S::IBV_QPS_INIT, "", "PKEY_INDEX PORT ACCESS_FLAGS"),
    (S::IBV_QPS_INIT, S::IBV_QPS_RTR, "AV PATH_MTU DEST_QPN RQ_PSN", "ALT_PATH ACCESS_FLAGS PKEY_INDEX"),
    (
        S::IBV_QPS_RTR,
        S::IBV_QPS_RTS,
        "TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC",
        "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE",
    ),
    (S::IBV_QPS_RTS, S::IBV_QPS_RTS, "", "CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE"),
    (S::IBV_QPS_RTS, S::IBV_QPS_SQD, "", "EN_SQD_ASYNC_NOTIFY"),
    (S::IBV_QPS_SQD, S::IBV_QPS_RTS, "", "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE"),
    (
        S::IBV_QPS_SQD,
        S::IBV_QPS_SQD,
        "",
        "PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE",
    ),
];

const XRC_RECV: &[Cell] = &[
    (S::IBV_QPS_RESET, S::IBV_QPS_INIT, "PKEY_INDEX PORT ACCESS_FLAGS", ""),
    (S::IBV_QPS_INIT, S::IBV_QPS_INIT, "", "PKEY_INDEX PORT ACCESS_FLAGS"),
    (
        S::IBV_QPS_INIT,
        S::IBV_QPS_RTR,
        "AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER",
        "ALT_PATH ACCESS_FLAGS PKEY_INDEX",
    ),
    (S::IBV_QPS_RTR, S::IBV_QPS_RTS, "TIMEOUT SQ_PSN", "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE"),
    (S::IBV_QPS_RTS, S::IBV_QPS_RTS, "", "CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER"),
    (S::IBV_QPS_RTS, S::IBV_QPS_SQD, "", "EN_SQD_ASYNC_NOTIFY"),
    (S::IBV_QPS_SQD, S::IBV_QPS_RTS, "", "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE"),
    (
        S::IBV_QPS_SQD,
        S::IBV_QPS_SQD,
        "",
        "PORT AV TIMEOUT MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE",
    ),
];

const TYPES: [(T, &str, &[Cell]); 6] = [
    (T::IBV_QPT_RC, "RC", RC),
    (T::IBV_QPT_UC, "UC", UC),
    (T::IBV_QPT_UD, "UD", UD),
    (T::IBV_QPT_RAW_PACKET, "RAW_PACKET", RAW_PACKET),
    (T::IBV_QPT_XRC_SEND, "XRC_SEND", XRC_SEND),
    (T::IBV_QPT_XRC_RECV, "XRC_RECV", XRC_RECV),
];

fn set(names: &str) -> A {
    names.split_whitespace().map(|name| A::from_name(name).unwrap_or_else(|| panic!("{name}"))).collect()
}

#[test]
fn every_cell() {
    for (qp_type, name, cells) in TYPES {
        for from in STATES {
            for to in STATES {
                let leaves = matches!(to, S::IBV_QPS_RESET | S::IBV_QPS_ERR);
                let expected = if leaves {
                    let exists = (from, to) != (S::IBV_QPS_RESET, S::IBV_QPS_ERR);
                    exists.then_some(QpTransition { required: A::empty(), optional: A::empty() })
                } else {
                    let cell = cells.iter().find(|cell| (cell.0, cell.1) == (from, to));
                    cell.map(|cell| QpTransition { required: set(cell.2), optional: set(cell.3) })
                };
                assert_eq!(QpTransition::of(qp_type, from, to), expected, "{name}: {from:?} -> {to:?}");
            }
        }
    }
}

#[test]
fn states_and_types_outside_the_table_have_no_transition() {
    for (from, to) in [(7, 0), (7, 6), (u32::MAX, 0), (0, 7), (3, u32::MAX)] {
        assert_eq!(QpTransition::of(T::IBV_QPT_RC, S(from), S(to)), None, "{from} -> {to}");
    }
    assert_eq!(QpTransition::of(T::IBV_QPT_DRIVER, S::IBV_QPS_RESET, S::IBV_QPS_INIT), None);
    assert_eq!(QpTransition::of(T(77), S::IBV_QPS_RTS, S::IBV_QPS_ERR), None);
}

/// The attributes that ibv_modify_qp(3) demands for one next state of one type.
fn documented(page: &str, qp_type: &str, next: &str) -> A {
    let start = page.find(&format!("IBV_QPT_{qp_type}:")).unwrap_or_else(|| panic!("no table of {qp_type}"));
    let table =
        page[start..].lines().skip(1).take_while(|line| !line.starts_with("For QP") && !line.starts_with("If "));
    let mut row = String::new();
    let mut inside = false;
    for line in table {
        let first = line.split_whitespace().next().unwrap_or_default();
        inside = first == next || inside && first.starts_with("IBV_");
        if inside {
            row.push_str(line);
        }
    }
    assert!(row.contains("IBV_QP_STATE"), "{qp_type} to {next}: {page}");
    let names = row.split([' ', ',']).filter_map(|word| word.strip_prefix("IBV_QP_")).filter(|name| *name != "STATE");
    names.map(|name| A::from_name(name).unwrap_or_else(|| panic!("{name}"))).collect()
}

#[test]
fn the_manual_page_demands_the_same() {
    let page = "/usr/share/man/man3/ibv_modify_qp.3.gz";
    if !std::path::Path::new(page).exists() {
        return rdma_test_support::skip(&format!("{page} is not installed"));
    }
    let output = Command::new("zcat").arg(page).output().expect("zcat");
    let text = String::from_utf8(output.stdout).expect("ASCII").replace("\\fB", "").replace("\\fR", "");
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.starts_with('.')).collect();
    let page = lines.join("\n");
    for (qp_type, name, _) in &TYPES[..4] {
        for (from, to, next) in [
            (S::IBV_QPS_RESET, S::IBV_QPS_INIT, "Init"),
            (S::IBV_QPS_INIT, S::IBV_QPS_RTR, "RTR"),
            (S::IBV_QPS_RTR, S::IBV_QPS_RTS, "RTS"),
        ] {
            let transition = QpTransition::of(*qp_type, from, to).unwrap();
            assert_eq!(transition.required, documented(&page, name, next), "{name} to {next}");
        }
    }
}

#[test]
fn masks_print_their_names() {
    assert_eq!((A::STATE | A::AV).to_string(), "STATE | AV");
    assert_eq!((A::AV | A::from_bits_retain(1 << 30)).to_string(), "AV | 0x40000000");
}
