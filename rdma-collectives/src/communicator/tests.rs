use super::*;
use crate::operation::{Executor, Request};
use crate::schedule::step::{Place, Source, Span, Step};
use crate::schedule::{Algorithm, Collective, Job, build};
use crate::testing::{ranks, start_tuned, tuning};
use crate::transport::Transport;
use crate::wait::Wait;

/// Positions and lengths whose bytes are more than a `usize` holds, for elements of four bytes.
const HUGE: [usize; 4] = [1 << 62, (1 << 62) + 1, usize::MAX / 4 + 1, usize::MAX];

#[test]
fn elements_beyond_the_address_space_are_in_no_tensor() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(2, transport, |mut comm, group| {
            let tensor = comm.allocate::<f32>(16).unwrap();
            let before = [7.0; 16];
            tensor.write(0, &before).unwrap();
            for start in HUGE {
                assert!(tensor.write(start, &[1.0; 4]).is_err(), "{start}");
                assert!(tensor.read(start, &mut [0.0; 4]).is_err(), "{start}");
                assert!(
                    tensor.fill(start..start.saturating_add(4), |_, block| block.fill(1.0)).is_err() || start > HUGE[2]
                );
                let part = tensor.part(start..start.saturating_add(4));
                let whole = tensor.part(0..4);
                let schedule = build(Collective::Broadcast, Algorithm::Tree, &Job::new(comm.rank, 2, 4)).unwrap();
                assert!(comm.run(&schedule, &whole, &part, Reduction::Sum).is_err(), "{start}");
            }
            let mut after = [0.0; 16];
            tensor.read(0, &mut after).unwrap();
            assert!(before == after);
            group.barrier("the tensors").unwrap();
        });
    }
}

#[test]
fn elements_beyond_a_tensor_are_named_with_their_bytes() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(2, transport, |mut comm, _| {
            let tensor = comm.allocate::<f64>(1000).unwrap();
            let text =
                "4 elements of f64 (32 bytes) cannot be written from element 998 on: the tensor has 1000 (8000 bytes)";
            let refused = tensor.write(998, &[0.0; 4]).unwrap_err();
            assert_eq!((refused.kind(), refused.to_string().as_str()), (ErrorKind::InvalidInput, text));
            let refused = tensor.read(998, &mut [0.0; 4]).unwrap_err().to_string();
            assert_eq!(refused, text.replace("written", "read"));
        });
    }
}

#[test]
fn tensors_beyond_the_address_space_are_refused_at_every_rank() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(2, transport, |mut comm, _| {
            for count in HUGE {
                assert!(comm.allocate::<f32>(count).is_err(), "{count}");
                // Of another rank's refusal this one hears.
                let own = if comm.rank == 1 { count } else { 1 };
                assert!(comm.allocate::<f32>(own).is_err(), "{count}");
            }
        });
    }
}

#[test]
fn jobs_beyond_the_address_space_are_refused() {
    ranks(2, Transport::Shm, |mut comm, group| {
        let (input, output) = (comm.allocate::<f32>(16).unwrap(), comm.allocate::<f32>(16).unwrap());
        for count in HUGE {
            for op in [Collective::AllGather, Collective::AllToAll, Collective::AllToAllV, Collective::Broadcast] {
                let mut request = Request { algorithm: Some(Algorithm::Direct), ..Request::new(op, count) };
                if op == Collective::AllToAllV {
                    request.counts = vec![count; 4];
                }
                let refused = comm.prepare::<f32>(request).unwrap_err().to_string();
                assert_eq!(refused, "the elements of 2 ranks are more than memory can hold");
            }
        }
        let request = Request { algorithm: Some(Algorithm::Direct), ..Request::new(Collective::AllGather, 16) };
        let operation = comm.prepare::<f32>(request).unwrap();
        assert_eq!(operation.executor(), Executor::Reads);
        let refused = comm.perform(&operation, &input, &output).unwrap_err().to_string();
        assert_eq!(refused, "all_gather of 32 elements in tensors that have fewer");
        group.barrier("the tensors").unwrap();
    });
}

#[test]
fn what_belongs_to_another_communicator_is_refused() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(3, transport, |mut comm, _| {
            let mut part = comm.split(usize::from(comm.rank == 2), 0).unwrap();
            let is_refused = |result: Result<(), Error>| {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            };
            for count in [8, 100_000] {
                let (of_all, of_part) = (comm.allocate::<f32>(count).unwrap(), part.allocate::<f32>(count).unwrap());
                is_refused(part.all_reduce_in_place(&of_all, Reduction::Sum));
                is_refused(comm.all_reduce_in_place(&of_part, Reduction::Sum));
                is_refused(comm.all_reduce(&of_all, &of_part, Reduction::Sum));
                let part_of = of_part.part(0..1);
                is_refused(comm.run(&Schedule::default(), &part_of, &part_of, Reduction::Sum));
                for executor in [None, Some(Executor::Steps)] {
                    let request = Request { in_place: true, executor, ..Request::new(Collective::AllReduce, count) };
                    let operation = comm.prepare::<f32>(request).unwrap();
                    is_refused(part.perform(&operation, &of_part, &of_part));
                    comm.perform(&operation, &of_all, &of_all).unwrap();
                }
            }
            part.barrier().unwrap();
        });
    }
}

#[test]
fn schedules_that_name_no_rank_are_refused() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(2, transport, |mut comm, _| {
            let tensor = comm.allocate::<f32>(10).unwrap();
            let span = |place| Span { place, elements: 0..10 };
            let receive = Step::Combine { sources: vec![Source::Message { from: 2 }], into: span(Place::Output) };
            for step in [Step::Send { to: 2, span: span(Place::Input) }, receive] {
                let schedule = Schedule { steps: vec![step], ..Schedule::default() };
                assert!(comm.run(&schedule, &tensor.part(0..10), &tensor.part(0..10), Reduction::Sum).is_err());
            }
            comm.barrier().unwrap();
        });
    }
}

/// A process that is no rank takes part in no operation, and its memory is in no result.
#[test]
fn aggregators_are_idle() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(3, transport, |mut comm, _| {
            let request = Request {
                reduction: Reduction::Avg,
                executor: Some(Executor::Steps),
                in_place: true,
                ..Request::new(Collective::AllReduce, 4)
            };
            let before = comm.prepare::<i32>(request).unwrap();
            let (short, long, other) =
                (comm.allocate(2).unwrap(), comm.allocate(4).unwrap(), comm.allocate(4).unwrap());
            comm.set_aggregators(1, 8).unwrap();
            let elements = |tensor: &Tensor<i32>| {
                let mut all = vec![0; tensor.count()];
                tensor.read(0, &mut all).unwrap();
                all
            };
            long.write(0, &[6; 4]).unwrap();
            comm.perform(&before, &long, &long).unwrap();
            assert_eq!(elements(&long), [6; 4]);

            let rank = i32::try_from(comm.rank).unwrap();
            let is_idle = rank == 2;
            long.write(0, &[rank + 1, 20, 30, rank + 4]).unwrap();
            comm.reduce_scatter(&long, &short, Reduction::Sum).unwrap();
            assert!(is_idle || elements(&short) == [[3, 40], [60, 9]][comm.rank]);
            comm.reduce(&long, &other, 1, Reduction::Sum).unwrap();
            assert!(rank != 1 || elements(&other) == [3, 40, 60, 9]);
            comm.all_to_all(&long, &other).unwrap();
            assert!(is_idle || elements(&other) == [[1, 20, 2, 20], [30, 4, 30, 5]][comm.rank]);
            let came = comm.all_to_all_v(&[rank; 3][..if is_idle { 0 } else { 3 }], &[1, 2], &mut {
                vec![0; [2, 4, 0][comm.rank]]
            });
            assert_eq!(came.unwrap(), [[1, 1], [2, 2], [0, 0]][comm.rank]);
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn a_limit_ends_with_its_operation() {
    ranks(2, Transport::Auto, |mut comm, group| {
        let limit = Duration::from_millis(200);
        comm.set_limit(Some(limit));
        // A busy machine may need longer, so nothing waits.
        comm.begin();
        comm.ended(None, Ok(())).unwrap();
        std::thread::sleep(2 * limit);
        let mut wait = Wait::default();
        while comm.patience.pause(&mut wait).unwrap().is_none() {}
        group.barrier("the naps").unwrap();
    });
}

#[test]
fn a_part_begins_with_the_limit_of_its_communicator() {
    crate::testing::start(2, Transport::Auto, |mut comm, mut group| {
        let limit = Duration::from_millis(50);
        let mut before = comm.split(0, comm.rank).unwrap();
        comm.set_limit(Some(limit));
        let parts = [comm.split(0, comm.rank).unwrap(), comm.subset(&[1, 0]).unwrap().unwrap()];
        assert!(before.limit.is_none() && parts.iter().all(|part| part.limit == Some(limit)));
        before.barrier().unwrap();
        let [mut part, _other] = parts;
        if comm.rank == 1 {
            let error = part.recv(&mut [0_u8], 0).unwrap_err();
            assert_eq!((error.kind(), error.cause()), (ErrorKind::TimedOut, &Cause::TimedOut { limit }), "{error}");
        } else {
            assert_eq!(group.barrier("the end").unwrap_err().rank(), Some(1));
        }
    });
}

#[test]
fn the_ranks_of_a_part_are_named_as_those_of_the_job() {
    crate::testing::start(3, Transport::Auto, |mut comm, _| {
        let mut part = comm.split(usize::from(comm.rank > 0), 0).unwrap();
        let error = if comm.rank == 1 {
            part.set_limit(Some(Duration::from_millis(50)));
            part.recv(&mut [0_u8], 1).unwrap_err()
        } else {
            comm.barrier().unwrap_err()
        };
        let text = "in a part of the job, whose rank 1 is rank 2: waiting for rank 1 to send a message: ";
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(error.rank(), Some(if comm.rank == 1 { 2 } else { 1 }));
    });
}

/// Segments of whole lines fit into the slots, whatever the parameters are.
#[test]
fn chunks_of_any_length_are_right() {
    let ring = Tuning { transport: Transport::Verbs, one_step: 0, two_steps: 0, ..tuning() };
    let two_steps = Tuning { two_steps: usize::MAX, ..ring.clone() };
    for tuning in [
        Tuning { chunk: 0, ..ring.clone() },
        Tuning { chunk: 1000, ..ring.clone() },
        Tuning { chunk: 4096, lead: 0, ..ring },
        Tuning { chunk: 1000, ..two_steps },
    ] {
        start_tuned(3, tuning, |comm, group| {
            let mut comm = comm.unwrap();
            for count in [1, 750, 7000, 30_000] {
                let tensor = comm.allocate::<f64>(count).unwrap();
                let scale = f64::from(u8::try_from(comm.rank + 1).unwrap());
                tensor.fill(0..count, |_, elements| elements.fill(scale)).unwrap();
                comm.all_reduce_in_place(&tensor, Reduction::Sum).unwrap();
                tensor.for_each(0..count, |_, elements| assert!(elements.iter().all(|&sum| sum == 6.0))).unwrap();
            }
            group.conclude(Ok(())).unwrap();
        });
    }
}

#[test]
fn parameters_beyond_the_address_space_are_refused_at_every_rank() {
    let verbs = Tuning { transport: Transport::Verbs, ..tuning() };
    for tuning in [
        Tuning { chunk: usize::MAX, ..verbs.clone() },
        Tuning { one_step: usize::MAX, ..verbs.clone() },
        Tuning { lead: usize::MAX, ..verbs.clone() },
        Tuning { queue_pairs: usize::MAX, ..verbs },
    ] {
        start_tuned(2, tuning, |comm, _| assert!(comm.is_err()));
    }
}

#[test]
fn tensors_of_different_lengths_are_refused_at_every_rank() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(3, transport, |mut comm, _| {
            let count = if comm.rank == 1 { 1000 } else { 2000 };
            let error = comm.allocate::<u8>(count).unwrap_err().to_string();
            assert!(error.contains("rank 1") || error.contains("than agreed"), "{error}");
        });
    }
}

/// Whatever algorithm an all-reduce has.
#[test]
fn an_all_reduce_that_is_late_names_a_rank() {
    for transport in [Transport::Shm, Transport::Verbs] {
        for (count, watch_memory) in [(1, true), (1000, true), (100_000, true), (1, false), (100_000, false)] {
            let tuning = Tuning { transport, watch_memory, ..tuning() };
            start_tuned(2, tuning, move |comm, mut group| {
                let mut comm = comm.unwrap();
                let tensor = comm.allocate::<f32>(count).unwrap();
                if comm.rank == 1 {
                    comm.set_limit(Some(Duration::from_millis(50)));
                    let error = comm.all_reduce_in_place(&tensor, Reduction::Sum).unwrap_err();
                    let known = (error.kind(), error.rank(), error.operation());
                    assert_eq!(known, (ErrorKind::TimedOut, Some(0), Some(Collective::AllReduce)), "{error}");
                } else {
                    assert_eq!(group.barrier("the end").unwrap_err().rank(), Some(1));
                }
            });
        }
    }
}

/// The other rank has gone, or does something else, while a rank allocates, or stages slices.
#[test]
fn allocations_and_staged_operations_have_the_limit() {
    for transport in [Transport::Shm, Transport::Verbs] {
        for slices in [false, true] {
            crate::testing::start(2, transport, move |mut comm, mut group| {
                if comm.rank == 1 {
                    comm.set_limit(Some(Duration::from_millis(50)));
                    let error = if slices {
                        comm.all_reduce_in_place(&mut [1_u8], Reduction::Sum).unwrap_err()
                    } else {
                        comm.allocate::<u8>(10).unwrap_err()
                    };
                    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
                } else {
                    // The limit of the other rank ends the job.
                    let error = group.barrier("the end").unwrap_err();
                    assert!(error.rank() == Some(1) && error.to_string().contains("has aborted the job"), "{error}");
                }
            });
        }
    }
}

#[test]
fn a_limit_is_for_all_steps_of_an_operation() {
    ranks(2, Transport::Auto, |mut comm, _| {
        comm.set_limit(Some(crate::testing::LONG));
        comm.as_one(Collective::AllToAllV, |comm| {
            let before = comm.patience.until();
            assert!(before.is_some());
            comm.barrier()?;
            // The step has neither moved the limit nor ended it.
            assert_eq!(comm.patience.until(), before);
            Ok(())
        })
        .unwrap();
        assert_eq!(comm.patience.until(), None);
    });
}

/// The stall time is far longer than a test may last.
#[test]
fn an_operation_after_the_end_of_the_job_fails_at_once() {
    for transport in [Transport::Shm, Transport::Verbs] {
        crate::testing::start(2, transport, |mut comm, group| {
            group.conclude(Ok(())).unwrap();
            if comm.rank == 0 {
                let error = comm.barrier().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
                assert!(error.to_string().contains("the job's group has ended"), "{error}");
                assert!(comm.allocate::<u8>(1).is_err());
            }
        });
    }
}
