//! The send requests that `ibv_wr_*` calls collect between `wr_start` and `wr_complete`.

use rdma_sys::{ibv_qp_cap, ibv_sge};

use super::Errno;
use super::gate::Gate;
use crate::engine::{Address, Op, QpId, SendData, SendRequest, ServiceType, Source};
use crate::node::Node;

/// The batch of a queue pair; one thread at a time builds it.
pub(super) type Builder = Gate<Batch>;

/// A batch of send requests and their data, which `Batch::post` posts.
#[derive(Debug)]
pub(super) struct Batch {
    /// Allocated for `max_wr` requests and never longer, so that `push` does not allocate.
    requests: Vec<Pending>,
    /// Destination of each request on a UD queue pair, by index; empty for other types.
    addresses: Vec<Option<Address>>,
    service: ServiceType,
    entries: Vec<ibv_sge>,
    inline: Vec<u8>,
    /// The first error; `post` returns it.
    error: Option<Errno>,
    max_wr: usize,
    max_sge: usize,
    max_inline: usize,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    request: SendRequest,
    data: Data,
}

/// Position of a request's data in the batch.
#[derive(Clone, Copy, Debug)]
enum Data {
    List { start: usize, count: usize },
    Inline { start: usize, len: usize },
}

impl Batch {
    pub(super) fn new(cap: &ibv_qp_cap, service: ServiceType) -> Self {
        let max_wr = cap.max_send_wr as usize;
        let is_datagram = service == ServiceType::Ud;
        Self {
            requests: Vec::with_capacity(max_wr),
            addresses: Vec::with_capacity(if is_datagram { max_wr } else { 0 }),
            service,
            entries: Vec::with_capacity(max_wr),
            inline: Vec::new(),
            error: None,
            max_wr,
            max_sge: cap.max_send_sge as usize,
            max_inline: cap.max_inline_data as usize,
        }
    }

    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.addresses.clear();
        self.entries.clear();
        self.inline.clear();
        self.error = None;
    }

    pub(super) fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }

    pub(super) fn push(&mut self, request: SendRequest) {
        if self.requests.len() == self.max_wr {
            return self.fail(Errno::NOMEM);
        }
        let is_supported = match self.service {
            ServiceType::Rc => true,
            ServiceType::Uc => !request.op.fetches(),
            ServiceType::Ud => request.op == Op::Send,
        };
        if !is_supported {
            return self.fail(Errno::OPNOTSUPP);
        }
        let data = Data::List { start: self.entries.len(), count: 0 };
        self.requests.push(Pending { request, data });
        if self.service == ServiceType::Ud {
            self.addresses.push(None);
        }
    }

    /// Sets the destination of the newest request.
    pub(super) fn set_address(&mut self, address: Address) {
        match self.addresses.last_mut() {
            Some(last) => *last = Some(address),
            None => self.fail(Errno::INVAL),
        }
    }

    /// Sets the gather list of the newest request.
    pub(super) fn set_list(&mut self, list: &[ibv_sge]) {
        if list.len() > self.max_sge {
            return self.fail(Errno::INVAL);
        }
        let start = self.entries.len();
        let Some(request) = self.requests.last_mut() else { return self.fail(Errno::INVAL) };
        request.data = Data::List { start, count: list.len() };
        self.entries.extend_from_slice(list);
    }

    /// Appends a piece of inline data to the newest request, which must not fetch data. With
    /// `first` the piece replaces the request's data.
    pub(super) fn add_inline(&mut self, piece: &[u8], first: bool) {
        let at = self.inline.len();
        let newest = self.requests.last_mut().filter(|pending| !pending.request.op.fetches());
        let Some(request) = newest else { return self.fail(Errno::INVAL) };
        let (start, before) = match request.data {
            Data::Inline { start, len } if !first => (start, len),
            _ => (at, 0),
        };
        let len = before.saturating_add(piece.len());
        if len > self.max_inline {
            return self.fail(Errno::INVAL);
        }
        request.data = Data::Inline { start, len };
        self.inline.extend_from_slice(piece);
    }

    /// Posts all requests under one lock of the node. Posts none if an earlier call failed, a UD
    /// request has no destination or the send queue lacks space (`ENOMEM`).
    pub(super) fn post(&self, qp: QpId) -> Result<(), Errno> {
        if let Some(errno) = self.error {
            return Err(errno);
        }
        if self.addresses.iter().any(Option::is_none) {
            return Err(Errno::INVAL);
        }
        Node::get()?.with(|engine| {
            if (engine.send_room(qp)? as usize) < self.requests.len() {
                return Err(Errno::NOMEM);
            }
            for (index, request) in self.requests.iter().enumerate() {
                let piece;
                let data = match request.data {
                    Data::List { start, count } => SendData::List(&self.entries[start..start + count]),
                    Data::Inline { start, len } => {
                        piece = [Source::of(&self.inline[start..start + len])];
                        SendData::Inline(&piece)
                    }
                };
                match self.addresses.get(index).and_then(Option::as_ref) {
                    Some(address) => engine.post_datagram(qp, &request.request, data, address)?,
                    None => engine.post_send(qp, &request.request, data)?,
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::SendFlags;

    /// A request that the engine would refuse is refused before others of its batch are posted.
    #[test]
    fn a_batch_takes_what_its_service_has() {
        let cap = ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let all = [Op::Send, Op::Write, Op::Read, Op::CompareSwap, Op::FetchAdd];
        for (service, count) in [(ServiceType::Rc, 5), (ServiceType::Uc, 2), (ServiceType::Ud, 1)] {
            for (index, op) in all.into_iter().enumerate() {
                let (wr_id, remote_addr, compare_add, swap, rkey, imm) = (0, 0, 0, 0, 0, 0);
                let flags = SendFlags::empty();
                let mut batch = Batch::new(&cap, service);
                batch.push(SendRequest { wr_id, remote_addr, compare_add, swap, rkey, imm, op, flags });
                assert_eq!(batch.error, (index >= count).then_some(Errno::OPNOTSUPP), "{service:?} {op:?}");
            }
        }
    }
}
