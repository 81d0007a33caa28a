//! The halves of queue pairs that the connection manager has connected: the connection is a value
//! of its own, which either half disconnects, and all three end in any order.

use std::os::fd::BorrowedFd;
use std::thread;

use rdma::aio::{self, ConnectionOptions, Driver, DriverOptions, Handle, Listener, Received, Setup};
use rdma::cm::blocking::{Connection, ListenOptions};
use rdma::cm::{ConnOptions, EventChannel};
use rdma::op;
use rdma::transport::Rc;
use rdma::{Context, InitializedQueuePair, OwnedRecvHalf, OwnedSendHalf, ProtectionDomain, QueuePair};
use rdma_tests::cm::{End, address, any_port, available, connect_pair};
use rdma_tests::tasks::{both, drive};
use rdma_tests::{LIMIT, buffer, open, pattern, wait};
use tokio::runtime::Builder;
use tokio::time::timeout;

fn device() -> Option<Context> {
    let context = open().context;
    available(&context).then_some(context)
}

/// One side whose queue pair is split. Each part may be gone.
struct Side {
    end: End,
    connection: Option<Connection>,
    send: Option<OwnedSendHalf>,
    recv: Option<OwnedRecvHalf>,
}

impl Side {
    fn new(end: End, (connection, qp): (Connection, QueuePair<Rc>)) -> Self {
        let (send, recv) = qp.into_split();
        Self { end, connection: Some(connection), send: Some(send), recv: Some(recv) }
    }

    /// Sends a message to the other side.
    fn message(&mut self, to: &mut Self) {
        to.recv.as_mut().unwrap().post(to.end.pd.allocate(64).unwrap(), 1).unwrap();
        let sent = op::send(buffer(&self.end.pd, &pattern(64, 3))).token(2);
        self.send.as_mut().unwrap().post(sent).unwrap();
        assert_eq!(wait(&mut self.end.cq.poller()).token, 2);
        let done = wait(&mut to.end.cq.poller());
        assert_eq!((done.status, done.token), (Ok(()), 1));
        assert!(done.buffer()[..] == pattern(64, 3));
    }

    fn drop_part(&mut self, part: usize) {
        match part {
            0 => drop(self.connection.take()),
            1 => drop(self.send.take()),
            _ => drop(self.recv.take()),
        }
    }

    /// Nothing of the queue pair is left, nor of the memory of its requests.
    fn close(self) {
        let Self { end: End { pd, cq }, connection, send, recv } = self;
        assert!(connection.is_none() && send.is_none() && recv.is_none());
        cq.close().unwrap();
        pd.close().unwrap();
    }
}

fn sides(context: &Context) -> [Side; 2] {
    let (a, b) = (End::new(context), End::new(context));
    let (active, passive) = connect_pair(context, a.qp(), b.qp());
    let [mut a, mut b] = [Side::new(a, active), Side::new(b, passive)];
    // On iWARP the active side sends first.
    a.message(&mut b);
    b.message(&mut a);
    [a, b]
}

#[test]
fn a_connection_and_the_halves_of_its_queue_pair_end_in_any_order() {
    let Some(context) = device() else { return };
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let [mut a, mut b] = sides(&context);
        // Receives that no message takes are in flight when the parts go.
        for side in [&mut a, &mut b] {
            let room = side.end.pd.allocate(64).unwrap();
            side.recv.as_mut().unwrap().post(room, 7).unwrap();
        }
        order.into_iter().for_each(|part| a.drop_part(part));
        let connection = b.connection.as_ref().unwrap();
        assert!(connection.wait_disconnected(Some(LIMIT)).unwrap(), "{order:?}");
        order.into_iter().rev().for_each(|part| b.drop_part(part));
        a.close();
        b.close();
    }
    // No id and no channel is left, which would keep the device open.
    context.close().unwrap();
}

#[test]
fn either_half_disconnects_and_both_learn_of_it() {
    let Some(context) = device() else { return };
    for by_send in [true, false] {
        let [mut a, mut b] = sides(&context);
        for side in [&mut a, &mut b] {
            let room = side.end.pd.allocate(64).unwrap();
            side.recv.as_mut().unwrap().post(room, 7).unwrap();
        }
        let (ours, send, recv) = (a.connection.as_ref().unwrap(), a.send.as_ref().unwrap(), a.recv.as_ref().unwrap());
        let control = if by_send { send.control() } else { recv.control() };
        // The other half is in another thread, which waits for the end.
        thread::scope(|scope| {
            let waiting = scope.spawn(|| ours.wait_disconnected(Some(LIMIT)));
            ours.disconnect(control).unwrap();
            let theirs = b.connection.as_ref().unwrap();
            assert!(theirs.wait_disconnected(Some(LIMIT)).unwrap());
            // The answer. iWARP has ended the connection at both sides.
            let _ended = theirs.disconnect(b.send.as_ref().unwrap().control());
            assert!(waiting.join().unwrap().unwrap());
        });
        for side in [&mut a, &mut b] {
            let done = wait(&mut side.end.cq.poller());
            assert!(done.token == 7 && done.status.is_err(), "{done:?}");
            drop(done);
            (0..3).for_each(|part| side.drop_part(part));
        }
        a.close();
        b.close();
    }
}

#[test]
fn both_halves_may_disconnect_at_the_same_time() {
    let Some(context) = device() else { return };
    for _ in 0..10 {
        let [a, b] = sides(&context);
        let (ours, send, recv) = (a.connection.as_ref().unwrap(), a.send.as_ref().unwrap(), a.recv.as_ref().unwrap());
        let ended = thread::scope(|scope| {
            let one = scope.spawn(|| ours.disconnect(send.control()));
            let two = scope.spawn(|| ours.disconnect(recv.control()));
            [one, two].map(|thread| thread.join().unwrap())
        });
        assert!(ended.iter().any(Result::is_ok), "{ended:?}");
        assert!(b.connection.as_ref().unwrap().wait_disconnected(Some(LIMIT)).unwrap());
        for mut side in [a, b] {
            (0..3).for_each(|part| side.drop_part(part));
            side.close();
        }
    }
}

type Readable = aio::tokio::Readable;

fn watch(fd: BorrowedFd<'_>) -> std::io::Result<Readable> {
    Readable::new(fd)
}

/// A queue pair of a driver, with receives for its futures.
fn prepare(
    pd: &ProtectionDomain,
    handle: &Handle,
    setup: &Setup<'_>,
    receives: usize,
) -> rdma::Result<InitializedQueuePair<Rc>> {
    let mut qp = setup.init(QueuePair::builder(pd).cq(handle.completion_queue()).max_send_wr(4))?;
    for _ in 0..receives {
        handle.post_recv(&mut qp, pd.allocate(64)?)?;
    }
    Ok(qp)
}

async fn next(recv: &mut aio::RecvHalf<Rc>) -> Received {
    timeout(LIMIT, recv.next_received()).await.expect("a message in time").unwrap()
}

#[test]
fn tasks_have_the_halves_of_a_queue_pair_that_was_connected_in_one_await() {
    const TASKS: usize = 4;
    let Some(context) = device() else { return };
    let (driver, handle) = Driver::new(&context, &DriverOptions::new().depth(256)).unwrap();
    let driving = drive(driver);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    for by_requester in [true, false] {
        let pd = context.alloc_pd().unwrap();
        runtime.block_on(async {
            let options = ConnectionOptions::new().context(&context).timeout(LIMIT).parameters(ConnOptions::new());
            let channel = EventChannel::of(&context).unwrap();
            let mut listener =
                Listener::bind(channel, any_port(address(&context)), &ListenOptions::new(), watch).unwrap();
            let to = listener.local_addr();
            let active = aio::connect(to, &options, watch, |setup| prepare(&pd, &handle, setup, 1));
            let passive = async {
                let incoming = listener.next().await.unwrap();
                incoming.accept(&options, watch, |setup| prepare(&pd, &handle, setup, TASKS + 1)).await.unwrap()
            };
            let (active, (mut theirs, their_qp)) = both(active, passive).await;
            let (mut ours, our_qp) = active.unwrap();
            let (send, mut recv) = handle.queue_pair(our_qp).unwrap().into_split();
            let (mut their_send, mut their_recv) = handle.queue_pair(their_qp).unwrap().into_split();
            let requester = send.into_requester();
            // More tasks than the send queue has slots for, and an answer.
            let posts = (0..TASKS).map(|task| {
                let (requester, message) = (requester.clone(), buffer(&pd, &[u8::try_from(task).unwrap(); 64]));
                async move { requester.post(op::send(message)).await.into_memory().unwrap() }
            });
            let mut posts: Vec<_> = posts.map(Box::pin).collect();
            for post in &mut posts {
                timeout(LIMIT, post).await.expect("a completion in time");
            }
            drop(posts);
            let mut seen = Vec::new();
            for _ in 0..TASKS {
                seen.push(next(&mut their_recv).await.take_buffer().unwrap()[0]);
            }
            assert_eq!(seen, [0, 1, 2, 3]);
            let answer = their_send.start(op::send(buffer(&pd, b"answer"))).unwrap();
            assert_eq!(next(&mut recv).await.byte_len(), 6);
            assert!(timeout(LIMIT, answer).await.expect("a completion in time").into_memory().is_ok());

            // The one side ends by a handle of its tasks, and the other side by a half.
            ours.disconnect(if by_requester { requester.control() } else { recv.control() }).unwrap();
            timeout(LIMIT, theirs.disconnected()).await.expect("a disconnect in time").unwrap();
            let _ended = theirs.disconnect(their_recv.control());
            timeout(LIMIT, ours.disconnected()).await.expect("an answer in time").unwrap();
            // The receive that is left ends, and the queue pair takes no more requests.
            timeout(LIMIT, their_recv.shutdown()).await.expect("an end in time").unwrap();
            let mut left = next(&mut their_recv).await;
            assert!(left.status().is_err() && left.take_buffer().is_some());
            timeout(LIMIT, recv.shutdown()).await.expect("an end in time").unwrap();
            assert!(requester.start(op::send_inline(b"")).is_err());
            if by_requester {
                drop((ours, requester, recv, their_send, their_recv, theirs));
            } else {
                drop((their_recv, theirs, their_send, recv, ours, requester));
            }
        });
        pd.close().unwrap();
    }
    drop(handle);
    driving.join();
}
