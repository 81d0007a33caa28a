//! Data from foreign memory: fetched in parts, each of which is sent before the next is fetched.

use rdma_sys::ibv_wc_status;

use super::super::foreign::ForeignRange;
use super::super::foreign::Waiter;
use super::super::memory::Gather;
use super::super::mr::entry_at;
use super::super::qp::Qp;
use super::super::staging::Fetched;
use super::super::tables::Tables;
use super::super::wire::Refusal;

/// The outcome of an attempt to send a piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// This many bytes were sent.
    Yes(u32),
    /// The link is full.
    NoRoom,
    /// The data is being fetched from foreign memory.
    Waits,
}

/// Sends at most `len` bytes, from `offset` on, of the request at `sq.next`, whose list names
/// foreign memory; at most up to the end of an entry of the list.
#[cold]
pub(super) fn push_request(
    qp: &mut Qp,
    offset: u32,
    len: u32,
    tables: &mut Tables,
    push: impl FnOnce(&Gather<'_>) -> bool,
) -> Result<Pushed, ibv_wc_status> {
    const NO_MEMORY: ibv_wc_status = ibv_wc_status::IBV_WC_LOC_PROT_ERR;
    let position = qp.sq.next;
    let (sge, skip, room) = entry_at(qp.sq.list(position), offset as usize).ok_or(NO_MEMORY)?;
    let len = room.min(len as usize);
    if let Some(host) = tables.mrs.piece(qp.pd, sge, skip, len) {
        return Ok(pushed(push(&Gather::one(&host)), len));
    }
    let addr = sge.addr.checked_add(skip as u64).ok_or(NO_MEMORY)?;
    let range = tables.mrs.foreign(sge.lkey, qp.pd, 0, addr, room).ok_or(NO_MEMORY)?;
    let waiter = (qp.id, Waiter::Request);
    let window = &mut qp.staging().request;
    send(window.fetch((position, offset), &range, waiter, tables), len, push).map_err(|_| NO_MEMORY)
}

/// Sends at most `len` bytes of a read's data in foreign memory. `range` is the data that is not
/// sent yet.
#[cold]
pub(super) fn push_answer(
    qp: &mut Qp,
    (number, epoch, sent): (u32, u16, u32),
    range: &ForeignRange,
    len: usize,
    tables: &mut Tables,
    push: impl FnOnce(&Gather<'_>) -> bool,
) -> Result<Pushed, Refusal> {
    let message = u64::from(number) | u64::from(epoch) << 32;
    let waiter = (qp.id, Waiter::Answer);
    let window = &mut qp.staging().answer;
    send(window.fetch((message, sent), range, waiter, tables), len, push)
}

/// Sends at most `len` fetched bytes; fails if the copy has failed.
fn send(fetched: Fetched<'_>, len: usize, push: impl FnOnce(&Gather<'_>) -> bool) -> Result<Pushed, Refusal> {
    match fetched {
        Fetched::Waits => Ok(Pushed::Waits),
        Fetched::Failed(refusal) => Err(refusal),
        Fetched::Ready(bytes) => {
            let len = len.min(bytes.len());
            let part = bytes.part(0, len).ok_or(Refusal::Operation)?;
            Ok(pushed(push(&Gather::one(&part)), len))
        }
    }
}

fn pushed(is_pushed: bool, len: usize) -> Pushed {
    if is_pushed { Pushed::Yes(u32::try_from(len).unwrap_or(0)) } else { Pushed::NoRoom }
}
