use std::future::Future;
use std::time::{Duration, Instant};

use super::*;
use crate::pattern::Pattern;
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
            pending.push((pattern, queue.all_reduce(tensor, count, Reduction::Sum)));
        }
        // Nobody calls the library, and still all operations end.
        let deadline = Instant::now() + LONG;
        while !pending.iter_mut().all(|(_, pending)| pending.is_done()) {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        for (pattern, pending) in pending {
            let tensor = pending.wait().unwrap();
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
        let pending = queue.all_reduce(one, count, Reduction::Sum);
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
