//! Links of memory of GPUs: messages are copied to the host, travel as those of host memory do, and
//! are copied to the GPU.

use std::collections::VecDeque;

use rdma::ExposedSlice;
use rdma_cuda::Event;

use super::tensor::GpuPart;
use super::{GpuMemory, failed};
use crate::Failure;
use crate::collectives::blocks::parts;
use crate::collectives::link::{Links, Slice, Ticket};
use crate::collectives::streams::StreamLinks;
use crate::collectives::wait::Wait;

/// The links of a rank, for one collective.
#[derive(Debug)]
pub(super) struct GpuLinks<'a> {
    gpu: &'a GpuMemory,
    streams: StreamLinks<'a>,
    /// Pieces on their way to the host, in order.
    downloads: VecDeque<Download>,
    /// The copy of each rank's piece to the GPU.
    uploads: Vec<Option<Event>>,
}

/// A piece of a message on its way from the GPU to the host.
#[derive(Debug)]
struct Download {
    to: usize,
    copied: Event,
    piece: ExposedSlice,
}

impl<'a> GpuLinks<'a> {
    pub(super) fn new(gpu: &'a GpuMemory, streams: StreamLinks<'a>) -> Self {
        let uploads = gpu.windows.iter().map(|_| None).collect();
        Self { gpu, streams, downloads: VecDeque::new(), uploads }
    }

    /// Sends the pieces that have come to the host.
    fn push(&mut self) -> Result<(), Failure> {
        while let Some(Download { to, piece, copied }) = self.downloads.front() {
            if !copied.is_done().map_err(failed)? {
                break;
            }
            self.streams.post(*to, piece.clone().into())?;
            self.downloads.pop_front();
        }
        Ok(())
    }
}

/// Each piece of a message is a message of its own for the streams, which makes no difference to
/// the receiver.
impl Links for GpuLinks<'_> {
    type Slice = GpuPart;

    fn piece(&self) -> usize {
        self.streams.piece()
    }

    fn post(&mut self, to: usize, message: GpuPart) -> Result<Ticket, Failure> {
        let empty = (message.len() == 0).then_some(0..0);
        for bytes in empty.into_iter().chain(parts(0..message.len(), self.piece())) {
            let (copied, piece) = message.part(bytes)?.stage()?;
            self.downloads.push_back(Download { to, copied, piece });
        }
        let waiting = self.downloads.iter().filter(|download| download.to == to).count();
        Ok(Ticket { to, number: self.streams.posted(to) + waiting as u64 })
    }

    fn is_taken(&mut self, ticket: Ticket) -> Result<bool, Failure> {
        self.push()?;
        if self.streams.posted(ticket.to) < ticket.number { Ok(false) } else { self.streams.is_taken(ticket) }
    }

    fn arrived(&mut self, from: usize, length: usize) -> Result<Option<GpuPart>, Failure> {
        self.push()?;
        let Some(piece) = self.streams.arrived(from, length)? else { return Ok(None) };
        let GpuMemory { engine, slots, windows, .. } = self.gpu;
        let window = windows[from].range(..length).map_err(failed)?;
        let copied = slots.upload(&engine.stream, &piece.registered(0)?, &window).map_err(failed)?;
        self.uploads[from] = Some(copied);
        Ok(Some(GpuPart::received(engine, window)))
    }

    fn release(&mut self, from: usize) -> Result<(), Failure> {
        if let Some(copied) = self.uploads[from].take() {
            copied.wait().map_err(failed)?;
        }
        self.streams.release(from)
    }

    fn pause(&mut self, wait: &mut Wait) -> Result<(), Failure> {
        let Some(Download { copied, .. }) = self.downloads.front() else { return self.streams.pause(wait) };
        copied.wait().map_err(failed)?;
        self.push()
    }
}
