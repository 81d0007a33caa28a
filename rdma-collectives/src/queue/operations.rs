//! The operations that a queue starts by name: those of [`Communicator`], with memory that moves in
//! and comes back.

use super::Queue;
use crate::communicator::Communicator;
use crate::element::Reduction;
use crate::messages::Transfer;
use crate::queue::memory::{OwnedSource, OwnedTarget};
use crate::queue::pending::{Pending, Started, StartedWith};

/// Defines operations with an input and an output. Each argument is followed by what the
/// communicator's method takes of it.
macro_rules! with_input_and_output {
    ($($name:ident($($argument:ident: $type:ty => $given:expr),*), $mpi:literal;)+) => {$(
        #[doc = concat!("Starts [`", stringify!($name), "`](Communicator::", stringify!($name), ").")]
        #[doc = "Input and output come back with the result, also of an operation that has failed."]
        #[doc = ""]
        #[doc = concat!("This is MPI's `", $mpi, "`.")]
        #[doc(alias = $mpi)]
        pub fn $name<I, O>(&self, input: I, output: O $(, $argument: $type)*) -> Started<(I, O)>
        where
            I: OwnedSource,
            O: OwnedTarget<Element = I::Element>,
        {
            self.start_on((input, output), move |comm, (input, output)| {
                comm.$name(input.source(), output.target() $(, $given)*)
            })
        }
    )+};
}

/// Defines operations on one memory, to which `$access` gives the access that the method needs.
macro_rules! with_one_memory {
    ($($name:ident($access:ident: $owned:ident $(, $argument:ident: $type:ty)*), $what:literal;)+) => {$(
        #[doc = concat!("Starts [`", stringify!($name), "`](Communicator::", stringify!($name), ").")]
        #[doc = "The memory comes back with the result, also of an operation that has failed."]
        #[doc = ""]
        #[doc = concat!("This is ", $what, ".")]
        pub fn $name<M: $owned>(&self, memory: M $(, $argument: $type)*) -> Started<M> {
            self.start_on(memory, move |comm, memory| comm.$name(memory.$access() $(, $argument)*))
        }
    )+};
}

/// The operations of [`Communicator`] by name. Every rank starts the same ones in the same order.
impl Queue {
    with_input_and_output! {
        all_reduce(reduction: Reduction => reduction), "MPI_Iallreduce";
        all_gather(), "MPI_Iallgather";
        all_gather_v(counts: Vec<usize> => &counts), "MPI_Iallgatherv";
        reduce_scatter(reduction: Reduction => reduction), "MPI_Ireduce_scatter_block";
        reduce_scatter_v(counts: Vec<usize> => &counts, reduction: Reduction => reduction), "MPI_Ireduce_scatter";
        all_to_all(), "MPI_Ialltoall";
        reduce(root: usize => root, reduction: Reduction => reduction), "MPI_Ireduce";
        gather(root: usize => root), "MPI_Igather";
        gather_v(counts: Vec<usize> => &counts, root: usize => root), "MPI_Igatherv";
        scatter(root: usize => root), "MPI_Iscatter";
        scatter_v(counts: Vec<usize> => &counts, root: usize => root), "MPI_Iscatterv";
    }

    with_one_memory! {
        all_reduce_in_place(target: OwnedTarget, reduction: Reduction), "MPI's `MPI_Iallreduce` with `MPI_IN_PLACE`";
        all_gather_in_place(target: OwnedTarget), "MPI's `MPI_Iallgather` with `MPI_IN_PLACE`";
        reduce_scatter_in_place(target: OwnedTarget, reduction: Reduction),
            "MPI's `MPI_Ireduce_scatter_block` with `MPI_IN_PLACE`";
        all_to_all_in_place(target: OwnedTarget), "MPI's `MPI_Ialltoall` with `MPI_IN_PLACE`";
        broadcast(target: OwnedTarget, root: usize), "MPI's `MPI_Ibcast`";
        send(source: OwnedSource, to: usize), "MPI's `MPI_Isend`, in the order of the queue";
        recv(target: OwnedTarget, from: usize), "MPI's `MPI_Irecv`, in the order of the queue";
    }

    /// Starts [`all_reduce_scaled`](Communicator::all_reduce_scaled). The memory comes back with
    /// the result, also of an operation that has failed.
    pub fn all_reduce_scaled<M: OwnedTarget>(&self, memory: M, factor: M::Element, reduction: Reduction) -> Started<M> {
        self.start_on(memory, move |comm, memory| comm.all_reduce_scaled(memory.target(), factor, reduction))
    }

    /// Starts [`all_to_all_v`](Communicator::all_to_all_v). Input and output come back, with the
    /// lengths of the blocks that came.
    ///
    /// This is MPI's `MPI_Ialltoallv`.
    #[doc(alias = "MPI_Ialltoallv")]
    pub fn all_to_all_v<I, O>(&self, input: I, counts: Vec<usize>, output: O) -> StartedWith<(I, O), Vec<usize>>
    where
        I: OwnedSource,
        O: OwnedTarget<Element = I::Element>,
    {
        self.start_with((input, output), move |comm, (input, output)| {
            comm.all_to_all_v(input.source(), &counts, output.target())
        })
    }

    /// Starts [`barrier`](Communicator::barrier).
    ///
    /// This is MPI's `MPI_Ibarrier`.
    #[doc(alias = "MPI_Ibarrier")]
    pub fn barrier(&self) -> Pending<()> {
        self.start(Communicator::barrier)
    }

    /// Starts [`recv_any`](Communicator::recv_any). The memory comes back, with the rank that has
    /// sent the message.
    pub fn recv_any<M: OwnedTarget>(&self, memory: M) -> StartedWith<M, usize> {
        self.start_with(memory, |comm, memory| comm.recv_any(memory.target()))
    }

    /// Starts an [`exchange`](Communicator::exchange) of messages: each memory of `sends` goes to
    /// the rank beside it, and each of `receives` takes a message of the rank beside it. All come
    /// back.
    #[allow(clippy::type_complexity, reason = "two lists of memory with ranks")]
    pub fn exchange<S, R>(
        &self,
        sends: Vec<(S, usize)>,
        receives: Vec<(R, usize)>,
    ) -> Started<(Vec<(S, usize)>, Vec<(R, usize)>)>
    where
        S: OwnedSource,
        R: OwnedTarget<Element = S::Element>,
    {
        self.start_on((sends, receives), |comm, (sends, receives)| {
            let sends = sends.iter().map(|(memory, to)| Transfer::send(memory.source(), *to));
            let receives = receives.iter_mut().map(|(memory, from)| Transfer::recv(memory.target(), *from));
            comm.exchange(&mut sends.chain(receives).collect::<Vec<_>>())
        })
    }
}
