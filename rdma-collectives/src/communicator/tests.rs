use super::*;
use crate::operation::{Executor, Request};
use crate::schedule::{Algorithm, Collective, Job, build};
use crate::testing::ranks;
use crate::transport::Transport;

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
