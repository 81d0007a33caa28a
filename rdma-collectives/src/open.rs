//! A communicator in one call: devices by their selectors, a core for each rank, parameters.

use std::time::Duration;

use rdma::DeviceSelector;

use crate::adapter::Adapter;
use crate::bootstrap::Group;
use crate::communicator::Communicator;
use crate::connect::{Method, Wanted};
use crate::error::Error;
use crate::fabric::Rail;
use crate::placement::{self, Bind};
use crate::tcp;
use crate::transport::Transport;
use crate::tuning::Tuning;

/// How a [`Communicator`] is opened, by [`Communicator::builder`].
#[derive(Debug)]
#[must_use = "`open` connects the ranks"]
pub struct CommunicatorBuilder<'a> {
    group: &'a mut Group,
    devices: Vec<DeviceSelector>,
    bind: Bind,
    tuning: Tuning,
    job_key: bool,
}

impl Communicator {
    /// Connects the ranks of a group; collective, and blocking. Each rank uses its first device,
    /// which is `soft0` where there is no NIC. iWARP connects by the connection manager. Ranks of
    /// one host use shared memory. A rank that has no core of its own waits without spinning for
    /// long.
    ///
    /// The communicator lives as long as the job: once the job's group has ended, its operations
    /// fail.
    ///
    /// With [`Group::meet`], this is NCCL's `ncclCommInitRank`.
    /// [`builder`](Self::builder) does the same with other devices and parameters.
    ///
    /// # Errors
    /// If any rank fails; every rank is told.
    #[doc(alias = "ncclCommInitRank")]
    pub fn open(group: &mut Group) -> Result<Self, Error> {
        Self::builder(group).open()
    }

    /// A communicator of which the program chooses devices, cores and parameters.
    ///
    /// ```no_run
    /// use rdma_collectives::bootstrap::Group;
    /// use rdma_collectives::placement::Bind;
    /// use rdma_collectives::{Communicator, Error, Transport};
    ///
    /// fn connect(group: &mut Group) -> Result<Communicator, Error> {
    ///     let device = "mlx5_0:1".parse().map_err(|error| Error::invalid(format!("{error}")))?;
    ///     Communicator::builder(group).device(device).bind(Bind::Auto).transport(Transport::Verbs).open()
    /// }
    /// ```
    #[doc(alias = "ncclCommInitRankConfig")]
    pub fn builder(group: &mut Group) -> CommunicatorBuilder<'_> {
        let devices = vec![DeviceSelector::Any];
        CommunicatorBuilder { group, devices, bind: Bind::None, tuning: Tuning::default(), job_key: false }
    }
}

impl CommunicatorBuilder<'_> {
    /// The device of this rank, instead of the first one.
    pub fn device(self, device: DeviceSelector) -> Self {
        self.devices([device])
    }

    /// Several devices of this rank, whose connections share the bytes of every message.
    pub fn devices(self, devices: impl IntoIterator<Item = DeviceSelector>) -> Self {
        Self { devices: devices.into_iter().collect(), ..self }
    }

    /// Whether ranks are pinned to cores; they are not by default. It is the calling thread that is
    /// pinned.
    pub fn bind(self, bind: Bind) -> Self {
        Self { bind, ..self }
    }

    /// How the ranks reach each other's memory; by shared memory where they can by default. The
    /// same at all ranks.
    pub fn transport(self, transport: Transport) -> Self {
        Self { tuning: Tuning { transport, ..self.tuning }, ..self }
    }

    /// The longest time that the other ranks may make no progress; 30 s by default.
    pub fn stall(self, stall: Duration) -> Self {
        Self { tuning: Tuning { stall, ..self.tuning }, ..self }
    }

    /// Says that nobody else can read the connections of the group, so that rank 0 may hand out a
    /// key for TCP over them if a rank has none; the same at all ranks. By default, nobody says so.
    /// Ranks on several hosts then listen for each other also without `RDMA_SOFT_TCP`: see
    /// [`tcp::listen`].
    pub fn job_key(self, is_trusted: bool) -> Self {
        Self { job_key: is_trusted, ..self }
    }

    /// All parameters, instead of those that were given before.
    /// [`shared_cores`](Tuning::shared_cores) is also set if there are more ranks than cores.
    pub fn tuning(self, tuning: Tuning) -> Self {
        Self { tuning, ..self }
    }

    /// Opens the devices and connects the ranks; collective, and blocking. Before that, ranks
    /// listen for other hosts where it is asked for: see [`tcp::listen`].
    ///
    /// # Errors
    /// If a device cannot be opened, or as for [`Communicator::on_rails`]; every rank is told.
    pub fn open(self) -> Result<Communicator, Error> {
        let Self { group, devices, bind, mut tuning, job_key } = self;
        tcp::listen(group, tuning.transport, job_key)?;
        let is_tcp = tuning.transport == Transport::Tcp;
        let devices = if is_tcp && devices == [DeviceSelector::Any] { vec![tcp::device()] } else { devices };
        let adapters: Result<Vec<_>, _> = devices.iter().map(Adapter::open).collect();
        let adapters = adapters.and_then(|adapters| match adapters.is_empty() {
            true => Err(Error::invalid("a rank has no device; give at least one")),
            false => Ok(adapters),
        });
        let adapters = group.agree("the devices", adapters)?;
        let wanted = match tuning.method {
            Method::Endpoints => Wanted::default(),
            Method::Manager(ip) => Wanted { manager: true, address: Some(ip) },
        };
        tuning.method = wanted.settle(&adapters[0], group)?.method;
        let rail = |adapter| Rail::new(adapter, wanted.method_for(adapter, tuning.method)?);
        let rails = adapters.iter().map(rail).collect();
        let rails = group.agree("the ways to connect the devices", rails)?;
        tuning.shared_cores |= placement::bind(group, bind)?.shared;
        Communicator::on_rails(rails, group, tuning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::{Roles, Terms};
    use crate::element::Reduction;
    use crate::testing::LONG;

    fn terms() -> Terms {
        Terms::new("test", &(), Roles::Ranks, LONG)
    }

    #[test]
    fn a_communicator_is_opened_by_one_call() {
        let sums = placement::run_threads(3, &terms(), |group| {
            let mut comm = Communicator::open(group)?;
            let mut sum = [comm.rank() as f64];
            comm.all_reduce_in_place(&mut sum, Reduction::Sum)?;
            Ok::<_, Error>((comm.rank(), sum))
        });
        assert_eq!(sums.unwrap(), [(0, [3.0]), (1, [3.0]), (2, [3.0])]);
    }

    #[test]
    fn the_choices_of_a_builder_are_those_of_the_communicator() {
        let soft0 = || DeviceSelector::Named { name: "soft0".to_owned(), port: None };
        let ranks = placement::run_threads(2, &terms(), |group| {
            let builder = Communicator::builder(group).tuning(Tuning { chunk: 4096, ..Tuning::default() });
            let builder = builder.devices([soft0(), soft0()]).transport(Transport::Verbs).stall(LONG);
            let comm = builder.open()?;
            assert_eq!((comm.tuning.chunk, comm.tuning.stall, comm.connections()), (4096, LONG, 2));
            assert_eq!(comm.stats().rails.len(), 2);
            Ok::<_, Error>(comm.transports().to_string())
        });
        assert!(ranks.unwrap().iter().all(|transports| transports.contains("verbs")));
    }

    #[test]
    fn a_device_that_there_is_not_is_said_at_every_rank() {
        for world in [1, 3] {
            let texts = placement::run_threads(world, &terms(), |group| {
                let name = if group.rank() == world - 1 { "nowhere9" } else { "soft0" };
                let device = DeviceSelector::Named { name: name.to_owned(), port: None };
                let error = Communicator::builder(group).device(device).open().unwrap_err().to_string();
                Ok::<_, Error>(error)
            });
            for text in texts.unwrap() {
                assert!(text.contains("nowhere9"), "{text}");
            }
        }
    }

    #[test]
    fn an_error_of_one_thread_ends_all() {
        let failed = placement::run_threads(3, &terms(), |group| {
            let mut comm = Communicator::open(group)?;
            if comm.rank() == 2 {
                return Err(Error::new("no paper"));
            }
            comm.barrier()
        });
        let error = failed.unwrap_err();
        assert!(error.rank() == Some(2) && error.to_string().contains("no paper"), "{error}");
    }

    #[test]
    fn a_panic_of_one_thread_ends_all_and_goes_on() {
        let panicked = std::panic::catch_unwind(|| {
            placement::run_threads(2, &terms(), |group| {
                let mut comm = Communicator::open(group)?;
                assert_eq!(comm.rank(), 0, "rank 1 is out of paper");
                comm.barrier()
            })
        });
        let text = *panicked.unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("out of paper"), "{text}");
    }
}
