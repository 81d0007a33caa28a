//! The halves of queue pairs, each in a thread of its own.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use rdma::op::{self, Opcode};
use rdma::{OwnedRecvHalf, OwnedSendHalf, Poller, ProtectionDomain};
use rdma_tests::{LIMIT, Options, Side, buffer, pair, pattern, wait};

/// Messages in each direction.
const MESSAGES: u8 = 200;
/// Receives of each side.
const DEPTH: u8 = 8;
/// Longest message.
const LONGEST: usize = 5000;

/// The content of a message.
fn content(number: u8, seed: u8) -> Vec<u8> {
    pattern(usize::from(number) * 25 % LONGEST, number ^ seed)
}

/// Sends all messages, each once the peer has posted a receive for it.
fn send(half: &mut OwnedSendHalf, poller: &mut Poller, pd: &ProtectionDomain, posted: &Receiver<()>, seed: u8) {
    let mut in_flight = 0;
    for number in 0..MESSAGES {
        posted.recv_timeout(LIMIT).expect("the peer posts receives");
        // No more than the queue holds.
        if in_flight == DEPTH {
            assert_eq!(wait(poller).status, Ok(()));
            in_flight -= 1;
        }
        half.post(op::send(buffer(pd, &content(number, seed))).token(number.into())).unwrap();
        in_flight += 1;
    }
    for _ in 0..in_flight {
        assert_eq!(wait(poller).status, Ok(()));
    }
}

/// Receives all messages, and tells the peer of each receive that is posted.
fn receive(half: &mut OwnedRecvHalf, poller: &mut Poller, pd: &ProtectionDomain, posts: &Sender<()>, seed: u8) {
    let mut left = MESSAGES;
    let mut post = |half: &mut OwnedRecvHalf, memory| {
        if left > 0 {
            left -= 1;
            half.post(memory, 1).unwrap();
            // A peer that has sent all listens no longer.
            let _ended = posts.send(());
        }
    };
    for _ in 0..DEPTH {
        post(half, pd.allocate(LONGEST).unwrap());
    }
    for number in 0..MESSAGES {
        let done = wait(poller);
        assert_eq!((done.status, done.opcode), (Ok(()), Opcode::Recv));
        let (len, memory) = (done.byte_len, done.buffer());
        assert!(memory[..len] == content(number, seed), "message {number}");
        post(half, memory);
    }
}

#[test]
fn halves_send_and_receive_in_threads_of_their_own() {
    let (a, b) = pair(Options { depth: DEPTH.into(), ..Options::default() });
    let (to_b, for_b) = mpsc::channel();
    let (to_a, for_a) = mpsc::channel();
    let mut threads = Vec::new();
    for (side, posts, posted, seeds) in [(a, to_a, for_b, [1, 2]), (b, to_b, for_a, [2, 1])] {
        let Side { context, pd, qp, mut sends, mut receives, connection } = side;
        let (mut sending, mut receiving) = qp.into_split();
        let domain = pd.clone();
        let sent = thread::spawn(move || {
            send(&mut sending, &mut sends, &domain, &posted, seeds[0]);
            (sending, sends)
        });
        let received = thread::spawn(move || {
            receive(&mut receiving, &mut receives, &pd, &posts, seeds[1]);
            (receiving, receives, pd)
        });
        threads.push((sent, received, connection, context));
    }
    let mut whole = Vec::new();
    for (sent, received, connection, context) in threads {
        let ((sending, sends), (receiving, receives, pd)) = (sent.join().unwrap(), received.join().unwrap());
        whole.push((sending, receiving, sends, receives, pd, connection, context));
    }
    // One queue pair is made whole, and the other is used by its halves: both still work.
    let (sending, receiving, mut sends, _receives, pd, _connection, _context) = whole.remove(0);
    let mut a = sending.reunite(receiving).unwrap();
    let (sending, mut receiving, _sends, mut receives, of_b, _kept, _open) = whole.remove(0);
    receiving.post(of_b.allocate(64).unwrap(), 9).unwrap();
    a.post_send(op::send(buffer(&pd, b"last"))).unwrap();
    let last = wait(&mut receives);
    assert_eq!((last.status, last.token), (Ok(()), 9));
    assert_eq!(&last.buffer()[..4], b"last");
    assert_eq!(wait(&mut sends).status, Ok(()));
    // A half ends the queue pair for both; the other, in another thread, gets its memory back.
    receiving.post(of_b.allocate(64).unwrap(), 10).unwrap();
    let ending = thread::spawn(move || {
        sending.control().set_error().unwrap();
        sending
    });
    let flushed = wait(&mut receives);
    assert_eq!((flushed.status.is_err(), flushed.token, flushed.buffers.len()), (true, 10, 1));
    let sending = ending.join().unwrap();
    // The first that ends leaves the queue pair to the second.
    thread::spawn(move || drop(receiving)).join().unwrap();
    drop(sending);
}
