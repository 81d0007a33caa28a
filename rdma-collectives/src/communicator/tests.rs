use std::time::Duration;

use super::*;
use crate::bootstrap::{Place, Roles, Root, Terms, listen_locally};
use crate::testing::soft0;
use crate::transport::Transport;

const LONG: Duration = Duration::from_secs(60);

/// Runs `body` in two ranks that are threads. `job` is a number of the test's own.
fn ranks(job: u64, transport: Transport, body: impl Fn(Communicator, &mut Group) + Clone + Send + 'static) {
    let job = u64::from(std::process::id()) << 32 | 0xa_0000 | job;
    let (socket, address) = listen_locally(job).unwrap();
    let roots = [Root::Listener(socket), Root::Address(address)];
    let start = |(rank, root)| {
        let (place, body) = (Place { rank, world: 2, root, job }, body.clone());
        std::thread::spawn(move || {
            let terms = Terms::new("test", &serde_json::json!({}), Roles::Ranks, LONG);
            let mut group = Group::meet(place, &terms).unwrap();
            let chosen = soft0();
            let tuning = Tuning { shared_cores: true, stall: LONG, transport, ..Tuning::default() };
            let comm = Communicator::new(&chosen, &mut group, tuning).unwrap();
            body(comm, &mut group);
            group.conclude(Ok(())).unwrap();
        })
    };
    let threads: Vec<_> = roots.into_iter().enumerate().map(start).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Positions and lengths whose bytes are more than a `usize` holds, for elements of four bytes.
const HUGE: [usize; 4] = [1 << 62, (1 << 62) + 1, usize::MAX / 4 + 1, usize::MAX];

#[test]
fn elements_beyond_the_address_space_are_in_no_tensor() {
    for (job, transport) in [(1, Transport::Shm), (2, Transport::Verbs)] {
        ranks(job, transport, |mut comm, group| {
            let tensor = comm.allocate::<f32>(group, 16).unwrap();
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
    for (job, transport) in [(3, Transport::Shm), (4, Transport::Verbs)] {
        ranks(job, transport, |mut comm, group| {
            for count in HUGE {
                assert!(comm.allocate::<f32>(group, count).is_err(), "{count}");
                // Of another rank's refusal this one hears.
                let own = if comm.rank == 1 { count } else { 1 };
                assert!(comm.allocate::<f32>(group, own).is_err(), "{count}");
            }
        });
    }
}

#[test]
fn jobs_beyond_the_address_space_are_refused() {
    ranks(5, Transport::Shm, |mut comm, group| {
        let (input, output) = (comm.allocate::<f32>(group, 16).unwrap(), comm.allocate::<f32>(group, 16).unwrap());
        for count in HUGE {
            let mut job = Job::new(comm.rank, 2, count);
            job.counts = vec![count; 4];
            for op in [Collective::AllGather, Collective::AllToAll, Collective::AllToAllV, Collective::Broadcast] {
                let read = comm.read_directly(op, &job, &input, &output, Reduction::Sum);
                let refused = read.unwrap_err().to_string();
                assert_eq!(refused, "the elements of 2 ranks are more than memory can hold");
                assert!(build(op, Algorithm::Direct, &job).is_err());
            }
        }
        group.barrier("the tensors").unwrap();
    });
}
