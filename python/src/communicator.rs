//! The communicator: checks arguments, holds memory, and starts operations on the library's queue.

use std::sync::{Mutex, PoisonError, RwLock};

use pyo3::prelude::*;
use rdma_collectives::bootstrap::{Aborter, Directory, Group, Place};
use rdma_collectives::{Error, ErrorKind, Mailbox, Queue, Reduction, Transport};

use crate::error::{exception, invalid};
use crate::job::{Meeting, Options, Store};
use crate::memory::{self, Kind, Memory, Use};
use crate::wait::on_thread;
use crate::work::{Memories, Started, Value, Work, seconds};

/// The ranks of a job, connected to each other. `rdma_collectives.init` makes one.
///
/// Every rank does the same operations in the same order. Each operation returns when it has ended
/// or, with `async_op=True`, a `Work` at once.
#[pyclass(frozen, module = "rdma_collectives")]
pub(crate) struct Communicator {
    #[pyo3(get)]
    rank: usize,
    #[pyo3(get)]
    ranks: usize,
    #[pyo3(get)]
    transports: String,
    /// The process that has made the communicator: a forked child lacks the queue's thread.
    process: u32,
    queue: RwLock<Option<Queue>>,
    mailbox: RwLock<Option<Mailbox>>,
    group: Mutex<Option<Group>>,
    aborter: Aborter,
}

/// One operation on the communicator of the library.
type Operation = Box<dyn FnOnce(&mut rdma_collectives::Communicator, &mut Memories) -> Result<Value, Error> + Send>;

impl Communicator {
    /// Starts an operation, and waits for it unless it is asynchronous.
    fn start(&self, py: Python<'_>, memories: Memories, async_op: bool, operation: Operation) -> PyResult<Py<PyAny>> {
        self.check_process(py)?;
        memory::release(py);
        // The lock is not held during a wait: whoever closes takes it with the interpreter's lock.
        // Nor while an exception is made, which runs code of Python.
        let operation = |comm: &mut _, memories: &mut _| match operation(comm, memories) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(Value::Refused(error)),
            result => result,
        };
        let started = {
            let queue = self.queue.read().unwrap_or_else(PoisonError::into_inner);
            queue.as_ref().map(|queue| queue.start_with(memories, operation))
        };
        let started = started.ok_or_else(|| invalid(py, "the communicator is closed"))?;
        given(py, Work::new(self.process, Started::Operation(started)), async_op)
    }

    /// Posts a message, and waits for it unless it is asynchronous.
    fn message(
        &self,
        py: Python<'_>,
        async_op: bool,
        post: impl FnOnce(&Mailbox) -> Result<Started, Error>,
    ) -> PyResult<Py<PyAny>> {
        self.check_process(py)?;
        memory::release(py);
        // As in `start`, no lock is held while an exception is made.
        let posted = {
            let mailbox = self.mailbox.read().unwrap_or_else(PoisonError::into_inner);
            mailbox.as_ref().map(post)
        };
        let posted = posted.ok_or_else(|| invalid(py, "the communicator is closed"))?;
        let started = posted.map_err(|error| exception(py, &error))?;
        given(py, Work::new(self.process, started), async_op)
    }

    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if std::process::id() == self.process {
            return Ok(());
        }
        let text = "this is a forked child, and the communicator belongs to its parent: call init() here, or \
                    start children by `spawn`";
        Err(invalid(py, text))
    }

    fn check_rank(&self, py: Python<'_>, name: &str, rank: usize) -> PyResult<()> {
        if rank < self.ranks {
            return Ok(());
        }
        Err(invalid(py, &format!("`{name}` is {rank}, and the ranks are 0 to {}", self.ranks - 1)))
    }

    fn check_counts(&self, py: Python<'_>, counts: &[usize]) -> PyResult<usize> {
        let sum = counts.iter().try_fold(0_usize, |sum, &count| sum.checked_add(count));
        match sum {
            Some(sum) if counts.len() == self.ranks => Ok(sum),
            _ => {
                Err(invalid(py, &format!("`counts` has {} numbers, and there are {} ranks", counts.len(), self.ranks)))
            }
        }
    }
}

/// A started operation, or its value once it has ended.
fn given(py: Python<'_>, work: Work, async_op: bool) -> PyResult<Py<PyAny>> {
    if async_op { Ok(Py::new(py, work)?.into_any()) } else { work.finish(py, None) }
}

/// Reads a reduction.
fn reduction(py: Python<'_>, op: &str) -> PyResult<Reduction> {
    Reduction::named(op).ok_or_else(|| {
        let names: Vec<&str> = Reduction::ALL.iter().map(|known| known.name()).collect();
        invalid(py, &format!("`op` is {op:?}: give one of {}", names.join(", ")))
    })
}

/// Checks the number of elements of an argument.
fn check_count(py: Python<'_>, name: &str, has: usize, wanted: Option<usize>) -> PyResult<()> {
    match wanted {
        Some(wanted) if wanted == has => Ok(()),
        Some(wanted) => Err(invalid(py, &format!("`{name}` has {has} elements, and the operation has {wanted}"))),
        None => Err(invalid(py, &format!("`{name}` has too many elements"))),
    }
}

/// Checks that two arguments have elements of one type.
fn check_kinds(py: Python<'_>, one: &Memory, other: &Memory) -> PyResult<()> {
    if one.kind() == other.kind() {
        return Ok(());
    }
    let (one, other) = (one.kind().name(), other.kind().name());
    Err(invalid(py, &format!("`input` has elements of {one}, and `output` of {other}")))
}

/// Counts of elements in the unit of an operation.
fn scaled(counts: &[usize], unit: usize) -> Vec<usize> {
    counts.iter().map(|count| count.saturating_mul(unit)).collect()
}

/// Memory of an argument that a rank may leave out.
fn optional(
    object: Option<&Bound<'_, PyAny>>,
    name: &str,
    usage: Use,
    dtype: Option<&str>,
    kind: Kind,
) -> PyResult<Memory> {
    object.map_or_else(|| Ok(Memory::none(kind)), |object| Memory::of(object, name, usage, dtype))
}

#[pymethods]
impl Communicator {
    /// Meets the other ranks: see `rdma_collectives.init`.
    #[staticmethod]
    #[expect(clippy::too_many_arguments, reason = "the options of Python's `init`")]
    #[pyo3(signature = (rank, ranks, root, store, directory, name, transport, device, timeout, stall, limit, compare, job_key))]
    fn meet(
        py: Python<'_>,
        rank: Option<usize>,
        ranks: Option<usize>,
        root: Option<String>,
        store: Option<Py<PyAny>>,
        directory: Option<String>,
        name: Option<String>,
        transport: &str,
        device: &str,
        timeout: f64,
        stall: f64,
        limit: Option<f64>,
        compare: bool,
        job_key: bool,
    ) -> PyResult<Self> {
        let transport = Transport::named(transport).ok_or_else(|| {
            let names: Vec<&str> = Transport::ALL.iter().map(|known| known.name()).collect();
            invalid(py, &format!("`transport` is {transport:?}: give one of {}", names.join(", ")))
        })?;
        let device = device.parse().map_err(|error| invalid(py, &format!("`device`: {error}")))?;
        let some = |name, value| seconds(py, name, Some(value)).map(Option::unwrap_or_default);
        let options = Options {
            name: name.clone(),
            transport,
            device,
            timeout: some("timeout", timeout)?,
            stall: some("stall", stall)?,
            limit: seconds(py, "limit", limit)?,
            compares: compare,
            job_key,
        };
        let process = std::process::id();
        let met = on_thread(py, "rdma-meeting", None, move || {
            let both = || rank.zip(ranks).ok_or_else(|| Error::invalid("give `rank` and `world` both"));
            let meeting = match (store, directory) {
                (Some(store), _) => Meeting::Store(Store(store)),
                (None, Some(directory)) => {
                    Meeting::Directory(Directory::new(directory, name.as_deref().unwrap_or("rdma_collectives"))?)
                }
                (None, None) => Meeting::Place(match (rank, &root) {
                    (Some(rank), Some(root)) => Place::by_hand(rank, both()?.1, root, name.as_deref())?,
                    (Some(_), None) => {
                        return Err(Error::invalid("give `root`, HOST:PORT where rank 0 listens, or a `store`"));
                    }
                    (None, root) => Place::of_environment(root.as_deref())?,
                }),
            };
            let (rank, ranks) = match &meeting {
                Meeting::Place(place) => (place.rank, place.ranks),
                _ => both()?,
            };
            let (group, mut comm) = options.meet(meeting, rank, ranks)?;
            // Messages go on beside the other operations.
            let messages = comm.split(0, rank).and_then(Mailbox::new);
            let mailbox = comm.group().agree("the messages", messages)?;
            Ok((group, comm, mailbox))
        })?;
        // Without a limit, there is a result.
        let (group, comm, mailbox) = met.ok_or_else(|| invalid(py, "the ranks have not met"))?;
        let (rank, ranks, transports) = (comm.rank(), comm.ranks(), comm.transports().to_string());
        let aborter = group.aborter();
        let queue = Queue::new(comm).map_err(|error| exception(py, &error))?;
        let (queue, mailbox) = (RwLock::new(Some(queue)), RwLock::new(Some(mailbox)));
        let group = Mutex::new(Some(group));
        Ok(Self { rank, ranks, transports, process, queue, mailbox, group, aborter })
    }

    /// Reduces `input` of all ranks into `output` of every rank, or in place.
    #[pyo3(signature = (input, output=None, op="sum", *, dtype=None, async_op=false))]
    fn all_reduce(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        op: &str,
        dtype: Option<&str>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let op = reduction(py, op)?;
        let Some(output) = output else {
            let memory = Memory::of(input, "input", Use::Write, dtype)?;
            memory.check(py, "input", op)?;
            return self.start(
                py,
                vec![memory],
                async_op,
                Box::new(move |comm, memory| {
                    comm.untyped().all_reduce_in_place(memory[0].output()?, op).map(|()| Value::Nothing)
                }),
            );
        };
        let (from, to) = both(py, input, output, dtype)?;
        from.check(py, "input", op)?;
        check_count(py, "output", to.count(), Some(from.count()))?;
        self.start(
            py,
            vec![from, to],
            async_op,
            Box::new(move |comm, memory| {
                let [from, to] = &mut memory[..] else { return Err(lost()) };
                comm.untyped().all_reduce(from.input()?, to.output()?, op).map(|()| Value::Nothing)
            }),
        )
    }

    /// Gives `input` of every rank to all: `output` has them in the order of ranks. Rank r gives
    /// `counts[r]` elements, if there are counts.
    #[pyo3(signature = (input, output, counts=None, *, dtype=None, async_op=false))]
    fn all_gather(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        counts: Option<Vec<usize>>,
        dtype: Option<&str>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let (from, to) = both(py, input, output, dtype)?;
        let Some(counts) = counts else {
            check_count(py, "output", to.count(), from.count().checked_mul(self.ranks))?;
            return self.start(
                py,
                vec![from, to],
                async_op,
                Box::new(|comm, memory| {
                    let [from, to] = &mut memory[..] else { return Err(lost()) };
                    comm.untyped().all_gather(from.input()?, to.output()?).map(|()| Value::Nothing)
                }),
            );
        };
        check_count(py, "output", to.count(), Some(self.check_counts(py, &counts)?))?;
        check_count(py, "input", from.count(), Some(counts[self.rank]))?;
        let counts = scaled(&counts, from.unit().1);
        self.start(
            py,
            vec![from, to],
            async_op,
            Box::new(move |comm, memory| {
                let [from, to] = &mut memory[..] else { return Err(lost()) };
                comm.untyped().all_gather_v(from.input()?, to.output()?, &counts).map(|()| Value::Nothing)
            }),
        )
    }

    /// Reduces `input` of all ranks and gives each rank its block of the result: one of equal
    /// blocks, or of `counts[r]` elements.
    #[pyo3(signature = (input, output, op="sum", counts=None, *, dtype=None, async_op=false))]
    #[expect(clippy::too_many_arguments, reason = "the arguments of Python's method")]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        op: &str,
        counts: Option<Vec<usize>>,
        dtype: Option<&str>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let op = reduction(py, op)?;
        let (from, to) = both(py, input, output, dtype)?;
        from.check(py, "input", op)?;
        let Some(counts) = counts else {
            check_count(py, "input", from.count(), to.count().checked_mul(self.ranks))?;
            return self.start(
                py,
                vec![from, to],
                async_op,
                Box::new(move |comm, memory| {
                    let [from, to] = &mut memory[..] else { return Err(lost()) };
                    comm.untyped().reduce_scatter(from.input()?, to.output()?, op).map(|()| Value::Nothing)
                }),
            );
        };
        check_count(py, "input", from.count(), Some(self.check_counts(py, &counts)?))?;
        check_count(py, "output", to.count(), Some(counts[self.rank]))?;
        self.start(
            py,
            vec![from, to],
            async_op,
            Box::new(move |comm, memory| {
                let [from, to] = &mut memory[..] else { return Err(lost()) };
                comm.untyped().reduce_scatter_v(from.input()?, to.output()?, &counts, op).map(|()| Value::Nothing)
            }),
        )
    }

    /// Sends block r of `input` to rank r, and gets a block of each rank in `output`. With
    /// `counts`, block r of `input` has `counts[r]` elements, and the lengths of the blocks that
    /// came are returned.
    #[pyo3(signature = (input, output, counts=None, *, dtype=None, async_op=false))]
    fn all_to_all(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        counts: Option<Vec<usize>>,
        dtype: Option<&str>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let (from, to) = both(py, input, output, dtype)?;
        let Some(counts) = counts else {
            check_count(py, "output", to.count(), Some(from.count()))?;
            if from.count() % self.ranks != 0 {
                let text = format!("`input` has {} elements, which {} ranks cannot share", from.count(), self.ranks);
                return Err(invalid(py, &text));
            }
            return self.start(
                py,
                vec![from, to],
                async_op,
                Box::new(|comm, memory| {
                    let [from, to] = &mut memory[..] else { return Err(lost()) };
                    comm.untyped().all_to_all(from.input()?, to.output()?).map(|()| Value::Nothing)
                }),
            );
        };
        check_count(py, "input", from.count(), Some(self.check_counts(py, &counts)?))?;
        let unit = from.unit().1;
        let counts = scaled(&counts, unit);
        self.start(
            py,
            vec![from, to],
            async_op,
            Box::new(move |comm, memory| {
                let [from, to] = &mut memory[..] else { return Err(lost()) };
                // The other ranks may be in the second step when this one refuses its output, so a
                // refusal is a failure.
                let came = comm.untyped().all_to_all_v(from.input()?, &counts, to.output()?);
                let came = came.map_err(|error| Error::new(error.to_string()))?;
                Ok(Value::Counts(came.into_iter().map(|count| count / unit).collect()))
            }),
        )
    }

    /// Gives `memory` of the rank `root` to all.
    #[pyo3(signature = (memory, root=0, *, dtype=None, async_op=false))]
    fn broadcast(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, PyAny>,
        root: usize,
        dtype: Option<&str>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        self.check_rank(py, "root", root)?;
        // Also the root's: the library writes to it what it has.
        let memory = Memory::of(memory, "memory", Use::Write, dtype)?;
        self.start(
            py,
            vec![memory],
            async_op,
            Box::new(move |comm, memory| comm.untyped().broadcast(memory[0].output()?, root).map(|()| Value::Nothing)),
        )
    }

    /// Reduces `input` of all ranks into `output` of the rank `root`; the others give none.
    #[pyo3(signature = (input, output=None, root=0, op="sum", *, dtype=None, async_op=false))]
    #[expect(clippy::too_many_arguments, reason = "the arguments of Python's method")]
    fn reduce(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        root: usize,
        op: &str,
        dtype: Option<&str>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        self.check_rank(py, "root", root)?;
        let op = reduction(py, op)?;
        let from = Memory::of(input, "input", Use::Read, dtype)?;
        from.check(py, "input", op)?;
        let to = optional(output.filter(|_| root == self.rank), "output", Use::Write, dtype, from.kind())?;
        if root == self.rank {
            check_kinds(py, &from, &to)?;
            check_count(py, "output", to.count(), Some(from.count()))?;
        }
        self.start(
            py,
            vec![from, to],
            async_op,
            Box::new(move |comm, memory| {
                let [from, to] = &mut memory[..] else { return Err(lost()) };
                comm.untyped().reduce(from.input()?, to.output()?, root, op).map(|()| Value::Nothing)
            }),
        )
    }

    /// Gives `input` of every rank to the rank `root`, whose `output` has them in the order of
    /// ranks.
    #[pyo3(signature = (input, output=None, root=0, counts=None, *, dtype=None, async_op=false))]
    #[expect(clippy::too_many_arguments, reason = "the arguments of Python's method")]
    fn gather(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
        root: usize,
        counts: Option<Vec<usize>>,
        dtype: Option<&str>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        self.check_rank(py, "root", root)?;
        let from = Memory::of(input, "input", Use::Read, dtype)?;
        let to = optional(output.filter(|_| root == self.rank), "output", Use::Write, dtype, from.kind())?;
        let all = match &counts {
            None => from.count().checked_mul(self.ranks),
            Some(counts) => {
                let sum = self.check_counts(py, counts)?;
                check_count(py, "input", from.count(), Some(counts[self.rank]))?;
                Some(sum)
            }
        };
        if root == self.rank {
            check_kinds(py, &from, &to)?;
            check_count(py, "output", to.count(), all)?;
        }
        let counts = counts.map(|counts| scaled(&counts, from.unit().1));
        self.start(
            py,
            vec![from, to],
            async_op,
            Box::new(move |comm, memory| {
                let [from, to] = &mut memory[..] else { return Err(lost()) };
                match &counts {
                    None => comm.untyped().gather(from.input()?, to.output()?, root),
                    Some(counts) => comm.untyped().gather_v(from.input()?, to.output()?, counts, root),
                }
                .map(|()| Value::Nothing)
            }),
        )
    }

    /// Gives block r of the rank `root`'s `input` to rank r.
    #[pyo3(signature = (input, output, root=0, counts=None, *, dtype=None, async_op=false))]
    #[expect(clippy::too_many_arguments, reason = "the arguments of Python's method")]
    fn scatter(
        &self,
        py: Python<'_>,
        input: Option<&Bound<'_, PyAny>>,
        output: &Bound<'_, PyAny>,
        root: usize,
        counts: Option<Vec<usize>>,
        dtype: Option<&str>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        self.check_rank(py, "root", root)?;
        let to = Memory::of(output, "output", Use::Write, dtype)?;
        let from = optional(input.filter(|_| root == self.rank), "input", Use::Read, dtype, to.kind())?;
        let all = match &counts {
            None => to.count().checked_mul(self.ranks),
            Some(counts) => {
                let sum = self.check_counts(py, counts)?;
                check_count(py, "output", to.count(), Some(counts[self.rank]))?;
                Some(sum)
            }
        };
        if root == self.rank {
            check_kinds(py, &from, &to)?;
            check_count(py, "input", from.count(), all)?;
        }
        let counts = counts.map(|counts| scaled(&counts, to.unit().1));
        self.start(
            py,
            vec![from, to],
            async_op,
            Box::new(move |comm, memory| {
                let [from, to] = &mut memory[..] else { return Err(lost()) };
                match &counts {
                    None => comm.untyped().scatter(from.input()?, to.output()?, root),
                    Some(counts) => comm.untyped().scatter_v(from.input()?, to.output()?, counts, root),
                }
                .map(|()| Value::Nothing)
            }),
        )
    }

    /// Sends a message to the rank `to`, which receives it by `recv` with the same tag. Messages go
    /// on beside each other and beside other operations.
    #[pyo3(signature = (memory, to, tag=0, *, async_op=false))]
    fn send(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, PyAny>,
        to: usize,
        tag: u64,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        self.check_rank(py, "to", to)?;
        let memory = Memory::of(memory, "memory", Use::Read, None)?;
        self.message(py, async_op, |mailbox| Ok(Started::Sent(mailbox.send(memory, to, tag)?)))
    }

    /// Receives a message of the rank `from_`, or of any other one, into memory of its length, and
    /// returns the rank that has sent it.
    #[pyo3(signature = (memory, from_=None, tag=0, *, async_op=false))]
    fn recv(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, PyAny>,
        from_: Option<usize>,
        tag: u64,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        from_.map_or(Ok(()), |from| self.check_rank(py, "from_", from))?;
        let memory = Memory::of(memory, "memory", Use::Write, None)?;
        self.message(py, async_op, |mailbox| Ok(Started::Received(mailbox.recv(memory, from_, tag)?)))
    }

    /// Returns when every rank has called this method.
    #[pyo3(signature = (*, async_op=false))]
    fn barrier(&self, py: Python<'_>, async_op: bool) -> PyResult<Py<PyAny>> {
        self.start(py, Vec::new(), async_op, Box::new(|comm, _| comm.barrier().map(|()| Value::Nothing)))
    }

    /// Ends the job, for a reason that every rank gets: what waits for another rank raises.
    fn abort(&self, py: Python<'_>, reason: &str) {
        py.detach(|| self.aborter.abort(reason));
    }

    /// Whether `close` was called.
    #[getter]
    fn is_closed(&self) -> bool {
        self.queue.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Waits for the operations that were started, and ends the job together with the other ranks:
    /// for `timeout` seconds at most, after which the rest goes on until the process ends.
    #[pyo3(signature = (timeout=None))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let limit = seconds(py, "timeout", timeout)?;
        if self.check_process(py).is_err() {
            return Ok(());
        }
        let queue = self.queue.write().unwrap_or_else(PoisonError::into_inner).take();
        let group = self.group.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mailbox = self.mailbox.write().unwrap_or_else(PoisonError::into_inner).take();
        let (Some(queue), Some(group)) = (queue, group) else { return Ok(()) };
        let closed = on_thread(py, "rdma-close", limit, move || {
            if let Some(mailbox) = mailbox {
                mailbox.finish();
            }
            let ended = queue.finish().map(drop);
            group.conclude(ended)
        });
        memory::release(py);
        closed.map(|_in_time| ())
    }

    /// Ends this rank's part of the job without waiting for the others, for the end of the
    /// interpreter: operations that are in flight keep their memory.
    fn leave(&self, py: Python<'_>) {
        if self.check_process(py).is_err() {
            return;
        }
        let queue = self.queue.write().unwrap_or_else(PoisonError::into_inner).take();
        let group = self.group.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mailbox = self.mailbox.write().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop((mailbox, queue, group)));
    }

    fn __repr__(&self) -> String {
        format!("<rdma_collectives.Communicator: rank {} of {}>", self.rank, self.ranks)
    }
}

/// The memory of an input and of an output.
fn both(
    py: Python<'_>,
    input: &Bound<'_, PyAny>,
    output: &Bound<'_, PyAny>,
    dtype: Option<&str>,
) -> PyResult<(Memory, Memory)> {
    let from = Memory::of(input, "input", Use::Read, dtype)?;
    let to = Memory::of(output, "output", Use::Write, dtype)?;
    check_kinds(py, &from, &to)?;
    Ok((from, to))
}

fn lost() -> Error {
    Error::new("the memory of an operation is lost")
}
