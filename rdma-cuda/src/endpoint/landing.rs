//! The path of a side, and the GPU memory that chunks are received into if the path is direct.

use rdma::{ErrorKind, InitOptions, ProtectionDomain, RemoteAccess};

use crate::detect::Cause;
use crate::endpoint::slot::GpuSlot;
use crate::error::{Error, Result};
use crate::flush::FlushMethod;
use crate::gpu::Gpu;
use crate::memory::{GpuBuffer, GpuSlice};
use crate::order::Landed;
use crate::path::{Path, Policy, Preference, Reason, Way};
use crate::read_back::ReadBack;
use crate::region::{GpuRegion, RegionError};

/// The path of a side, and what the direct path needs.
pub(super) struct Landing {
    path: Path,
    /// `None` if the path is staged.
    direct: Option<Direct>,
}

struct Direct {
    region: GpuRegion,
    /// `None` if the GPU needs no read by the NIC.
    back: Option<ReadBack>,
}

impl Landing {
    /// Registers `size` bytes of a GPU to find out whether there is a direct path.
    pub(super) fn new(
        gpu: &Gpu,
        pd: &ProtectionDomain,
        init: &InitOptions,
        size: usize,
        preference: Preference,
    ) -> Result<Self> {
        let memory = GpuBuffer::<u8>::new(gpu, size)?.memory();
        let register = |access| GpuRegion::register(pd, memory.clone(), access, preference);
        let is_read_back = gpu.flush_method() == FlushMethod::ReadBack;
        let region = match register(if is_read_back { RemoteAccess::READ } else { RemoteAccess::empty() }) {
            Err(RegionError::StagedForPeers { .. }) => register(RemoteAccess::empty())?,
            other => other?,
        };
        let path = region.path().clone();
        if !path.is_direct() {
            return Ok(Self { path, direct: None });
        }
        let back = if is_read_back { Some(ReadBack::with_options(pd, *init)?) } else { None };
        Ok(Self { path, direct: Some(Direct { region, back }) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The slots of `size` bytes; none if the path is staged.
    pub(super) fn slots(&self, size: usize) -> Result<Vec<GpuSlot>> {
        let Some(Direct { region, .. }) = &self.direct else { return Ok(Vec::new()) };
        let all = GpuSlice::<u8>::new(region.memory().clone());
        let slot = |at: usize| {
            let slice = all.range(at..at + size)?;
            Ok(GpuSlot { segment: region.slice(&slice)?, slice })
        };
        (0..all.len() / size).map(|number| slot(number * size)).collect()
    }

    /// Takes the refusal of a receive into the GPU's memory: the path becomes staged, if the policy
    /// allows it.
    pub(super) fn refuse(&mut self, error: rdma::Error, policy: Policy) -> Result<()> {
        if error.kind() != ErrorKind::NotSupported {
            return Err(error.into());
        }
        let causes = vec![Cause::ShortMessages];
        if policy == Policy::RequireDirect {
            return Err(RegionError::NoDirectPath { causes }.into());
        }
        self.path.way = Way::Staged(Reason::NotPossible(causes));
        tracing::warn!("{}", self.path);
        self.direct = None;
        Ok(())
    }

    /// Makes bytes that the NIC has received visible to the GPU.
    pub(super) fn visible(&mut self, slice: GpuSlice<u8>) -> Result<GpuSlice<u8>> {
        let visible = Landed::new(slice).visible_by(|slice| match &mut self.direct {
            Some(Direct { region, back: Some(back) }) => back.read(region, slice),
            _ => Err(Error::NeedsReadBack.into()),
        })?;
        Ok(visible.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use rdma::{DeviceSelector, Verb};

    use super::*;
    use crate::testing;

    fn landing() -> Landing {
        let selector: DeviceSelector = "soft0".parse().unwrap();
        let pd = rdma::open(&selector).unwrap().context.alloc_pd().unwrap();
        let gpu = testing::driver().gpu(0).unwrap();
        Landing::new(&gpu, &pd, &InitOptions::new(), 8192, Preference::default()).unwrap()
    }

    #[test]
    fn a_nic_that_receives_with_the_processor_has_messages_staged() {
        let error = |kind| rdma::Error::new(Verb::PostRecv, kind);
        let mut landing = landing();
        assert_eq!(landing.slots(4096).unwrap().len(), 2);
        let other = landing.refuse(error(ErrorKind::OutOfMemory), Policy::PreferDirect);
        assert!(matches!(other, Err(Error::Rdma(_))) && landing.path().is_direct());
        let required = landing.refuse(error(ErrorKind::NotSupported), Policy::RequireDirect).unwrap_err();
        assert!(required.to_string().contains("MLX5_SCATTER_TO_CQE=0"), "{required}");
        landing.refuse(error(ErrorKind::NotSupported), Policy::PreferDirect).unwrap();
        assert!(!landing.path().is_direct() && landing.slots(4096).unwrap().is_empty());
    }
}
