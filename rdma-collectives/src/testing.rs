//! What tests share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdma::DeviceSelector;

use crate::bootstrap::{Group, Place, Roles, Root, Terms, listen_locally};
use crate::{Adapter, Communicator, Error, Transport, Tuning};

/// No test waits as long, unless it has failed.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The software device.
pub(crate) fn soft0() -> Adapter {
    let opened = rdma::open(&DeviceSelector::Named { name: "soft0".to_owned(), port: None }).unwrap();
    Adapter::new(&opened.context, opened.port).unwrap()
}

/// Runs `body` in so many ranks that are threads, which end their job together.
pub(crate) fn ranks(
    world: usize,
    transport: Transport,
    body: impl Fn(Communicator, &mut Group) + Clone + Send + 'static,
) {
    start(world, transport, move |comm, mut group| {
        body(comm, &mut group);
        group.conclude(Ok(())).unwrap();
    });
}

/// Runs `body` in so many ranks that are threads.
pub(crate) fn start(world: usize, transport: Transport, body: impl Fn(Communicator, Group) + Clone + Send + 'static) {
    start_tuned(world, Tuning { transport, ..tuning() }, move |comm, group| body(comm.unwrap(), group));
}

/// The parameters of the tests.
pub(crate) fn tuning() -> Tuning {
    Tuning { shared_cores: true, stall: LONG, ..Tuning::default() }
}

/// Runs `body` in so many ranks that are threads, with these parameters, which may be refused.
pub(crate) fn start_tuned(
    world: usize,
    tuning: Tuning,
    body: impl Fn(Result<Communicator, Error>, Group) + Clone + Send + 'static,
) {
    static JOBS: AtomicU64 = AtomicU64::new(0);
    let job = u64::from(std::process::id()) << 32 | 0x9_0000 | JOBS.fetch_add(1, Ordering::Relaxed);
    let (socket, address) = listen_locally(job).unwrap();
    let mut listener = Some(socket);
    let start = |rank| {
        let root = listener.take().map_or_else(|| Root::Address(address.clone()), Root::Listener);
        let (place, body, tuning) = (Place { rank, ranks: world, root, job }, body.clone(), tuning.clone());
        std::thread::spawn(move || {
            let terms = Terms::new("test", &serde_json::json!({}), Roles::Ranks, LONG);
            let mut group = Group::meet(place, &terms).unwrap();
            let comm = Communicator::new(&soft0(), &mut group, tuning);
            body(comm, group);
        })
    };
    let threads: Vec<_> = (0..world).map(start).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
