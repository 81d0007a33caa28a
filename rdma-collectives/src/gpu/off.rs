//! Stands in for `gpu` in builds without the feature `cuda`: there are no tensors on GPUs.

use std::ops::Range;

use rdma::RemoteSlice;

use crate::Error;
use crate::blocks::Blocks;
use crate::element::{Element, Reduction};
use crate::execute::Traffic;
use crate::fabric::Nic;
use crate::place::RankGpu;
use crate::place::TensorPlace;
use crate::schedule::step::Schedule;
use crate::streams::{Room, StreamLinks};

#[derive(Debug)]
pub(crate) enum GpuMemory {}

#[derive(Debug)]
pub(crate) enum GpuTensor {}

#[derive(Debug)]
pub(crate) enum GpuPart {}

impl GpuMemory {
    pub(crate) fn new(_: Nic<'_>, _: usize, _: Room, _: TensorPlace) -> Result<Self, Error> {
        Err(Error::new("this build has no GPU memory: build with the feature cuda, or put tensors into host memory"))
    }

    pub(crate) fn describe(&self) -> RankGpu {
        match *self {}
    }

    pub(crate) fn slots(&self) -> Result<RemoteSlice, Error> {
        match *self {}
    }

    pub(crate) fn allocate(&self, _: usize) -> Result<GpuTensor, Error> {
        match *self {}
    }

    #[allow(clippy::extra_unused_type_parameters, reason = "the signature is that of `gpu`")]
    pub(crate) fn run<T: Element>(
        &mut self,
        _: StreamLinks<'_>,
        _: &mut Blocks,
        _: &Schedule,
        _: [GpuPart; 2],
        _: Reduction,
    ) -> Result<Traffic, Error> {
        match *self {}
    }
}

impl GpuTensor {
    pub(crate) fn len(&self) -> usize {
        match *self {}
    }

    pub(crate) fn part(&self, _: Range<usize>) -> Result<GpuPart, Error> {
        match *self {}
    }

    pub(crate) fn copy_in(&self, _: usize, _: &[u8]) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn copy_out(&self, _: usize, _: &mut [u8]) -> Result<(), Error> {
        match *self {}
    }
}
