use std::future::Future;
use std::time::{Duration, Instant};

use super::*;
use crate::element::Reduction;
use crate::pattern::Pattern;
use crate::tensor::Tensor;
use crate::testing::{LONG, ranks};
use crate::transport::Transport;

#[test]
fn tensors_come_back_reduced_while_the_caller_does_something_else() {
    ranks(2, Transport::Auto, |mut comm, group| {
        let (count, mut pending) = (50_000, Vec::new());
        let tensors: Vec<Tensor<f32>> = (0..6).map(|_| comm.allocate(count).unwrap()).collect();
        let queue = Queue::new(comm).unwrap();
        for (seed, tensor) in tensors.into_iter().enumerate() {
            let pattern = Pattern::<f32>::new(2, seed, Reduction::Sum);
            tensor.fill(0..count, |start, elements| pattern.fill(group.rank(), start, elements)).unwrap();
            pending.push((pattern, queue.all_reduce_in_place((tensor, count), Reduction::Sum)));
        }
        // Nobody calls the library, and still all operations end.
        let deadline = Instant::now() + LONG;
        while !pending.iter_mut().all(|(_, pending)| pending.is_done()) {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        for (pattern, pending) in pending {
            let (tensor, _) = pending.wait().unwrap();
            let mut wrong = 0;
            tensor.for_each(0..count, |start, elements| wrong += pattern.count_wrong(start, elements)).unwrap();
            assert_eq!(wrong, 0);
        }
        queue.finish().unwrap().barrier().unwrap();
    });
}

#[test]
fn another_tensor_is_written_before_all_ranks_have_begun() {
    ranks(2, Transport::Auto, |mut comm, group| {
        let count = 50_000;
        let [one, other] = [(); 2].map(|()| comm.allocate::<f32>(count).unwrap());
        let queue = Queue::new(comm).unwrap();
        if group.rank() == 1 {
            // Begins only once the other rank has written its tensor.
            group.barrier("the other tensor").unwrap();
        }
        let pending = queue.all_reduce_in_place((one, count), Reduction::Sum);
        if group.rank() == 0 {
            std::thread::sleep(Duration::from_millis(20));
            other.fill(0..count, |_, elements| elements.fill(1.0)).unwrap();
            group.barrier("the other tensor").unwrap();
        }
        pending.wait().unwrap();
        queue.finish().unwrap().barrier().unwrap();
    });
}

/// Communication takes as long as computation, or longer. One after the other, they take twice
/// the time.
#[test]
fn communication_hides_behind_computation() {
    const STEP: Duration = Duration::from_millis(20);
    const STEPS: u32 = 8;
    ranks(2, Transport::Auto, |comm, group| {
        let queue = Queue::new(comm).unwrap();
        let mut is_hidden = false;
        // A busy machine may stop a rank for longer than the steps take.
        for _ in 0..20 {
            let started = Instant::now();
            let slow_barrier = |comm: &mut Communicator| {
                std::thread::sleep(STEP);
                comm.barrier()
            };
            let pending: Vec<_> = (0..STEPS)
                .map(|_| {
                    std::thread::sleep(STEP);
                    queue.start(slow_barrier)
                })
                .collect();
            pending.into_iter().for_each(|pending| pending.wait().unwrap());
            let is_fast = started.elapsed() < STEPS * STEP * 2;
            is_hidden = group.all_gather("the times", &is_fast).unwrap().contains(&true);
            if is_hidden {
                break;
            }
        }
        assert!(is_hidden);
    });
}

#[test]
fn a_failure_ends_all_later_operations() {
    ranks(2, Transport::Auto, |comm, _| {
        let queue = Queue::new(comm).unwrap();
        let good = queue.start(|_| Ok(5));
        let bad = queue.start(|_| Err::<(), _>(Error::new("no paper")));
        let later = queue.start(Communicator::barrier);
        assert_eq!(good.wait().unwrap(), 5);
        assert_eq!(bad.wait().unwrap_err().to_string(), "no paper");
        assert_eq!(later.wait().unwrap_err().to_string(), "no paper");
        queue.finish().unwrap().barrier().unwrap();
    });
}

#[test]
fn dropping_a_queue_does_not_wait() {
    ranks(2, Transport::Auto, |comm, group| {
        let queue = Queue::new(comm).unwrap();
        let (release, hold) = channel::<()>();
        let (began, begins) = channel();
        let first = queue.start(move |_| {
            began.send(()).unwrap();
            Ok(hold.recv().is_err())
        });
        let second = queue.start(Communicator::barrier);
        // This handle goes first; its operation would come last.
        drop(queue.start(Communicator::barrier));
        begins.recv().unwrap();
        drop(queue);
        drop(release);
        assert!(first.wait().unwrap());
        assert!(second.wait().unwrap_err().to_string().contains("did not run"));
        group.barrier("a test").unwrap();
    });
}

#[test]
fn a_started_operation_is_awaited_or_waited_for_until_a_moment() {
    ranks(2, Transport::Auto, |comm, group| {
        let queue = Queue::new(comm).unwrap();
        let (open, gate) = channel::<()>();
        let held = queue.start(move |_| gate.recv().map_err(|error| Error::new(error.to_string())));
        let sums = queue.start(|comm| {
            let mut sums = [1.5_f32; 10];
            comm.all_reduce_in_place(&mut sums, Reduction::Sum)?;
            Ok(sums)
        });
        let held = held.wait_for(Duration::from_millis(1)).unwrap_err();
        let sums = sums.wait_until(Instant::now()).unwrap_err();
        group.barrier("the gate").unwrap();
        assert!(!held.is_done() && !sums.is_done());
        open.send(()).unwrap();
        assert_eq!(block_on(sums).unwrap(), [3.0; 10]);
        held.wait_for(Duration::MAX).unwrap().unwrap();
        queue.finish().unwrap();
    });
}

/// Memory of every kind, in every operation.
#[test]
fn every_operation_is_started_by_name() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(3, transport, |mut comm, group| {
            let (rank, world) = (comm.rank(), comm.ranks());
            let own = u32::try_from(rank).unwrap();
            let tensors = [(); 2].map(|()| comm.allocate::<u32>(6).unwrap());
            let shared = Arc::new(comm.allocate::<u32>(3).unwrap());
            shared.write(0, &[own, own, own]).unwrap();
            let queue = Queue::new(comm).unwrap();
            let [input, output] = tensors;
            input.write(0, &[own; 6]).unwrap();
            let six = |tensor: &Tensor<u32>| {
                let mut all = [0; 6];
                tensor.read(0, &mut all).unwrap();
                all
            };

            // All are started before any is waited for.
            let reduced = queue.all_reduce(input, output, Reduction::Sum);
            let shared_in_place = queue.all_reduce_in_place(Arc::clone(&shared), Reduction::Max);
            let scaled = queue.all_reduce_scaled([own, 1], 2, Reduction::Sum);
            let gathered = queue.all_gather(vec![own], vec![0; world]);
            let mut blocks = vec![0; world].into_boxed_slice();
            blocks[rank] = own;
            let gathered_in_place = queue.all_gather_in_place(blocks);
            let counts = vec![1, 0, 2];
            let gathered_v = queue.all_gather_v(vec![own; counts[rank]], vec![9; 3], counts.clone());
            let scattered = queue.reduce_scatter(Box::new([1, 2, 3]), [0], Reduction::Sum);
            let scattered_in_place = queue.reduce_scatter_in_place([1, 2, 3], Reduction::Sum);
            let scattered_v = queue.reduce_scatter_v([1, 2, 3], vec![0; counts[rank]], counts.clone(), Reduction::Prod);
            let to_all = queue.all_to_all([own, own + 10, own + 20], [0; 3]);
            let to_all_in_place = queue.all_to_all_in_place([own, own + 10, own + 20]);
            let to_all_v = queue.all_to_all_v(vec![own; world * (rank + 1)], vec![rank + 1; world], vec![0; 6]);
            let broadcast = queue.broadcast([own, 7], 2);
            let reduced_at = queue.reduce(&[1_u32, 2][..], vec![0; if rank == 1 { 2 } else { 0 }], 1, Reduction::Sum);
            let gathered_at = queue.gather([own], vec![0; if rank == 0 { 3 } else { 0 }], 0);
            let gathered_v_at =
                queue.gather_v(vec![own; counts[rank]], vec![0; if rank == 0 { 3 } else { 0 }], counts.clone(), 0);
            let source: Arc<[u32]> = if rank == 2 { [4, 5, 6].into() } else { [].into() };
            let scattered_from = queue.scatter(Arc::clone(&source), [0], 2);
            let scattered_v_from = queue.scatter_v(source, vec![0; counts[rank]], counts.clone(), 2);
            let barrier = queue.barrier();
            let (left, right) = ((rank + world - 1) % world, (rank + 1) % world);
            let exchanged = queue.exchange(vec![([own, 1], right)], vec![([0; 2], left)]);
            let message = match rank {
                0 => (Some(queue.send([3, 4], 1)), None),
                1 => (Some(queue.recv([0, 0], 0)), None),
                _ => (None, None),
            };
            let any = match rank {
                1 => (Some(queue.recv_any(vec![0; 2])), message.1),
                _ => (None, (rank == 2).then(|| queue.send([own, 5], 1))),
            };

            let (input, output) = reduced.wait().unwrap();
            assert_eq!((six(&input), six(&output)), ([own; 6], [3; 6]));
            shared_in_place.wait().unwrap();
            let mut largest = [0; 3];
            shared.read(0, &mut largest).unwrap();
            assert_eq!(largest, [2; 3]);
            assert_eq!(scaled.wait().unwrap(), [6, 6]);
            assert_eq!(gathered.wait().unwrap(), (vec![own], vec![0, 1, 2]));
            assert_eq!(*gathered_in_place.wait().unwrap(), [0, 1, 2]);
            assert_eq!(gathered_v.wait().unwrap().1, [0, 2, 2]);
            assert_eq!(scattered.wait().unwrap().1, [3 * (own + 1)]);
            assert_eq!(scattered_in_place.wait().unwrap()[rank], 3 * (own + 1));
            assert_eq!(scattered_v.wait().unwrap().1, [&[1][..], &[], &[8, 27]][rank]);
            let came = [10 * own, 10 * own + 1, 10 * own + 2];
            assert_eq!(to_all.wait().unwrap().1, came);
            assert_eq!(to_all_in_place.wait().unwrap(), came);
            let ((_, came), counts) = to_all_v.wait().unwrap();
            assert_eq!((came, counts), (vec![0, 1, 1, 2, 2, 2], vec![1, 2, 3]));
            assert_eq!(broadcast.wait().unwrap(), [2, 7]);
            assert_eq!(reduced_at.wait().unwrap().1, [&[][..], &[3, 6], &[]][rank]);
            assert_eq!(gathered_at.wait().unwrap().1, [&[0, 1, 2][..], &[], &[]][rank]);
            assert_eq!(gathered_v_at.wait().unwrap().1, [&[0, 2, 2][..], &[], &[]][rank]);
            assert_eq!(scattered_from.wait().unwrap().1, [own + 4]);
            assert_eq!(scattered_v_from.wait().unwrap().1, [&[4][..], &[], &[5, 6]][rank]);
            barrier.wait().unwrap();
            let (_, received) = exchanged.wait().unwrap();
            assert_eq!(received, [([u32::try_from(left).unwrap(), 1], left)]);
            if let Some(message) = message.0 {
                assert_eq!(message.wait().unwrap(), [3, 4]);
            }
            if let Some(received) = any.0 {
                assert_eq!(received.wait().unwrap(), (vec![2, 5], 2));
            }
            if let Some(sent) = any.1 {
                assert_eq!(sent.wait().unwrap(), [own, 5]);
            }
            queue.finish().unwrap();
            group.barrier("the operations").unwrap();
        });
    }
}

#[test]
fn memory_comes_back_whatever_happens() {
    ranks(2, Transport::Auto, |comm, _| {
        let queue = Queue::new(comm).unwrap();
        let failed = queue.all_to_all(vec![1_u8; 3], vec![2_u8; 3]).wait().unwrap_err();
        assert_eq!(failed.to_string(), "3 elements cannot be divided among 2 ranks");
        assert_eq!(failed.memory, Some((vec![1; 3], vec![2; 3])));
        // An operation that an earlier one keeps from running.
        let later = queue.broadcast(vec![4_u8], 0).wait().unwrap_err();
        assert_eq!((later.to_string(), later.memory), (failed.error.to_string(), Some(vec![4])));
        // One that the end of the queue keeps from running.
        let (began, begins) = channel();
        let (release, hold) = channel::<()>();
        let queue = Queue::new(queue.finish().unwrap()).unwrap();
        let first = queue.start_with(vec![5_u8], move |_, _| {
            began.send(()).unwrap();
            Ok(hold.recv().is_err())
        });
        let never = queue.broadcast(vec![6_u8], 0);
        begins.recv().unwrap();
        drop(queue);
        drop(release);
        assert_eq!(first.wait().unwrap(), (vec![5], true));
        let never = never.wait().unwrap_err();
        assert!(never.to_string().contains("did not run"), "{never}");
        assert_eq!(never.memory, Some(vec![6]));
    });
}

#[test]
fn a_panic_is_said_and_gives_the_memory_back() {
    ranks(2, Transport::Auto, |comm, _| {
        let queue = Queue::new(comm).unwrap();
        let bad = queue.start_with(vec![1], |_, memory: &mut Vec<u8>| -> Result<(), Error> {
            memory.push(2);
            panic!("no {}", "paper");
        });
        let bad = bad.wait().unwrap_err();
        let text = "a started operation panicked: no paper";
        assert_eq!((bad.to_string().as_str(), bad.memory), (text, Some(vec![1, 2])));
        let later = queue.broadcast(vec![3_u8], 0).wait().unwrap_err();
        assert_eq!((later.to_string().as_str(), later.memory), (text, Some(vec![3])));
        assert_eq!(queue.finish().unwrap_err().to_string(), text);
    });
}

#[test]
fn the_queues_own_thread_does_not_wait_for_itself() {
    ranks(2, Transport::Auto, |comm, group| {
        let queue = Queue::new(comm).unwrap();
        let (give, take) = channel::<Started<[u8; 1]>>();
        let (give_other, take_other) = channel::<Pending<()>>();
        let (give_done, take_done) = channel::<Pending<u8>>();
        let done = queue.start(|_| Ok(7_u8));
        let waiting = queue.start(move |_| {
            assert_eq!(take_done.recv().unwrap().wait().unwrap(), 7);
            let refused = take.recv().unwrap().wait().unwrap_err();
            assert!(refused.memory.is_none());
            let other = take_other.recv().unwrap().wait_for(Duration::MAX).unwrap().unwrap_err();
            assert_eq!(refused.to_string(), other.to_string());
            Ok((refused.error.kind(), refused.to_string()))
        });
        give_done.send(done).unwrap();
        give.send(queue.broadcast([1], 0)).unwrap();
        give_other.send(queue.barrier()).unwrap();
        let (kind, text) = waiting.wait().unwrap();
        assert_eq!(kind, crate::ErrorKind::InvalidInput);
        assert!(text.contains("waits for a later one of the same queue"), "{text}");
        queue.finish().unwrap();
        group.barrier("the operations").unwrap();
    });
}

#[test]
fn a_result_is_taken_once() {
    ranks(2, Transport::Auto, |comm, _| {
        let queue = Queue::new(comm).unwrap();
        let mut pending = queue.broadcast([5_u8], 0);
        while !pending.is_done() {
            std::thread::yield_now();
        }
        let polled = block_on(std::future::poll_fn(|context| std::pin::Pin::new(&mut pending).poll(context)));
        assert_eq!(polled.unwrap(), [5]);
        assert!(pending.wait().unwrap_err().to_string().contains("was taken before"));
    });
}

/// Runs a future on this thread, which its waker unparks.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}
