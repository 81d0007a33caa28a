//! The meeting of a job's ranks: at an address, where a launcher says, or by a store of Python.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rdma_collectives::bootstrap::{Directory, Exchange, Group, Place, Roles, Terms};
use rdma_collectives::{Communicator, Error, Transport};
use serde::Serialize;

/// The place where the ranks meet.
pub(crate) enum Meeting {
    /// At an address, or where a launcher says.
    Place(Place),
    /// By a store of Python.
    Store(Store),
    /// By a directory that all ranks see.
    Directory(Directory),
}

/// Options that the ranks of a job agree on.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) name: Option<String>,
    pub(crate) transport: Transport,
    pub(crate) device: rdma::DeviceSelector,
    pub(crate) timeout: Duration,
    pub(crate) stall: Duration,
    pub(crate) limit: Option<Duration>,
    pub(crate) compares: bool,
    pub(crate) job_key: bool,
}

/// The settings that ranks compare when they meet.
#[derive(Serialize)]
struct Settings<'a> {
    name: Option<&'a str>,
    transport: &'a str,
    compare: bool,
    job_key: bool,
}

impl Options {
    /// Meets the other ranks, and connects to them.
    pub(crate) fn meet(self, meeting: Meeting, rank: usize, ranks: usize) -> Result<(Group, Communicator), Error> {
        let settings = Settings {
            name: self.name.as_deref(),
            transport: self.transport.name(),
            compare: self.compares,
            job_key: self.job_key,
        };
        let terms = Terms::new("rdma_collectives", &settings, Roles::Ranks, self.timeout);
        let mut group = match meeting {
            Meeting::Place(place) => Group::meet(place, &terms)?,
            Meeting::Store(mut store) => Group::meet_by(&mut store, rank, ranks, &terms)?,
            Meeting::Directory(mut directory) => Group::meet_by(&mut directory, rank, ranks, &terms)?,
        };
        let builder = Communicator::builder(&mut group).device(self.device).transport(self.transport);
        let opened = builder.stall(self.stall).job_key(self.job_key).open();
        match opened {
            Ok(mut comm) => {
                comm.compare_operations(self.compares);
                comm.set_limit(self.limit);
                Ok((group, comm))
            }
            // The other ranks get the reason.
            Err(error) => Err(group.conclude::<()>(Err(error.clone())).err().unwrap_or(error)),
        }
    }
}

/// A store of Python: an object with `set(key, bytes)`, `get(key, seconds)`, which returns `None`
/// for a key that is not set in time, and `delete(key)`.
pub(crate) struct Store(pub(crate) Py<PyAny>);

impl Exchange for Store {
    fn set(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        called(|py| self.0.call_method1(py, "set", (key, PyBytes::new(py, value))).map(drop))
    }

    fn get(&mut self, key: &str, limit: Duration) -> Result<Vec<u8>, Error> {
        let value = called(|py| {
            let value = self.0.call_method1(py, "get", (key, limit.as_secs_f64()))?;
            value.extract::<Option<Vec<u8>>>(py)
        })?;
        value.ok_or_else(|| Error::new(format!("{key} is not set")))
    }

    fn delete(&mut self, key: &str) -> Result<(), Error> {
        called(|py| self.0.call_method1(py, "delete", (key,)).map(drop))
    }
}

fn called<T>(call: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, Error> {
    let called = Python::try_attach(|py| call(py).map_err(|error| Error::new(error.value(py).to_string())));
    called.unwrap_or_else(|| Err(Error::new("the interpreter has ended")))
}
