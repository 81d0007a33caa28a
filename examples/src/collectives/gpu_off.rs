//! Stands in for `gpu` in builds without the feature `cuda`: there are no tensors on GPUs.

use std::ops::Range;

use rdma::RemoteSlice;

use super::blocks::Blocks;
use super::communicator::RankGpu;
use super::element::{Element, Reduction};
use super::execute::Traffic;
use super::fabric::Nic;
use super::step::Schedule;
use super::streams::{Room, StreamLinks};
use super::tuning::TensorPlace;
use crate::Failure;
use crate::device::DeviceOptions;

pub(crate) fn near_gpu(device: DeviceOptions, _: usize) -> DeviceOptions {
    device
}

#[derive(Debug)]
pub(super) enum GpuMemory {}

#[derive(Debug)]
pub(super) enum GpuTensor {}

#[derive(Debug)]
pub(super) enum GpuPart {}

impl GpuMemory {
    pub(super) fn new(_: Nic<'_>, _: usize, _: Room, _: TensorPlace) -> Result<Self, Failure> {
        Err(Failure::new("this build has no GPU memory: build with the feature cuda, or use --memory host"))
    }

    pub(super) fn describe(&self) -> RankGpu {
        match *self {}
    }

    pub(super) fn slots(&self) -> Result<RemoteSlice, Failure> {
        match *self {}
    }

    pub(super) fn allocate(&self, _: usize) -> Result<GpuTensor, Failure> {
        match *self {}
    }

    #[allow(clippy::extra_unused_type_parameters, reason = "the signature is that of `gpu`")]
    pub(super) fn run<T: Element>(
        &mut self,
        _: StreamLinks<'_>,
        _: &mut Blocks,
        _: &Schedule,
        _: [GpuPart; 2],
        _: Reduction,
    ) -> Result<Traffic, Failure> {
        match *self {}
    }
}

impl GpuTensor {
    pub(super) fn part(&self, _: Range<usize>) -> Result<GpuPart, Failure> {
        match *self {}
    }

    pub(super) fn copy_in(&self, _: usize, _: &[u8]) -> Result<(), Failure> {
        match *self {}
    }

    pub(super) fn copy_out(&self, _: usize, _: &mut [u8]) -> Result<(), Failure> {
        match *self {}
    }
}
