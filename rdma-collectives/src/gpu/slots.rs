//! The slots that the other ranks write messages to.

use rdma::{RemoteAccess, RemoteSlice};
use rdma_cuda::{
    Event, FlushMethod, GpuBuffer, GpuRegion, GpuSlice, Landed, PinnedRegion, Preference, ReadBack, Reason,
    RegionError, Way,
};

use super::{Engine, failed};
use crate::Error;
use crate::fabric::Nic;
use crate::place::TensorPlace;
use crate::streams::Room;

/// The slots of a rank.
#[derive(Debug)]
pub(super) enum Slots {
    /// Memory of the GPU.
    Direct {
        region: GpuRegion,
        memory: GpuSlice<u8>,
        /// The connection that makes received bytes visible, if the GPU needs one.
        back: Option<Box<ReadBack>>,
    },
    /// Pinned host memory.
    Staged {
        pinned: PinnedRegion,
        /// Memory of the GPU for a piece of each rank.
        windows: Vec<GpuSlice<u8>>,
        /// The copy of each rank's piece to the GPU.
        uploads: Vec<Option<Event>>,
        reason: Reason,
    },
}

impl Slots {
    /// Allocates the slots: memory of the GPU if the device can access it, unless staging is asked
    /// for.
    pub(super) fn new(engine: &Engine, nic: Nic<'_>, room: Room, wanted: TensorPlace) -> Result<Self, Error> {
        if wanted == TensorPlace::GpuStaged {
            return Self::staged(engine, nic, room, Reason::Asked);
        }
        let memory = GpuBuffer::<u8>::new(&engine.gpu, room.bytes).map_err(failed)?.slice();
        let is_read_back = engine.gpu.flush_method() == FlushMethod::ReadBack;
        let access = if is_read_back { RemoteAccess::WRITE | RemoteAccess::READ } else { RemoteAccess::WRITE };
        let region = match GpuRegion::register(nic.pd, memory.memory().clone(), access, Preference::default()) {
            Ok(region) => region,
            Err(RegionError::StagedForPeers { reason }) => return Self::staged(engine, nic, room, reason),
            Err(error) => return Err(failed(error)),
        };
        let read_back = || ReadBack::new(nic.pd, nic.port).map(Box::new);
        let back = is_read_back.then(read_back).transpose()?;
        Ok(Self::Direct { region, memory, back })
    }

    fn staged(engine: &Engine, nic: Nic<'_>, room: Room, reason: Reason) -> Result<Self, Error> {
        let Engine { gpu, .. } = engine;
        let pinned = PinnedRegion::new(gpu, nic.pd, room.bytes, RemoteAccess::WRITE).map_err(failed)?;
        let window = |_| Ok(GpuBuffer::new(gpu, room.piece).map_err(failed)?.slice());
        let windows = (0..room.ranks).map(window).collect::<Result<_, Error>>()?;
        Ok(Self::Staged { pinned, windows, uploads: vec![None; room.ranks], reason })
    }

    /// How bytes come to the GPU.
    pub(super) fn way(&self) -> Way {
        match self {
            Self::Direct { region, .. } => region.path().way.clone(),
            Self::Staged { reason, .. } => Way::Staged(reason.clone()),
        }
    }

    /// The slots, for the other ranks.
    pub(super) fn remote(&self) -> Result<RemoteSlice, Error> {
        match self {
            Self::Direct { region, memory, .. } => region.remote(memory).map_err(failed),
            Self::Staged { pinned, .. } => Ok(pinned.region().remote(..)?),
        }
    }

    /// The piece of `length` bytes that has arrived from a rank in the slot at a byte offset, for
    /// work on the engine's stream.
    pub(super) fn piece(
        &mut self,
        engine: &Engine,
        from: usize,
        slot: usize,
        length: usize,
    ) -> Result<GpuSlice<u8>, Error> {
        match self {
            Self::Direct { region, memory, back } => {
                let landed = Landed::new(memory.range(slot..slot + length).map_err(failed)?);
                let visible = landed.visible_by(|slice| match back {
                    Some(back) => back.read(region, slice),
                    None => Err(rdma_cuda::Error::NeedsReadBack.into()),
                });
                Ok(visible.map_err(failed)?.into_inner())
            }
            Self::Staged { pinned, windows, uploads, .. } => {
                let window = windows[from].range(..length).map_err(failed)?;
                let piece = pinned.region().slice(slot..slot + length)?;
                uploads[from] = Some(pinned.upload(&engine.stream, &piece, &window).map_err(failed)?);
                Ok(window)
            }
        }
    }

    /// The end of the work that reads the slot of the last piece from a rank.
    pub(super) fn read(&mut self, engine: &Engine, from: usize) -> Result<Event, Error> {
        let copied = match self {
            Self::Direct { .. } => None,
            Self::Staged { uploads, .. } => uploads[from].take(),
        };
        copied.map_or_else(|| engine.stream.record().map_err(failed), Ok)
    }
}
