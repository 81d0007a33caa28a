//! Two connected queue pairs within one process, through the crate `sideway`: its extended queue
//! pairs and completion queues, which are its faster ones.

use std::error::Error;
use std::io;
use std::sync::Arc;

use pingpong::LEN;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::AddressHandleAttribute;
use sideway::ibverbs::completion::{ExtendedCompletionQueue, PollCompletionQueueError, WorkCompletionStatus};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::queue_pair::{
    ExtendedQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairState, SetScatterGatherEntry,
    WorkRequestFlags,
};

/// An error of the crate, or none of the devices.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The port of soft0, and the entry of its GID table.
const PORT: u8 = 1;
const GID_INDEX: u8 = 0;

/// Memory that the device reads and writes.
struct Registered {
    /// Dropped before the bytes.
    region: Arc<MemoryRegion>,
    bytes: Box<[u8; LEN]>,
}

/// A queue pair with its buffers.
pub struct End {
    qp: ExtendedQueuePair,
    sends: Arc<ExtendedCompletionQueue>,
    receives: Arc<ExtendedCompletionQueue>,
    context: Arc<DeviceContext>,
    /// Dropped after the queue pair, which no longer uses them then.
    outgoing: Registered,
    incoming: Registered,
}

/// Opens the first device.
///
/// # Errors
///
/// There is no device, or it cannot be opened.
pub fn open() -> Result<Arc<DeviceContext>, Failure> {
    Ok(DeviceList::new()?.get(0).ok_or("no device")?.open()?)
}

/// Creates two sides that are connected with each other.
///
/// # Errors
///
/// The device's error.
pub fn connect(context: &Arc<DeviceContext>) -> Result<(End, End), Failure> {
    let (mut one, mut other) = (End::new(context)?, End::new(context)?);
    let (first, second) = (one.qp.qp_number(), other.qp.qp_number());
    one.connect(second)?;
    other.connect(first)?;
    Ok((one, other))
}

impl End {
    fn new(context: &Arc<DeviceContext>) -> Result<Self, Failure> {
        let pd = context.alloc_pd()?;
        let register = || {
            let bytes = Box::new([0; LEN]);
            let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
            // SAFETY: reg_mr requires memory that outlives the region: the box is dropped after it.
            let region = unsafe { pd.reg_mr(bytes.as_ptr().addr(), LEN, access) }?;
            Ok::<_, Failure>(Registered { region, bytes })
        };
        let (outgoing, incoming) = (register()?, register()?);
        let (sends, receives) = (context.create_cq_builder().build_ex()?, context.create_cq_builder().build_ex()?);
        let mut builder = pd.create_qp_builder();
        let qp = builder.setup_send_cq(Arc::clone(&sends)).setup_recv_cq(Arc::clone(&receives)).build_ex()?;
        Ok(Self { qp, sends, receives, context: Arc::clone(context), outgoing, incoming })
    }

    /// Connects to the queue pair of this process with that number.
    fn connect(&mut self, number: u32) -> Result<(), Failure> {
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
        let mut init = QueuePairAttribute::new();
        init.setup_state(QueuePairState::Init).setup_pkey_index(0).setup_port(PORT).setup_access_flags(access);
        self.qp.modify(&init)?;

        let mut to = AddressHandleAttribute::new();
        to.setup_port(PORT)
            .setup_dest_lid(self.context.query_port(PORT)?.lid())
            .setup_grh_src_gid_index(GID_INDEX)
            .setup_grh_dest_gid(&self.context.query_gid(PORT, GID_INDEX.into())?)
            .setup_grh_hop_limit(1);
        let mut receive = QueuePairAttribute::new();
        receive
            .setup_state(QueuePairState::ReadyToReceive)
            .setup_path_mtu(self.context.query_port(PORT)?.active_mtu())
            .setup_dest_qp_num(number)
            .setup_rq_psn(0)
            .setup_max_dest_read_atomic(1)
            .setup_min_rnr_timer(12)
            .setup_address_vector(&to);
        self.qp.modify(&receive)?;

        let mut send = QueuePairAttribute::new();
        send.setup_state(QueuePairState::ReadyToSend)
            .setup_sq_psn(0)
            .setup_timeout(14)
            .setup_retry_cnt(7)
            .setup_rnr_retry(7)
            .setup_max_read_atomic(1);
        Ok(self.qp.modify(&send)?)
    }

    /// Writes the outgoing buffer into the other side's incoming one.
    ///
    /// # Errors
    ///
    /// The device's error, or a completion without success. The connection cannot be used any more.
    #[inline]
    pub fn write(&mut self, to: &mut Self) -> io::Result<()> {
        let (region, bytes) = (&to.incoming.region, &to.incoming.bytes);
        let mut guard = self.qp.start_post_send();
        let work = guard.construct_wr(0, WorkRequestFlags::Signaled).setup_write(region.rkey(), address(bytes));
        // SAFETY: setup_sge requires memory that stays valid and is not used before the completion,
        // which is awaited below; an error ends the queue pair, which is dropped before the memory.
        unsafe { work.setup_sge(self.outgoing.region.lkey(), address(&self.outgoing.bytes), LEN as u32) };
        guard.post().map_err(io::Error::other)?;
        poll(&self.sends)
    }
}

impl pingpong::End for End {
    #[inline]
    fn send(&mut self, to: &mut Self) -> io::Result<()> {
        let mut guard = to.qp.start_post_recv();
        let work = guard.construct_wr(0);
        // SAFETY: as in `write`, for the incoming buffer of the other side.
        unsafe { work.setup_sge(to.incoming.region.lkey(), address(&to.incoming.bytes), LEN as u32) };
        guard.post().map_err(io::Error::other)?;

        let mut guard = self.qp.start_post_send();
        let work = guard.construct_wr(0, WorkRequestFlags::Signaled).setup_send();
        // SAFETY: as in `write`.
        unsafe { work.setup_sge(self.outgoing.region.lkey(), address(&self.outgoing.bytes), LEN as u32) };
        guard.post().map_err(io::Error::other)?;
        poll(&self.sends)?;
        poll(&to.receives)
    }

    fn outgoing(&mut self) -> &mut [u8] {
        &mut *self.outgoing.bytes
    }

    fn incoming(&self) -> &[u8] {
        &*self.incoming.bytes
    }
}

#[inline]
fn address(bytes: &[u8; LEN]) -> u64 {
    bytes.as_ptr().addr() as u64
}

/// Polls until a completion arrives.
// Part of the loop that is measured, in each of the ways.
#[inline(always)]
fn poll(cq: &ExtendedCompletionQueue) -> io::Result<()> {
    loop {
        match cq.start_poll() {
            Ok(mut completions) => {
                let status = completions.next().map(|completion| completion.status());
                return match status.map(WorkCompletionStatus::from) {
                    Some(WorkCompletionStatus::Success) => Ok(()),
                    other => Err(io::Error::other(format!("status {other:?}"))),
                };
            }
            Err(PollCompletionQueueError::CompletionQueueEmpty) => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}
