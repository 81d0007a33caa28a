//! Messages that wait for work of a GPU.

use std::sync::Arc;

use rdma::ExposedSlice;
use rdma_cuda::{GpuRegion, GpuSlice, Pending, Ready};

use super::failed;
use crate::Error;
use crate::shm::HostSlice;
use crate::streams::Message;

/// A message, or a piece of one, that a device may read once work of the GPU is done.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// Memory of the GPU that the work may write, and its region.
    Direct(Pending<Ready<GpuSlice<u8>>>, Arc<GpuRegion>),
    /// Host memory that the work copies a piece to.
    Staged(Pending<Ready<ExposedSlice>>),
}

impl Outgoing {
    /// The message, if the work is done.
    pub(super) fn poll(&mut self) -> Result<Option<Message>, Error> {
        Ok(match self {
            Self::Direct(slice, region) => {
                slice.poll().map_err(failed)?.map(|slice| direct(&slice, region)).transpose()?
            }
            Self::Staged(piece) => piece.poll().map_err(failed)?.map(staged),
        })
    }

    /// Waits until the work is done.
    pub(super) fn wait(self) -> Result<Message, Error> {
        match self {
            Self::Direct(slice, region) => direct(&slice.wait().map_err(failed)?, &region),
            Self::Staged(piece) => Ok(staged(piece.wait().map_err(failed)?)),
        }
    }
}

fn direct(slice: &Ready<GpuSlice<u8>>, region: &GpuRegion) -> Result<Message, Error> {
    region.source(slice).map(Message::from).map_err(failed)
}

fn staged(piece: Ready<ExposedSlice>) -> Message {
    HostSlice::from(piece.into_inner()).into()
}
