//! What the queue pairs of an engine share.

use super::cq::CqTable;
use super::directory::Directory;
use super::events::Events;
use super::mr::{MrTable, PdTable};
use super::peers::Peers;
use super::timer::Timers;

/// Everything but the queue pairs.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) pds: PdTable,
    pub(super) mrs: MrTable,
    pub(super) cqs: CqTable,
    pub(super) events: Events,
    pub(super) peers: Peers,
    pub(super) timers: Timers,
    pub(super) directory: Directory,
}
