//! Every change of a queue pair's state, with each missing or surplus attribute, against the table
//! of `rdma-sys`: the device accepts the changes of the table and refuses all others, and the error
//! names the attributes.

use std::time::Instant;

use rdma::transport::Transport;
use rdma::{
    AckTimeout, Context, ErrorKind, Mtu, Path, QpAttr, QpAttrMask as M, QpState, QueuePair, RemoteAccess, RnrTimer,
    Route,
};
use rdma_sys::{QpTransition, ibv_qp_state, ibv_qp_type};
use rdma_tests::{LIMIT, open, skipped_on_iwarp};

/// The states that a test can reach; only a failed send queue leads to SQE.
const STATES: [QpState; 6] = [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD, QpState::ERR];

/// Attribute values that the device accepts.
struct Settings {
    port: u8,
    path: Path,
}

type Setter = fn(QpAttr, &Settings, QpState) -> QpAttr;

/// The attributes that the safe crate can set; `ALT_PATH`, `CAP` and `RATE_LIMIT` are not among
/// them.
const SETTERS: [(M, Setter); 17] = [
    (M::CUR_STATE, |attr, _, from| attr.current_state(from)),
    (M::EN_SQD_ASYNC_NOTIFY, |attr, _, _| attr.notify_drained(false)),
    (M::ACCESS_FLAGS, |attr, _, _| attr.access(RemoteAccess::WRITE)),
    (M::PKEY_INDEX, |attr, _, _| attr.pkey_index(0)),
    (M::PORT, |attr, settings, _| attr.port(settings.port)),
    (M::QKEY, |attr, _, _| attr.qkey(1)),
    (M::AV, |attr, settings, _| attr.path(settings.path)),
    (M::PATH_MTU, |attr, _, _| attr.path_mtu(Mtu::MTU_1024)),
    (M::TIMEOUT, |attr, _, _| attr.timeout(AckTimeout::from_code(14).unwrap())),
    (M::RETRY_CNT, |attr, _, _| attr.retry_count(6)),
    (M::RNR_RETRY, |attr, _, _| attr.rnr_retry(6)),
    (M::RQ_PSN, |attr, _, _| attr.rq_psn(1)),
    (M::MAX_QP_RD_ATOMIC, |attr, _, _| attr.max_rd_atomic(1)),
    (M::MIN_RNR_TIMER, |attr, _, _| attr.min_rnr_timer(RnrTimer::from_code(12).unwrap())),
    (M::SQ_PSN, |attr, _, _| attr.sq_psn(1)),
    (M::MAX_DEST_RD_ATOMIC, |attr, _, _| attr.max_dest_rd_atomic(1)),
    (M::DEST_QPN, |attr, _, _| attr.dest_qpn(17)),
];

/// The attributes that a test can set.
fn settable() -> M {
    SETTERS.iter().fold(M::empty(), |all, (mask, _)| all | *mask)
}

fn attributes(from: QpState, to: QpState, mask: M, settings: &Settings) -> QpAttr {
    let set = SETTERS.iter().filter(|(attribute, _)| mask.contains(*attribute));
    set.fold(QpAttr::to(to), |attr, (_, setter)| setter(attr, settings, from))
}

fn table(qp_type: ibv_qp_type, from: QpState, to: QpState) -> Option<QpTransition> {
    QpTransition::of(qp_type, ibv_qp_state(from.as_raw()), ibv_qp_state(to.as_raw()))
}

/// Attempts a change with these attributes on a fresh queue pair in the state `from`.
fn change<T: Transport>(
    mut qp: QueuePair<T>,
    qp_type: ibv_qp_type,
    settings: &Settings,
    [from, to]: [QpState; 2],
    mask: M,
) -> rdma::Result<()> {
    let way: &[QpState] = match from {
        QpState::RESET => &[],
        QpState::INIT => &[QpState::INIT],
        QpState::RTR => &[QpState::INIT, QpState::RTR],
        QpState::RTS => &[QpState::INIT, QpState::RTR, QpState::RTS],
        QpState::SQD => &[QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD],
        _ => &[QpState::INIT, QpState::ERR],
    };
    let mut at = QpState::RESET;
    for &next in way {
        let required = table(qp_type, at, next).unwrap().required;
        qp.modify(&attributes(at, next, required, settings)).unwrap();
        at = next;
    }
    let asked = attributes(from, to, mask, settings);
    let deadline = Instant::now() + LIMIT;
    loop {
        let result = qp.modify(&asked);
        // A send queue may need a moment to drain, during which the device refuses a change that
        // the table allows.
        let drains = from == QpState::SQD && result.is_err_and(|error| error.kind() == ErrorKind::InvalidInput);
        if !drains || Instant::now() > deadline {
            return result;
        }
        std::thread::yield_now();
    }
}

/// Compares every change of one queue pair type with the table; returns the number of refusals.
fn compare<T: Transport>(qp_type: ibv_qp_type, settings: &Settings, fresh: impl Fn() -> QueuePair<T>) -> usize {
    let mut refused = 0;
    for [from, to] in STATES.iter().flat_map(|&from| STATES.map(|to| [from, to])) {
        let transition = table(qp_type, from, to);
        let (required, optional) = transition.map_or((M::empty(), M::empty()), |row| (row.required, row.optional));
        let attempt = |mask| change(fresh(), qp_type, settings, [from, to], mask);
        let mut refuse = |mask, missing, not_allowed| {
            let context = format!("{qp_type:?}: {from} to {to} with {mask}");
            let error = attempt(mask).expect_err(&context);
            let expected = ErrorKind::InvalidTransition { from, to, missing, not_allowed };
            assert_eq!(error.kind(), expected, "{context}");
            refused += 1;
        };
        if transition.is_none() {
            refuse(M::empty(), M::empty(), M::empty());
            continue;
        }
        for mask in std::iter::once(M::empty()).chain((optional & settable()).iter()) {
            attempt(required | mask).unwrap_or_else(|error| panic!("{qp_type:?}: {from} to {to} with {mask}: {error}"));
        }
        required.iter().for_each(|missing| refuse(required - missing, missing, M::empty()));
        let others = settable() - required - optional;
        others.iter().for_each(|other| refuse(required | other, M::empty(), other));
    }
    refused
}

/// The open device, if it has the states of InfiniBand, with values for all attributes.
fn device() -> Option<(Context, Settings)> {
    let opened = open();
    if skipped_on_iwarp(&opened.context, "iWARP has its own states") {
        return None;
    }
    let entry = opened.context.best_gid(opened.port).unwrap().unwrap();
    let source_index = u8::try_from(entry.index).unwrap();
    let route = Route::new(entry.gid).source_index(source_index).hop_limit(64);
    let path = Path::new(opened.port).route(route);
    Some((opened.context, Settings { port: opened.port, path }))
}

#[test]
fn a_device_accepts_the_changes_of_the_table_and_no_others() {
    let Some((context, settings)) = device() else { return };
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(8).unwrap();
    let connected = || QueuePair::builder(&pd).cq(&cq).max_send_wr(1).max_recv_wr(1).build().unwrap().into_manual();
    let refused = compare(ibv_qp_type::IBV_QPT_RC, &settings, connected);
    // There are 18 pairs of states without a transition; each of the other rows refuses most of 17
    // attributes.
    assert!(refused > 250, "{refused}");
    let datagrams = || QueuePair::datagram(&pd).cq(&cq).max_send_wr(1).max_recv_wr(1).build().unwrap().into_manual();
    compare(ibv_qp_type::IBV_QPT_UD, &settings, datagrams);
}

#[test]
fn an_unreliable_connection_changes_by_the_table() {
    let Some((context, settings)) = device() else { return };
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(8).unwrap();
    let unreliable = || QueuePair::unreliable(&pd).cq(&cq).max_send_wr(1).max_recv_wr(1).build().unwrap().into_manual();
    compare(ibv_qp_type::IBV_QPT_UC, &settings, unreliable);
}
