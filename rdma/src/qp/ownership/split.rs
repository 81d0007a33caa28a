//! Owned halves: their ends in any order, on any thread, or never.

use std::thread;

use super::*;

impl Rig {
    /// The owned halves, each with a request in flight.
    fn split(self) -> (OwnedSendHalf, OwnedRecvHalf) {
        let (sent, received) = (self.buffer(16), self.buffer(16));
        let (mut send, mut recv) = self.qp.into_split();
        send.post(op::send(sent).token(1)).unwrap();
        recv.post(received, 2).unwrap();
        (send, recv)
    }
}

fn destroyed() -> usize {
    testing::calls().iter().filter(|&&call| call == "destroy_qp").count()
}

#[test]
fn the_second_half_to_go_ends_the_queue_pair() {
    for send_is_first in [true, false] {
        let before = destroyed();
        let (send, recv) = Rig::new().split();
        assert_eq!(regions(), 2);
        let (first, second): (Box<dyn Send>, Box<dyn Send>) =
            if send_is_first { (Box::new(send), Box::new(recv)) } else { (Box::new(recv), Box::new(send)) };
        drop(first);
        assert_eq!((regions(), destroyed()), (2, before));
        drop(second);
        assert_eq!((regions(), destroyed()), (0, before + 1));
    }
}

#[test]
fn halves_are_looked_at_in_two_threads_and_post_in_turn() {
    const ROUNDS: u64 = if cfg!(miri) { 10 } else { 100 };
    const LOOKS: u32 = if cfg!(miri) { 2 } else { 20 };
    let Rig { pd, cq, mut poller, qp } = Rig::new();
    let raw = qp.as_raw().expose_provenance();
    let (mut send, mut recv) = qp.into_split();
    let mut memory = pd.allocate(2 * 8).unwrap();
    let (mut sent, mut received) = (memory.split_to(8), memory);
    // The test provider is of one thread, so this one posts.
    for round in 0..ROUNDS {
        let calls = thread::scope(|scope| {
            let one = scope.spawn(|| (0..LOOKS).map(|_| send.room()).min());
            let two = scope.spawn(|| (0..LOOKS).map(|_| recv.room()).min());
            (one.join().unwrap(), two.join().unwrap())
        });
        assert_eq!(calls, (Some(SEND_DEPTH), Some(RECV_DEPTH)));
        send.post(op::send(sent).token(2 * round)).unwrap();
        recv.post(received, 2 * round + 1).unwrap();
        let posted = testing::posted(std::ptr::with_exposed_provenance_mut(raw));
        for posted in &posted[posted.len() - 2..] {
            testing::complete(cq.as_raw(), wc(posted.wr_id, ibv_wc_status::IBV_WC_SUCCESS, 0));
        }
        let mut next = || {
            let mut completion = poller.poll().unwrap().unwrap();
            (completion.token(), completion.take_buffer().unwrap())
        };
        let (first, second) = (next(), next());
        assert_eq!((first.0, second.0), (2 * round, 2 * round + 1));
        (sent, received) = (first.1, second.1);
    }
}

#[test]
fn reunited_halves_are_the_queue_pair_again() {
    let (send, recv) = Rig::new().split();
    let qpn = send.control().qpn();
    let mut qp = send.reunite(recv).unwrap();
    assert_eq!((qp.qpn(), regions()), (qpn, 2));
    // A reset needs both halves: it frees the memory of both.
    qp.modify(&QpAttr::to(QpState::RESET)).unwrap();
    assert_eq!(regions(), 0);
    qp.close().unwrap();
}

#[test]
fn halves_of_two_queue_pairs_come_back() {
    let ((send, recv), (other_send, other_recv)) = (Rig::new().split(), Rig::new().split());
    let error = send.reunite(other_recv).unwrap_err();
    assert!(error.to_string().contains("two queue pairs"), "{error}");
    let ReuniteError { send, recv: other_recv } = error;
    drop(send.reunite(recv).unwrap());
    assert_eq!(regions(), 2);
    drop(other_send.reunite(other_recv).unwrap());
    assert_eq!(regions(), 0);
}

#[test]
#[cfg(not(miri))]
#[allow(clippy::mem_forget, reason = "the attack")]
fn a_forgotten_half_keeps_the_queue_pair_and_its_memory() {
    let before = destroyed();
    let (send, recv) = Rig::new().split();
    std::mem::forget(send);
    drop(recv);
    assert_eq!((regions(), destroyed()), (2, before));
}

#[test]
fn either_half_flushes_both() {
    let (send, recv) = Rig::new().split();
    send.control().set_error().unwrap();
    assert_eq!(recv.control().state().unwrap(), QpState::ERR);
    assert_eq!((send.depth(), recv.depth()), (SEND_DEPTH, RECV_DEPTH));
}

#[test]
fn a_half_outlives_every_other_handle() {
    let Rig { pd, cq, poller, qp } = Rig::new();
    let context = qp.context();
    let buffer = pd.allocate(16).unwrap();
    let (mut send, recv) = qp.into_split();
    drop((pd, cq, poller, context, recv));
    send.post(op::send(buffer)).unwrap();
    assert_eq!(regions(), 1);
    // The last handle goes on another thread.
    drop(send);
    assert_eq!(regions(), 0);
}

#[test]
fn halves_go_to_any_thread() {
    fn is_free<T: Send + Sync + 'static>() {}
    is_free::<OwnedSendHalf>();
    is_free::<OwnedRecvHalf<Ud>>();
    is_free::<ReuniteError<OwnedSendHalf, OwnedRecvHalf>>();
}
