//! One collective on tensors of one size, ready to run and to check.

use std::sync::Arc;

use rdma_collectives::{Algorithm, Communicator, Element, Error, Operation, Pattern, Request, Tensor};

use super::shape::{Expected, expected};

/// A collective of one rank.
#[derive(Debug)]
pub(crate) struct Case<T> {
    request: Request,
    operation: Operation,
    input: Arc<Tensor<T>>,
    output: Arc<Tensor<T>>,
}

impl<T: Element> Case<T> {
    /// Prepares a collective on two tensors, or in place on one.
    pub(crate) fn new(
        comm: &Communicator,
        request: Request,
        input: &Arc<Tensor<T>>,
        output: &Arc<Tensor<T>>,
    ) -> Result<Self, Error> {
        let operation = comm.prepare::<T>(request.clone())?;
        Ok(Self { request, operation, input: Arc::clone(input), output: Arc::clone(output) })
    }

    /// Does the collective once, together with the other ranks.
    pub(crate) fn run(&self, comm: &mut Communicator) -> Result<(), Error> {
        comm.perform(&self.operation, &self.input, &self.output)
    }

    /// The algorithm.
    pub(crate) fn algorithm(&self) -> Algorithm {
        self.operation.algorithm()
    }

    /// Elements that this rank sends by the steps of a schedule.
    pub(crate) fn sent(&self) -> usize {
        self.operation.sent()
    }

    /// Fills the input with this rank's contribution.
    pub(crate) fn fill(&self, pattern: &Pattern<T>) -> Result<(), Error> {
        let (rank, input) = (self.operation.job().rank, self.operation.layout().input.clone());
        self.input.fill(input, |start, elements| pattern.fill(rank, start, elements))
    }

    /// Fills the output with what cannot be right by chance.
    pub(crate) fn spoil(&self) -> Result<(), Error> {
        let output = self.operation.layout().output.clone();
        self.output.fill(output, |_, elements| elements.fill(T::from_small(0xfefe)))
    }

    /// Counts the wrong elements of the output.
    pub(crate) fn count_wrong(&self, pattern: &Pattern<T>) -> Result<u64, Error> {
        let (mut wrong, first) = (0, self.operation.layout().output.start);
        for Expected { elements, from, start } in expected(self.request.op, self.operation.job()) {
            self.output.for_each(first + elements.start..first + elements.end, |at, elements| {
                wrong += match from {
                    None => pattern.count_wrong(start + at, elements),
                    Some(rank) => pattern.count_wrong_from(rank, start + at, elements),
                };
            })?;
        }
        Ok(wrong)
    }
}
