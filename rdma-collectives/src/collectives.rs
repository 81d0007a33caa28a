//! The operations of a communicator, by name.
//!
//! Each takes tensors, which are the fastest, or any memory of the program, which is copied through
//! tensors of the communicator, piece by piece. A request tells the same at every rank: the counts
//! follow from the lengths of the memory, and ranks whose lengths do not fit get an error. The
//! kind of memory has to be the same too: ranks do memory of the program by pieces, and tensors at
//! once.

use std::ops::Range;

use crate::Error;
use crate::communicator::Communicator;
use crate::element::{DataType, Element, Reduction};
use crate::memory::{Source, Target};
use crate::operation::{Operation, Request};
use crate::schedule::{Collective, Job};
use crate::signature;
use crate::tensor::Tensor;

/// Most bytes of a tensor through which the program's memory is copied, unless there are so many
/// ranks that each block has one element.
const STAGE: usize = if cfg!(test) { 8 << 10 } else { 4 << 20 };
/// Pieces of blocks have a multiple of so many elements, if they have as many.
const ALIGNMENT: usize = 64;

impl Communicator {
    /// Reduces the inputs of all ranks into the output of every rank. All ranks get the same bits.
    ///
    /// This is NCCL's `ncclAllReduce` and MPI's `MPI_Allreduce`. Input and output may be the same
    /// tensor.
    ///
    /// # Errors
    /// `InvalidInput` if input and output differ in length; otherwise a rank has failed, or the
    /// others have made no progress for [`Tuning::stall`](crate::Tuning::stall).
    #[doc(alias = "ncclAllReduce")]
    #[doc(alias = "MPI_Allreduce")]
    pub fn all_reduce<'a, T: Element>(
        &mut self,
        input: impl Into<Source<'a, T>>,
        output: impl Into<Target<'a, T>>,
        reduction: Reduction,
    ) -> Result<(), Error> {
        let input = input.into();
        let request = Request { reduction, ..Request::new(Collective::AllReduce, input.len()) };
        self.two(request, input, output.into())
    }

    /// Reduces the memory of all ranks, in place, as [`all_reduce`](Self::all_reduce) does and MPI
    /// with `MPI_IN_PLACE`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    #[doc(alias = "ncclAllReduce")]
    pub fn all_reduce_in_place<'a, T: Element>(
        &mut self,
        memory: impl Into<Target<'a, T>>,
        reduction: Reduction,
    ) -> Result<(), Error> {
        let memory = memory.into();
        let request = Request { reduction, ..Request::new(Collective::AllReduce, memory.len()) };
        self.one(request, memory)
    }

    /// Multiplies this rank's elements by a factor, then reduces the memory of all ranks in place:
    /// NCCL's `PreMulSum`, if the reduction is the sum. Each rank may have a factor of its own.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce). With `InvalidInput` the memory is as it was, unless the
    /// ranks have begun different operations.
    pub fn all_reduce_scaled<'a, T: Element>(
        &mut self,
        memory: impl Into<Target<'a, T>>,
        factor: T,
        reduction: Reduction,
    ) -> Result<(), Error> {
        let memory = memory.into();
        let request = Request { reduction, in_place: true, ..Request::new(Collective::AllReduce, memory.len()) };
        self.do_on(&request, Operands::One(memory), Some(factor))
    }

    /// Gives the input of every rank to all: the output has the inputs in the order of ranks.
    ///
    /// This is NCCL's `ncclAllGather` and MPI's `MPI_Allgather`.
    ///
    /// # Errors
    /// `InvalidInput` if the output is not as long as the inputs of all ranks; otherwise a rank has
    /// failed.
    #[doc(alias = "ncclAllGather")]
    #[doc(alias = "MPI_Allgather")]
    pub fn all_gather<'a, T: Element>(
        &mut self,
        input: impl Into<Source<'a, T>>,
        output: impl Into<Target<'a, T>>,
    ) -> Result<(), Error> {
        let input = input.into();
        self.two(Request::new(Collective::AllGather, input.len()), input, output.into())
    }

    /// Gives every rank's block of the memory to all, in place: of `n` blocks of equal length, rank
    /// `r` has filled block `r`.
    ///
    /// # Errors
    /// `InvalidInput` if the memory cannot be divided among the ranks; otherwise a rank has failed.
    pub fn all_gather_in_place<'a, T: Element>(&mut self, memory: impl Into<Target<'a, T>>) -> Result<(), Error> {
        let memory = memory.into();
        let count = self.block_of(memory.len())?;
        self.one(Request::new(Collective::AllGather, count), memory)
    }

    /// As [`all_gather`](Self::all_gather), where the input of rank `r` has `counts[r]` elements;
    /// every rank gives all counts. The blocks lie side by side in the output.
    ///
    /// This is MPI's `MPI_Allgatherv`, without displacements.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather).
    #[doc(alias = "MPI_Allgatherv")]
    pub fn all_gather_v<'a, T: Element>(
        &mut self,
        input: impl Into<Source<'a, T>>,
        output: impl Into<Target<'a, T>>,
        counts: &[usize],
    ) -> Result<(), Error> {
        self.two(self.uneven(Collective::AllGather, counts)?, input.into(), output.into())
    }

    /// Reduces the inputs of all ranks, of which each rank gets one block, in the order of ranks.
    ///
    /// This is NCCL's `ncclReduceScatter` and MPI's `MPI_Reduce_scatter_block`.
    ///
    /// # Errors
    /// `InvalidInput` if the input is not as long as the outputs of all ranks; otherwise a rank has
    /// failed.
    #[doc(alias = "ncclReduceScatter")]
    #[doc(alias = "MPI_Reduce_scatter_block")]
    pub fn reduce_scatter<'a, T: Element>(
        &mut self,
        input: impl Into<Source<'a, T>>,
        output: impl Into<Target<'a, T>>,
        reduction: Reduction,
    ) -> Result<(), Error> {
        let output = output.into();
        let request = Request { reduction, ..Request::new(Collective::ReduceScatter, output.len()) };
        self.two(request, input.into(), output)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), where rank `r` gets block `r` of the memory in
    /// place; its other blocks stay as they are.
    ///
    /// # Errors
    /// `InvalidInput` if the memory cannot be divided among the ranks; otherwise a rank has failed.
    pub fn reduce_scatter_in_place<'a, T: Element>(
        &mut self,
        memory: impl Into<Target<'a, T>>,
        reduction: Reduction,
    ) -> Result<(), Error> {
        let memory = memory.into();
        let count = self.block_of(memory.len())?;
        self.one(Request { reduction, ..Request::new(Collective::ReduceScatter, count) }, memory)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), where the block of rank `r` has `counts[r]`
    /// elements; every rank gives all counts.
    ///
    /// This is MPI's `MPI_Reduce_scatter`.
    ///
    /// # Errors
    /// As [`reduce_scatter`](Self::reduce_scatter).
    #[doc(alias = "MPI_Reduce_scatter")]
    pub fn reduce_scatter_v<'a, T: Element>(
        &mut self,
        input: impl Into<Source<'a, T>>,
        output: impl Into<Target<'a, T>>,
        counts: &[usize],
        reduction: Reduction,
    ) -> Result<(), Error> {
        let request = Request { reduction, ..self.uneven(Collective::ReduceScatter, counts)? };
        self.two(request, input.into(), output.into())
    }

    /// Sends block `r` of the input to each rank `r`; the output has the blocks that came, in the
    /// order of ranks.
    ///
    /// This is NCCL's `ncclAlltoAll` and MPI's `MPI_Alltoall`.
    ///
    /// # Errors
    /// `InvalidInput` if input and output differ in length, or cannot be divided among the ranks;
    /// otherwise a rank has failed.
    #[doc(alias = "ncclAlltoAll")]
    #[doc(alias = "MPI_Alltoall")]
    pub fn all_to_all<'a, T: Element>(
        &mut self,
        input: impl Into<Source<'a, T>>,
        output: impl Into<Target<'a, T>>,
    ) -> Result<(), Error> {
        let input = input.into();
        let count = self.block_of(input.len())?;
        self.two(Request::new(Collective::AllToAll, count), input, output.into())
    }

    /// As [`all_to_all`](Self::all_to_all), in place, for which the memory is copied first.
    ///
    /// # Errors
    /// As [`all_to_all`](Self::all_to_all).
    pub fn all_to_all_in_place<'a, T: Element>(&mut self, memory: impl Into<Target<'a, T>>) -> Result<(), Error> {
        let memory = memory.into();
        let count = self.block_of(memory.len())?;
        self.one(Request::new(Collective::AllToAll, count), memory)
    }

    /// As [`all_to_all`](Self::all_to_all), where this rank's block for rank `r` has `counts[r]`
    /// elements. Returns the lengths of the blocks that came.
    ///
    /// This is MPI's `MPI_Alltoallv`, without displacements, and without the counts that come: the
    /// ranks tell each other theirs first, which costs an all-gather.
    ///
    /// # Errors
    /// `InvalidInput` if the input has not the elements of all counts, or the output not those that
    /// come, neither fewer nor more, as with every operation; the error has both numbers.
    /// Otherwise a rank has failed.
    #[doc(alias = "MPI_Alltoallv")]
    pub fn all_to_all_v<'a, T: Element>(
        &mut self,
        input: impl Into<Source<'a, T>>,
        counts: &[usize],
        output: impl Into<Target<'a, T>>,
    ) -> Result<Vec<usize>, Error> {
        let ranks = self.ranks();
        if counts.len() != ranks {
            return Err(Error::invalid(format!("{} counts for {ranks} ranks: give one for each", counts.len())));
        }
        let (input, output) = (input.into(), output.into());
        let job = self.as_one(Collective::AllToAllV, |comm| {
            let in_tensors = matches!((&input, &output), (Source::Tensor(..), Target::Tensor(..)));
            let counts = comm.gather_counts(counts, T::TYPE, in_tensors)?;
            let request = Request { counts, ..Request::new(Collective::AllToAllV, 0) };
            let job = Job { counts: request.counts.clone(), ..Job::new(comm.rank(), ranks, 0) };
            comm.two(request, input, output)?;
            Ok(job)
        })?;
        let came = |from| if job.is_aggregator() { 0 } else { job.received(Collective::AllToAllV, from).len() };
        Ok((0..ranks).map(came).collect())
    }

    /// The counts of all ranks in an all-to-all of different lengths, of which this is the first
    /// step. The ranks compare it as such.
    fn gather_counts(&mut self, own: &[usize], element: DataType, in_tensors: bool) -> Result<Vec<usize>, Error> {
        let (op, ranks) = (Collective::AllToAllV, self.ranks());
        let own: Vec<u64> = own.iter().map(|&count| count as u64).collect();
        let request = Request::new(Collective::AllGather, ranks);
        let operation = self.prepare::<u64>(request.clone())?;
        let memory = if in_tensors { "tensors" } else { "slices" };
        self.compare(|| format!("{op} of elements of type {} in {memory}", element.name()))?;
        let mut all = vec![0_u64; ranks * ranks];
        self.do_recorded(op, signature::of_counts(element, in_tensors), |comm| {
            comm.do_by_pieces(&request, &operation, &mut Operands::Two((&own).into(), (&mut all).into()))
        })?;
        Ok(all.into_iter().map(|count| usize::try_from(count).unwrap_or(usize::MAX)).collect())
    }

    /// Gives the memory of the root to all; the memory of all ranks has the same length.
    ///
    /// This is NCCL's `ncclBroadcast` in place, which is its `ncclBcast`, and MPI's `MPI_Bcast`.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such root; otherwise a rank has failed.
    #[doc(alias = "ncclBroadcast")]
    #[doc(alias = "ncclBcast")]
    #[doc(alias = "MPI_Bcast")]
    pub fn broadcast<'a, T: Element>(&mut self, memory: impl Into<Target<'a, T>>, root: usize) -> Result<(), Error> {
        let memory = memory.into();
        self.one(Request { root, ..Request::new(Collective::Broadcast, memory.len()) }, memory)
    }

    /// Reduces the inputs of all ranks into the output of the root. The outputs of the others may
    /// be empty.
    ///
    /// This is NCCL's `ncclReduce` and MPI's `MPI_Reduce`.
    ///
    /// # Errors
    /// `InvalidInput` if the root's output differs in length; otherwise a rank has failed.
    #[doc(alias = "ncclReduce")]
    #[doc(alias = "MPI_Reduce")]
    pub fn reduce<'a, T: Element>(
        &mut self,
        input: impl Into<Source<'a, T>>,
        output: impl Into<Target<'a, T>>,
        root: usize,
        reduction: Reduction,
    ) -> Result<(), Error> {
        let input = input.into();
        let request = Request { root, reduction, ..Request::new(Collective::Reduce, input.len()) };
        self.two(request, input, output.into())
    }

    /// Gives the inputs of all ranks to the root, in the order of ranks. The outputs of the others
    /// may be empty.
    ///
    /// This is NCCL's `ncclGather` and MPI's `MPI_Gather`.
    ///
    /// # Errors
    /// `InvalidInput` if the root's output is not as long as all inputs; otherwise a rank has
    /// failed.
    #[doc(alias = "ncclGather")]
    #[doc(alias = "MPI_Gather")]
    pub fn gather<'a, T: Element>(
        &mut self,
        input: impl Into<Source<'a, T>>,
        output: impl Into<Target<'a, T>>,
        root: usize,
    ) -> Result<(), Error> {
        let input = input.into();
        self.two(Request { root, ..Request::new(Collective::Gather, input.len()) }, input, output.into())
    }

    /// As [`gather`](Self::gather), where the input of rank `r` has `counts[r]` elements; every
    /// rank gives all counts.
    ///
    /// This is MPI's `MPI_Gatherv`, without displacements.
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    #[doc(alias = "MPI_Gatherv")]
    pub fn gather_v<'a, T: Element>(
        &mut self,
        input: impl Into<Source<'a, T>>,
        output: impl Into<Target<'a, T>>,
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.two(Request { root, ..self.uneven(Collective::Gather, counts)? }, input.into(), output.into())
    }

    /// Gives each rank its block of the root's input, in the order of ranks. The inputs of the
    /// others may be empty.
    ///
    /// This is NCCL's `ncclScatter` and MPI's `MPI_Scatter`.
    ///
    /// # Errors
    /// `InvalidInput` if the root's input is not as long as all outputs; otherwise a rank has
    /// failed.
    #[doc(alias = "ncclScatter")]
    #[doc(alias = "MPI_Scatter")]
    pub fn scatter<'a, T: Element>(
        &mut self,
        input: impl Into<Source<'a, T>>,
        output: impl Into<Target<'a, T>>,
        root: usize,
    ) -> Result<(), Error> {
        let output = output.into();
        self.two(Request { root, ..Request::new(Collective::Scatter, output.len()) }, input.into(), output)
    }

    /// As [`scatter`](Self::scatter), where rank `r` gets `counts[r]` elements; every rank gives
    /// all counts.
    ///
    /// This is MPI's `MPI_Scatterv`, without displacements.
    ///
    /// # Errors
    /// As [`scatter`](Self::scatter).
    #[doc(alias = "MPI_Scatterv")]
    pub fn scatter_v<'a, T: Element>(
        &mut self,
        input: impl Into<Source<'a, T>>,
        output: impl Into<Target<'a, T>>,
        counts: &[usize],
        root: usize,
    ) -> Result<(), Error> {
        self.two(Request { root, ..self.uneven(Collective::Scatter, counts)? }, input.into(), output.into())
    }

    /// Returns when every rank has called this function. It is an all-reduce of one number.
    ///
    /// This is MPI's `MPI_Barrier`.
    ///
    /// # Errors
    /// If a rank has failed, or has not come for [`Tuning::stall`](crate::Tuning::stall).
    #[doc(alias = "MPI_Barrier")]
    pub fn barrier(&mut self) -> Result<(), Error> {
        let token = self.token.take().ok_or_else(|| Error::new("an earlier barrier has panicked"))?;
        let result = self.all_reduce_in_place(&token, Reduction::Sum);
        self.token = Some(token);
        result
    }

    /// The length of a rank's block of some elements.
    fn block_of(&self, elements: usize) -> Result<usize, Error> {
        let ranks = self.ranks();
        if elements % ranks != 0 {
            return Err(Error::invalid(format!("{elements} elements cannot be divided among {ranks} ranks")));
        }
        Ok(elements / ranks)
    }

    /// A request for blocks of these lengths, one of each rank.
    fn uneven(&self, op: Collective, counts: &[usize]) -> Result<Request, Error> {
        if counts.is_empty() {
            return Err(Error::invalid(format!("{op}: 0 counts for {} ranks: give one for each", self.ranks())));
        }
        Ok(Request { counts: counts.to_vec(), ..Request::new(op, 0) })
    }

    /// Does an operation with an input and an output.
    fn two<T: Element>(&mut self, request: Request, input: Source<'_, T>, output: Target<'_, T>) -> Result<(), Error> {
        match (input, output) {
            (Source::Tensor(from, _), Target::Tensor(to, count)) if from.is(to) => match request.op {
                Collective::AllReduce => self.one(request, Target::Tensor(to, count)),
                op => Err(Error::invalid(format!("input and output of {op} are one tensor: use the call in place"))),
            },
            (input, output) => self.do_on(&request, Operands::Two(input, output), None),
        }
    }

    /// Does an operation in place.
    fn one<T: Element>(&mut self, request: Request, memory: Target<'_, T>) -> Result<(), Error> {
        self.do_on(&Request { in_place: true, ..request }, Operands::One(memory), None)
    }

    /// Does an operation on some memory, which is multiplied by the factor first if there is one.
    fn do_on<T: Element>(
        &mut self,
        request: &Request,
        mut operands: Operands<'_, T>,
        factor: Option<T>,
    ) -> Result<(), Error> {
        let operation = match self.last.take() {
            Some(last) if last.is_of::<T>(request) => last,
            _ => self.prepare::<T>(request.clone())?,
        };
        operands.check(request, &operation)?;
        let done = self.do_checked(request, &operation, &mut operands, factor);
        self.last = Some(operation);
        done
    }

    fn do_checked<T: Element>(
        &mut self,
        request: &Request,
        operation: &Operation,
        operands: &mut Operands<'_, T>,
        factor: Option<T>,
    ) -> Result<(), Error> {
        let tensors = operands.tensors();
        let (memory, signature) = match tensors {
            Some([input, output]) => {
                self.check_operands(operation, input, output)?;
                ("tensors", self.signature_in_tensors(operation))
            }
            None => ("slices", signature::in_slices(operation.signature)),
        };
        self.compare(|| request.describe::<T>(memory))?;
        self.do_recorded(request.op, signature, |comm| {
            // Not before: the memory of an operation that is refused stays as it is.
            if let Some(factor) = factor {
                operands.output().scale(factor)?;
            }
            match tensors {
                Some([input, output]) => comm.perform_part(operation, input, output),
                None => comm.do_by_pieces(request, operation, operands),
            }
        })
    }

    /// Does an operation on memory of the program.
    fn do_by_pieces<T: Element>(
        &mut self,
        request: &Request,
        operation: &Operation,
        operands: &mut Operands<'_, T>,
    ) -> Result<(), Error> {
        let (whole, ranks, size) = (operation.job(), self.ranks(), size_of::<T>());
        let longest = whole.longest_block();
        let blocks = if is_of_blocks(request.op) { ranks } else { 1 };
        let most = (STAGE / size / blocks).max(1);
        let piece = if most > ALIGNMENT { most / ALIGNMENT * ALIGNMENT } else { most }.min(longest);
        let [input, output] = self.stage::<T>(piece.saturating_mul(blocks))?;
        let mut done = Ok(());
        let mut start = 0;
        while start < longest && done.is_ok() {
            done = self.do_piece(request, operation, operands, start..start + piece, [&input, &output]);
            start += piece;
        }
        self.stage = Some([input.into_memory(), output.into_memory()]);
        done
    }

    /// Does an operation on a piece of each block.
    fn do_piece<T: Element>(
        &mut self,
        request: &Request,
        whole: &Operation,
        operands: &mut Operands<'_, T>,
        piece: Range<usize>,
        [input, output]: [&Tensor<T>; 2],
    ) -> Result<(), Error> {
        let clip = |count: usize| count.min(piece.end).saturating_sub(piece.start);
        let (count, counts) = (clip(request.count), request.counts.iter().map(|&count| clip(count)).collect());
        let part = self.prepare::<T>(Request { count, counts, in_place: false, ..request.clone() })?;
        let (of_whole, of_part) = (Blocks::of(request.op, whole.job()), Blocks::of(request.op, part.job()));
        let place = |block: &Range<usize>, part: &Range<usize>, offset: usize| {
            let start = offset + block.start + piece.start;
            start..start + part.len()
        };
        for (block, part) in of_whole.input.iter().zip(&of_part.input).filter(|(_, part)| !part.is_empty()) {
            operands.input().copy_to(place(block, part, whole.layout().input.start), input, part.start)?;
        }
        self.perform_part(&part, input, output)?;
        for (block, part) in of_whole.output.iter().zip(&of_part.output).filter(|(_, part)| !part.is_empty()) {
            operands.output().copy_from(place(block, part, whole.layout().output.start), output, part.start)?;
        }
        Ok(())
    }

    /// The tensors through which the program's memory is copied, of at least so many elements.
    fn stage<T: Element>(&mut self, elements: usize) -> Result<[Tensor<T>; 2], Error> {
        let bytes = elements.saturating_mul(size_of::<T>()).max(4096);
        let memory = match self.stage.take() {
            Some(memory) if memory[0].len() >= bytes => memory,
            _ => {
                // No rank can allocate the whole address space, so each hears of it.
                let bytes = bytes.checked_next_power_of_two().unwrap_or(usize::MAX);
                [self.allocate_bytes(bytes)?, self.allocate_bytes(bytes)?]
            }
        };
        let owner = self.number;
        Ok(memory.map(|memory| {
            let count = memory.len() / size_of::<T>();
            Tensor::new(memory, count, owner)
        }))
    }
}

/// The memory of an operation: an input and an output, or one memory in place.
enum Operands<'a, T> {
    Two(Source<'a, T>, Target<'a, T>),
    One(Target<'a, T>),
}

impl<'a, T: Element> Operands<'a, T> {
    fn input(&self) -> Source<'_, T> {
        match self {
            Self::Two(input, _) => *input,
            Self::One(both) => both.as_source(),
        }
    }

    /// The tensors, if all of the memory is in tensors.
    fn tensors(&self) -> Option<[&'a Tensor<T>; 2]> {
        match self {
            Self::One(Target::Tensor(both, _)) => Some([both, both]),
            Self::Two(Source::Tensor(input, _), Target::Tensor(output, _)) => Some([input, output]),
            _ => None,
        }
    }

    fn output(&mut self) -> &mut Target<'a, T> {
        match self {
            Self::Two(_, output) | Self::One(output) => output,
        }
    }

    /// Checks that the memory has the elements of an operation, and that no element is left over,
    /// except where a rank has no part in the operation's input or output.
    fn check(&self, request: &Request, operation: &Operation) -> Result<(), Error> {
        let (layout, job) = (operation.layout(), operation.job());
        let has_part = !job.is_aggregator() && (!request.op.has_root() || job.rank == job.root);
        let check = |what: &str, has: usize, needs: usize| {
            if has == needs || needs == 0 && !has_part {
                return Ok(());
            }
            let op = request.op;
            Err(Error::invalid(format!("{op}: {what} of {has} elements, and the operation has {needs}")))
        };
        match self {
            Self::One(both) => check("memory", both.len(), layout.memory()),
            Self::Two(input, output) => {
                check("an input", input.len(), layout.input.len())?;
                check("an output", output.len(), layout.output.len())
            }
        }
    }
}

/// The blocks of an input and of an output, which begin at the start of their memory.
struct Blocks {
    input: Vec<Range<usize>>,
    output: Vec<Range<usize>>,
}

impl Blocks {
    fn of(op: Collective, job: &Job) -> Self {
        let layout = job.layout(op);
        let whole = |range: &Range<usize>| std::iter::once(0..range.len()).filter(|all| !all.is_empty()).collect();
        let each = |range: &Range<usize>, block: &dyn Fn(usize) -> Range<usize>| {
            if range.is_empty() { Vec::new() } else { (0..job.ranks).map(block).collect() }
        };
        let (input, output) = (&layout.input, &layout.output);
        let block = |rank| job.block(rank);
        match op {
            Collective::AllGather | Collective::HyperCube | Collective::Gather => {
                Self { input: whole(input), output: each(output, &block) }
            }
            Collective::ReduceScatter | Collective::Scatter => {
                Self { input: each(input, &block), output: whole(output) }
            }
            Collective::AllToAll | Collective::AllToAllV => Self {
                input: each(input, &|to| job.sent_by(op, job.rank, to)),
                output: each(output, &|from| job.received(op, from)),
            },
            _ => Self { input: whole(input), output: whole(output) },
        }
    }
}

/// Whether the memory of a rank has a block for each rank.
fn is_of_blocks(op: Collective) -> bool {
    op.has_blocks() || matches!(op, Collective::AllToAll | Collective::AllToAllV | Collective::HyperCube)
}

#[cfg(test)]
mod tests;
