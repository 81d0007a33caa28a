//! The GPUs of the stand-in.

use std::ffi::{CStr, c_int};

use crate::knobs::KNOBS;

pub(crate) const INTEGRATED: c_int = 18;
pub(crate) const VMM_WITH_RDMA: c_int = 110;
pub(crate) const RDMA: c_int = 116;
pub(crate) const FLUSH_OPTIONS: c_int = 117;
pub(crate) const WRITES_ORDERING: c_int = 118;
pub(crate) const DMA_BUF: c_int = 124;

/// A model of a GPU.
pub(crate) struct Model {
    pub(crate) name: &'static CStr,
    pub(crate) pci_id: &'static CStr,
    capability: (c_int, c_int),
    /// Whether the driver exports dma-bufs, and allows GPUDirect RDMA with VMM memory.
    exports: bool,
    rdma: bool,
    flush: bool,
    ordering: c_int,
}

pub(crate) static MODELS: [Model; 4] = [
    Model {
        name: c"Stand-in Hopper",
        pci_id: c"0000:1B:00.0",
        capability: (9, 0),
        exports: true,
        rdma: true,
        flush: true,
        ordering: 200,
    },
    Model {
        name: c"Stand-in Ampere",
        pci_id: c"0000:43:00.0",
        capability: (8, 0),
        exports: true,
        rdma: true,
        flush: true,
        ordering: 0,
    },
    Model {
        name: c"Stand-in GeForce",
        pci_id: c"0000:65:00.0",
        capability: (8, 9),
        exports: false,
        rdma: false,
        flush: false,
        ordering: 0,
    },
    Model {
        name: c"Stand-in Volta",
        pci_id: c"0000:9A:00.0",
        capability: (7, 0),
        exports: false,
        rdma: true,
        flush: false,
        ordering: 0,
    },
];

/// The size of a GPU's memory in bytes.
pub(crate) const MEMORY: usize = 8 << 30;

/// The number of GPUs.
pub(crate) fn count() -> c_int {
    c_int::try_from(MODELS.len()).unwrap_or(c_int::MAX).min(KNOBS.gpus)
}

/// The model of a GPU, if it exists.
pub(crate) fn model(device: c_int) -> Option<&'static Model> {
    if (0..count()).contains(&device) { MODELS.get(usize::try_from(device).ok()?) } else { None }
}

/// The value of an attribute, if it is known.
pub(crate) fn attribute(device: c_int, attribute: c_int) -> Option<c_int> {
    let set = KNOBS.attributes.iter().rev();
    let mut set = set.filter(|(gpu, number, _)| *number == attribute && gpu.is_none_or(|gpu| gpu == device));
    if let Some((_, _, value)) = set.next() {
        return Some(*value);
    }
    let model = model(device)?;
    Some(match attribute {
        INTEGRATED | 98 | 146 => 0,
        75 => model.capability.0,
        76 => model.capability.1,
        // Virtual memory management, sharing by descriptor.
        102 | 103 => 1,
        VMM_WITH_RDMA | DMA_BUF => model.exports.into(),
        RDMA => model.rdma.into(),
        FLUSH_OPTIONS => model.flush.into(),
        WRITES_ORDERING => model.ordering,
        // Other attributes that exist: this crate asks for none of them.
        1..=150 => 0,
        _ => return None,
    })
}

/// Whether a GPU has an attribute.
pub(crate) fn has(device: c_int, number: c_int) -> bool {
    attribute(device, number).is_some_and(|value| value != 0)
}
