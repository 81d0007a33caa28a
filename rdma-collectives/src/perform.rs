//! Does operations: the one place where the way to do one is chosen.
//!
//! An operation has an algorithm and an executor. The *fused* all-reduce writes results to their
//! place without a copy, in shared memory or over verbs. *Reads* take each element from where the
//! peer has it, in shared memory. *Steps* run a schedule, over any links. Every operation can be
//! done by steps; the others do what this table says:
//!
//! | Executor | Operation | Ranks | Algorithm |
//! | --- | --- | --- | --- |
//! | fused | all-reduce | all share memory | none is named |
//! | fused | all-reduce | none share memory, one device and connection each | none, ring or direct |
//! | reads | what no rank writes while another one reads | all share memory | direct |

use crate::Error;
use crate::bootstrap::Signature;
use crate::choose::{Point, choose};
use crate::communicator::Communicator;
use crate::element::Element;
use crate::operation::{Executor, Operation, Request};
use crate::schedule::{Algorithm, Collective, Job, Layout, build};
use crate::shm::{AllReduce, DirectReads, reads_directly};
use crate::signature;
use crate::tensor::{self, Tensor, finish};

impl Communicator {
    /// Prepares an operation, for the first elements of two tensors or in place of one. It sends
    /// nothing. The request is the same at all ranks; the operation is that of this rank.
    ///
    /// An operation that is done often is prepared once, as MPI's persistent operations are
    /// (`MPI_Allreduce_init`); the operations by name keep the last one.
    ///
    /// # Errors
    /// `InvalidInput` if the request makes no sense, if its algorithm does not do it, if these
    /// ranks do not do it by its executor, or if the elements [do not
    /// have](crate::Reduction::check) the reduction.
    #[doc(alias = "MPI_Allreduce_init")]
    pub fn prepare<T: Element>(&self, request: Request) -> Result<Operation, Error> {
        request.reduction.check(T::TYPE)?;
        let mut job = self.job(&request);
        job.chunk = (self.tuning.chunk / size_of::<T>()).max(1);
        job.check(request.op).map_err(|invalid| Error::invalid(invalid.to_string()))?;
        let (algorithm, executor) = self.choose(&request, &job, size_of::<T>())?;
        let schedule = match executor {
            Executor::Steps => Some(build(request.op, algorithm, &job)).transpose(),
            Executor::Fused | Executor::Reads => Ok(None),
        };
        let schedule = schedule.map_err(|unsupported| Error::invalid(unsupported.to_string()))?;
        let mut layout = job.layout(request.op);
        if !request.in_place {
            layout = Layout { input: 0..layout.input.len(), output: 0..layout.output.len() };
        }
        let (element, size) = (T::TYPE, request.size(self.ranks()));
        let bytes = size.saturating_mul(element.size()) as u64;
        let tells_place = match executor {
            // Where a rank reads the others' blocks depends on their place.
            Executor::Reads => matches!(request.op, Collective::AllGather | Collective::Gather),
            Executor::Fused => self.host.is_some() && AllReduce::tells_place(bytes, self.world),
            Executor::Steps => false,
        };
        let signature = signature::of(&request, element, algorithm, executor, tells_place);
        let owner = self.number;
        Ok(Operation { request, owner, job, layout, algorithm, schedule, executor, element, bytes, signature })
    }

    /// The parameters of a request at this rank, for messages of any length.
    fn job(&self, request: &Request) -> Job {
        let ranks = self.ranks();
        let mut job = Job::new(self.rank, ranks, request.count);
        (job.root, job.in_place, job.counts) = (request.root, request.in_place, request.counts.clone());
        job.hosts = self.hosts[..ranks].to_vec();
        (job.aggregators, job.radix) = (self.world - ranks, self.radix);
        job
    }

    /// The algorithm and the executor of a request; equal at all ranks.
    fn choose(&self, request: &Request, job: &Job, element: usize) -> Result<(Algorithm, Executor), Error> {
        let (op, ranks) = (request.op, self.ranks());
        let bytes = request.size(ranks).saturating_mul(element);
        let hosts = self.hosts.iter().enumerate().filter(|(rank, host)| rank == *host).count();
        let point = Point { op, bytes: bytes as u64, ranks, hosts, transport: self.transports.main() };
        let of_table = || self.table().find(&point).and_then(|entry| entry.algorithm);
        let allows = |executor| request.executor.is_none_or(|named| named == executor);
        let is_fused = self.has_fused(request) && (request.algorithm.is_some() || of_table().is_none());
        if is_fused && allows(Executor::Fused) {
            return Ok((self.fused_algorithm(request.algorithm, bytes), Executor::Fused));
        }
        let algorithm = match request.algorithm {
            Some(named) => named,
            None => {
                let chosen = of_table().unwrap_or_else(|| choose(&point, self.table()));
                // An algorithm that is chosen for blocks of one length may not take others.
                if chosen.supports(op, job).is_ok() { chosen } else { Algorithm::Direct }
            }
        };
        algorithm.supports(op, job).map_err(|unsupported| Error::invalid(unsupported.to_string()))?;
        let reads = algorithm == Algorithm::Direct
            // An aggregator has no memory of the operation.
            && ranks > 1
            && ranks == self.world
            && self.host.as_ref().is_some_and(|host| host.is_whole())
            && self.gpu.is_none()
            && reads_directly(op, request.in_place);
        match request.executor {
            Some(named) if named == Executor::Fused || (named == Executor::Reads && !reads) => {
                Err(Error::invalid(format!("these ranks do not do {op} by {algorithm} without steps")))
            }
            None if reads => Ok((algorithm, Executor::Reads)),
            named => Ok((algorithm, named.unwrap_or(Executor::Steps))),
        }
    }

    /// Whether an all-reduce needs no schedule.
    fn has_fused(&self, request: &Request) -> bool {
        let is_uniform = self.gpu.is_none()
            && match &self.host {
                Some(host) => host.is_whole(),
                None => self.channels.len() == 1,
            };
        let is_named = match request.algorithm {
            None => true,
            Some(Algorithm::Ring | Algorithm::Direct) => self.host.is_none(),
            Some(_) => false,
        };
        request.op == Collective::AllReduce && self.world > 1 && self.ranks() == self.world && is_uniform && is_named
    }

    /// The algorithm of a fused all-reduce of so many bytes.
    fn fused_algorithm(&self, named: Option<Algorithm>, bytes: usize) -> Algorithm {
        let (one_step, two_steps) = match (&self.host, &self.direct, named) {
            (Some(_), ..) => (AllReduce::ONE_STEP, usize::MAX),
            (None, None, _) | (None, _, Some(Algorithm::Ring)) => return Algorithm::Ring,
            (None, Some(_), Some(_)) => (self.tuning.one_step, usize::MAX),
            (None, Some(_), None) => (self.tuning.one_step, self.tuning.two_steps),
        };
        match bytes {
            _ if bytes <= one_step => Algorithm::Direct,
            _ if bytes <= two_steps => Algorithm::TwoStep,
            _ => Algorithm::Ring,
        }
    }

    /// Does a prepared operation, together with the other ranks, which do the same. In place, both
    /// tensors are the same. Returns when this rank's output is complete and both tensors may be
    /// changed again.
    ///
    /// # Errors
    /// `InvalidInput` if a tensor is too short, or has elements of another size than the operation,
    /// if one tensor is given for an operation out of place, or two for one in place, or if the
    /// operation or a tensor is another communicator's. Otherwise
    /// a rank has failed, or the others have made no progress for
    /// [`Tuning::stall`](crate::Tuning::stall).
    #[doc(alias = "MPI_Start")]
    pub fn perform<T: Element>(
        &mut self,
        operation: &Operation,
        input: &Tensor<T>,
        output: &Tensor<T>,
    ) -> Result<(), Error> {
        let request = &operation.request;
        self.check_operands(operation, input, output)?;
        self.compare(|| request.describe::<T>("tensors"))?;
        let signature = self.signature_in_tensors(operation);
        self.do_recorded(request.op, signature, |comm| comm.perform_part(operation, input, output))
    }

    /// What the ranks compare of an operation on tensors.
    pub(crate) fn signature_in_tensors(&self, operation: &Operation) -> Signature {
        // A barrier has taken the token.
        let is_barrier = self.token.is_none();
        if is_barrier { signature::of_barrier(operation.signature) } else { operation.signature }
    }

    /// Does an operation that the ranks compare.
    pub(crate) fn do_recorded(
        &mut self,
        op: Collective,
        signature: Signature,
        body: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.begin_recorded(op, signature)?;
        let done = body(self);
        let done = self.or_mismatch(done);
        self.ended(Some(op), done)
    }

    /// Does a prepared operation as a part of one that has begun.
    pub(crate) fn perform_part<T: Element>(
        &mut self,
        operation: &Operation,
        input: &Tensor<T>,
        output: &Tensor<T>,
    ) -> Result<(), Error> {
        let Operation { request, algorithm, executor, bytes, .. } = operation;
        self.execute_operation(operation, input, output)?;
        self.stats.count(request.op, *algorithm, *executor, *bytes);
        Ok(())
    }

    /// Refuses tensors that do not fit an operation.
    pub(crate) fn check_operands<T: Element>(
        &self,
        operation: &Operation,
        input: &Tensor<T>,
        output: &Tensor<T>,
    ) -> Result<(), Error> {
        let Operation { request, layout, element, owner, .. } = operation;
        self.maker.check()?;
        self.check_tensors(input, output)?;
        if *owner != self.number {
            return Err(Error::invalid("the operation was prepared by another communicator"));
        }
        if *element != T::TYPE || input.is(output) != request.in_place {
            return Err(Error::invalid("the operation was prepared for other tensors"));
        }
        let Layout { input: from, output: to } = layout;
        if from.end > input.count() || to.end > output.count() {
            let (op, most) = (request.op, from.end.max(to.end));
            return Err(Error::invalid(format!("{op} of {most} elements in tensors that have fewer")));
        }
        Ok(())
    }

    pub(crate) fn execute_operation<T: Element>(
        &mut self,
        operation: &Operation,
        input: &Tensor<T>,
        output: &Tensor<T>,
    ) -> Result<(), Error> {
        let Operation { request, job, layout, algorithm, schedule, executor, .. } = operation;
        let Layout { input: from, output: to } = layout.clone();
        match (executor, schedule) {
            (Executor::Fused, _) => self.fused(*algorithm, request, input, output)?,
            (Executor::Steps, Some(schedule)) => {
                self.run_part(schedule, &input.part(from), &output.part(to.clone()), request.reduction)?;
            }
            _ => {
                let (host, input, output) = self.shared(input, output)?;
                let (op, reduction) = (request.op, request.reduction);
                DirectReads { host, op, job, input, output, reduction }.run::<T>()?;
            }
        }
        if request.op.reduces() && *executor != Executor::Fused {
            // There may be other aggregators by now.
            return finish(&output.part(to), request.reduction, job.ranks);
        }
        Ok(())
    }

    /// A fused all-reduce.
    fn fused<T: Element>(
        &mut self,
        algorithm: Algorithm,
        request: &Request,
        input: &Tensor<T>,
        output: &Tensor<T>,
    ) -> Result<(), Error> {
        let (count, reduction) = (request.count, request.reduction);
        if count == 0 {
            return Ok(());
        }
        if self.host.is_some() {
            let (host, input, output) = self.shared(input, output)?;
            return AllReduce { host, input, output, bytes: count * size_of::<T>(), reduction }.run::<T>();
        }
        let (fabric, blocks) = (&mut self.fabrics[0], &mut self.blocks);
        let operation = tensor::Operation { fabric, blocks, input, output, count, reduction };
        match (algorithm, &mut self.direct, &mut self.ring) {
            (Algorithm::Direct, Some(direct), _) => direct.one_step(operation),
            (Algorithm::TwoStep, Some(direct), _) => direct.two_steps(operation),
            (_, _, Some(ring)) => ring.run(operation),
            _ => Err(Error::new("ranks that are not connected cannot work together")),
        }
    }
}
