//! Messages between two GPUs through pinned host memory.

use rdma::{ConnectOptions, Endpoint, RemoteAccess};
use rdma_cuda::{GpuBuffer, GpuEndpoint, GpuEndpointOptions, Policy, Preference, Ready, Stream};

use super::{Bench, End, failure, upload};
use crate::Failure;
use crate::pingpong::contents;
use rdma_collectives::bootstrap::Group;

/// A side whose messages are staged.
struct Staged {
    end: GpuEndpoint,
    stream: Stream,
    buffer: GpuBuffer<u8>,
    /// For the other side's answer.
    answer: GpuBuffer<u8>,
}

/// Connects two GPUs by messages; collective.
pub(super) fn connect(bench: &Bench<'_>, group: &mut Group) -> Result<impl End + use<>, Failure> {
    let prepared = (|| {
        let staged = Preference { policy: Policy::Staged, ..Preference::default() };
        let options = GpuEndpointOptions::new().timeout(group.timeout()).preference(staged);
        let init = bench.chosen.adapter.init_options(RemoteAccess::empty());
        let end = GpuEndpoint::prepare(bench.gpu, &bench.pd, &init, options)?;
        if end.path().is_direct() {
            let reason = "RDMA_CUDA_PATH asks for a direct path: unset it to measure staged messages".to_owned();
            return Err(rdma_cuda::Error::Path { reason });
        }
        let buffers = (GpuBuffer::new(bench.gpu, bench.most)?, GpuBuffer::new(bench.gpu, 1)?);
        Ok((end, buffers, Stream::new(bench.gpu)?))
    })();
    let (end, (buffer, answer), stream) =
        group.agree("the staging", prepared.map_err(|error: rdma_cuda::Error| failure(error)))?;
    let own = end.endpoint().to_bytes().to_vec();
    let peer = group.all_gather("the endpoints", &own)?.swap_remove(1 - group.rank());
    let connected = Endpoint::from_bytes(&peer).map_err(Failure::from);
    let options = ConnectOptions::new().path(bench.chosen.adapter.path);
    let connected = connected.and_then(|peer| end.connect(&peer, &options).map_err(failure));
    let end = group.agree("the connections", connected)?;
    Ok(Staged { end, stream, buffer, answer })
}

impl Staged {
    fn ready(&self, size: usize) -> Result<Ready<rdma_cuda::GpuSlice<u8>>, Failure> {
        let slice = self.buffer.slice().range(..size).map_err(failure)?;
        self.stream.ready(slice).map_err(failure)
    }
}

impl End for Staged {
    fn path(&self) -> String {
        self.end.path().to_string()
    }

    fn fill(&mut self, size: usize, number: u64) -> Result<(), Failure> {
        upload(&self.stream, &self.buffer, size, number)
    }

    fn send(&mut self, size: usize, count: usize) -> Result<(), Failure> {
        let message = self.ready(size)?;
        for _ in 0..count {
            self.end.send(&message).map_err(failure)?;
        }
        // The other side answers when it has all messages. Its answer of one byte goes behind them.
        self.end.recv(&self.answer.slice()).map(drop).map_err(failure)
    }

    fn receive(&mut self, size: usize, count: usize) -> Result<(), Failure> {
        let slice = self.buffer.slice().range(..size).map_err(failure)?;
        for _ in 0..count {
            self.end.recv(&slice).map_err(failure)?;
        }
        self.end.send(&self.ready(1)?).map_err(failure)
    }

    fn is_intact(&mut self, size: usize, number: u64) -> Result<bool, Failure> {
        let slice = self.buffer.slice().range(..size).map_err(failure)?;
        let mut bytes = vec![0; size];
        self.stream.download(&slice, &mut bytes).map_err(failure)?;
        Ok(contents::is_intact(&bytes, number))
    }
}
