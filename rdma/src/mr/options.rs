//! Options of a registration: what they may be, for which memory, on which device.

use rdma_sys::{ibv_access_flags, ibv_odp_transport_cap_bits};

use super::memory::RawMemory;
use super::placed::HugePages;
use super::{Kind, Region};
use crate::context::ContextInner;
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::pd::PdInner;
use crate::types::{OptionLimit, RemoteAccess};

static LOCAL_ACCESS: OptionLimit = OptionLimit::new("remote_access", "left out only: peers do not reach local memory");
static SOURCE_ACCESS: OptionLimit = OptionLimit::new("remote_access", "READ at most: nobody writes to a source");
static ON_DEMAND: OptionLimit =
    OptionLimit::new("on_demand", "left out only: the device has no on-demand paging (ibv_odp_caps)");
static ON_DEMAND_RIGHTS: OptionLimit = OptionLimit::new(
    "remote_access",
    "beside on_demand only a right that the device has there (rc_odp_caps): soft0 has no ATOMIC",
);
static IOVA_LOCAL: OptionLimit = OptionLimit::new(
    "iova",
    "left out only: local memory and sources keep their address, at which requests copy; exposed memory may have another",
);
static IOVA_PAGE: OptionLimit = OptionLimit::new("iova", "an address at the place of its page where the memory is");
static IOVA_END: OptionLimit = OptionLimit::new("iova", "below 2^64 less the length");
static IOVA_SIW: OptionLimit = OptionLimit::new("iova", "left out only: siw knows no other address than the memory's");
static HUGE_PAGES_ELSEWHERE: OptionLimit = OptionLimit::new(
    "huge_pages",
    "what the Pages were made with; memory that was allocated without the option has no huge pages",
);
static NUMA_NODE_ELSEWHERE: OptionLimit = OptionLimit::new(
    "numa_node",
    "what the Pages were made with; memory that was allocated without the option stays where it is",
);
static IOVA_POOL: OptionLimit =
    OptionLimit::new("iova", "left out only: a pool registers several slabs, each at its memory's address");
static ON_DEMAND_POOL: OptionLimit = OptionLimit::new(
    "on_demand",
    "left out only: a pool's slabs are pinned once, so that requests do not wait for pages",
);
pub(super) static HUGE_PAGES_SIZE: OptionLimit =
    OptionLimit::new("huge_pages", "a size of /sys/kernel/mm/hugepages only");
pub(super) static NUMA_NODE: OptionLimit =
    OptionLimit::new("numa_node", "a node of /sys/devices/system/node/has_memory that the cpuset allows only");

/// How memory is allocated and registered: the options of
/// [`allocate_with`](crate::ProtectionDomain::allocate_with),
/// [`register_with`](crate::ProtectionDomain::register_with) and their like.
///
/// What a device or the system lacks is the error
/// [`UnsupportedOption`](crate::ErrorKind::UnsupportedOption), and what the memory may not have is
/// [`InvalidOption`](crate::ErrorKind::InvalidOption). Both name the option, come before anything
/// is done, and give the owner back. Of options that are allowed each by itself, and not together,
/// the error names both. Relaxed ordering is ignored where a device lacks it.
///
/// # Examples
///
/// ```
/// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
/// use rdma::{RegisterOptions, RemoteAccess};
///
/// // Pages that four threads allocate, at the address 0 for peers.
/// let options = RegisterOptions::new().remote_access(RemoteAccess::READ).touch_threads(4).iova(0);
/// let table = pd.allocate_exposed_with(1 << 20, &options)?;
/// assert_eq!(table.remote(64..128)?.address(), 64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegisterOptions {
    access: RemoteAccess,
    relaxed_ordering: Option<bool>,
    on_demand: bool,
    pub(super) huge_pages: Option<HugePages>,
    pub(super) numa_node: Option<u32>,
    pub(super) touch_threads: usize,
    iova: Option<u64>,
}

impl RegisterOptions {
    /// Registration for the local device alone, in the way that is usual for the memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the operations that peers may do. Only exposed memory has rights for peers, and sources
    /// may have [`READ`](RemoteAccess::READ).
    #[must_use]
    pub fn remote_access(mut self, access: RemoteAccess) -> Self {
        self.access = access;
        self
    }

    /// Allows or forbids the device to write the memory in any order. By default it is allowed for
    /// local memory, sources and memory of a GPU, and forbidden for exposed memory of the host.
    ///
    /// On a machine whose bus or processor keeps the order of writes at a price, relaxed ordering
    /// is much faster. The man page of `ibv_reg_mr` says: "Relaxed ordering allows network
    /// initiated writes (such as incoming message send or RDMA write operations) to reach memory in
    /// an arbitrary order", "RDMA write-after-write message order is no longer guaranteed",
    /// "Back-to-back network writes that target the same memory region leave the region in an
    /// unknown state", and "Relaxed ordering does not change completion semantics, such as data
    /// visibility".
    ///
    /// Nobody sees the bytes of a [`Buffer`](crate::Buffer) before the completion, and one request
    /// at a time has them, so nobody sees the order there. With exposed memory the program must be
    /// written for it:
    ///
    /// * A flag that a peer writes behind its data says nothing: wait for a completion, that of a
    ///   message or of a write with immediate data.
    /// * After two writes of peers to the same bytes, either may have won, whatever their order.
    ///
    /// Devices, kernels and libraries without relaxed ordering ignore the option.
    #[must_use]
    #[doc(alias = "IBV_ACCESS_RELAXED_ORDERING")]
    pub fn relaxed_ordering(mut self, is_relaxed: bool) -> Self {
        self.relaxed_ordering = Some(is_relaxed);
        self
    }

    /// Registers the memory without pinning its pages: the device fetches them when it needs them.
    ///
    /// Registration takes no time and no locked memory. A request on a page that is not there takes
    /// longer; [`prefetch`](crate::Buffer::prefetch) fetches pages before. mlx5 pages on demand. On
    /// `soft0` the kernel copies for the device, which is slower than a copy of its own, and only
    /// reliable connections reach such memory.
    #[must_use]
    #[doc(alias = "IBV_ACCESS_ON_DEMAND")]
    pub fn on_demand(mut self, is_on_demand: bool) -> Self {
        self.on_demand = is_on_demand;
        self
    }

    /// Allocates huge pages, each of which takes one entry in the tables of the device and of the
    /// processor.
    ///
    /// This is an option of allocations: of `allocate_with`, `allocate_exposed_with`,
    /// [`Pages::with_options`](crate::Pages::with_options) and
    /// [`PoolBuilder::options`](crate::PoolBuilder::options). The pages are taken at once, so an
    /// error tells that there are none, and no later access does. Exposed memory of huge pages is
    /// not shared with peers on this host.
    ///
    /// A kernel before Linux 5.14, or a sandbox that refuses `MADV_POPULATE_WRITE`, only reserves
    /// them: a device that pins takes them at registration, and others at the first access. A
    /// reservation ignores the node and the limit of a cgroup (`hugetlb`), and an access for which
    /// these leave no page ends the process by `SIGBUS`.
    #[must_use]
    #[doc(alias = "MAP_HUGETLB")]
    #[doc(alias = "IBV_ACCESS_HUGETLB")]
    pub fn huge_pages(mut self, size: HugePages) -> Self {
        self.huge_pages = Some(size);
        self
    }

    /// Allocates the memory on a NUMA node, and nowhere else. [`Device::numa_node`] names the
    /// device's.
    ///
    /// This is an option of allocations, the pages are taken at once, and exposed memory is not
    /// shared, as for [`huge_pages`](Self::huge_pages).
    ///
    /// [`Device::numa_node`]: crate::Device::numa_node
    #[must_use]
    #[doc(alias = "mbind")]
    pub fn numa_node(mut self, node: u32) -> Self {
        self.numa_node = Some(node);
        self
    }

    /// Lets up to this many threads allocate the pages at the same time, before the one
    /// registration: that is what takes the time of a large region. 0, the default, leaves it to
    /// the registration, which does it alone. The threads end before the call returns. Of memory
    /// that the program brings they may write each page, atomically and without a change. Memory
    /// that is allocated with this option is of transparent huge pages
    /// ([`Pages::with_options`](crate::Pages::with_options)), which one thread allocates several
    /// times as fast, if the kernel has them free.
    #[must_use]
    #[doc(alias = "MADV_POPULATE_WRITE")]
    pub fn touch_threads(mut self, count: usize) -> Self {
        self.touch_threads = count;
        self
    }

    /// Chooses the address of the first byte for the device and for peers, 0 included. By default
    /// it is the memory's own.
    ///
    /// Only exposed memory may have another address than its own, at the same place of a page:
    /// pages of their own may be at 0. Such memory takes no receives, reads and atomic results of
    /// this side (`NotSupported`) on devices whose provider may write short ones with the processor
    /// (mlx5 without `MLX5_SCATTER_TO_CQE=0`).
    #[must_use]
    #[doc(alias = "ibv_reg_mr_iova")]
    pub fn iova(mut self, address: u64) -> Self {
        self.iova = Some(address);
        self
    }

    /// Fails if an option may not be so for the slabs of a pool.
    pub(super) fn check_pool(&self) -> Result<()> {
        let refused = [
            (!self.access().is_empty(), &LOCAL_ACCESS),
            (self.iova.is_some(), &IOVA_POOL),
            (self.on_demand, &ON_DEMAND_POOL),
        ];
        match refused.into_iter().find(|&(is_refused, _)| is_refused) {
            Some((_, limit)) => Err(Error::new(Verb::BuildPool, ErrorKind::InvalidOption(limit))),
            None => Ok(()),
        }
    }

    /// The options of a registration of memory that was allocated with these options before.
    pub(super) fn of_allocated(&self) -> Self {
        Self { huge_pages: None, numa_node: None, touch_threads: 0, ..self.clone() }
    }

    /// The rights of peers. Other bits of `ibv_access_flags` change the meaning of the keys.
    pub(super) fn access(&self) -> RemoteAccess {
        self.access & RemoteAccess::all()
    }

    /// The difference between the address for the device and the memory's, modulo 2^64.
    pub(super) fn shift(&self, memory: &RawMemory) -> u64 {
        self.iova.map_or(0, |iova| iova.wrapping_sub(memory.address().addr().get() as u64))
    }

    /// Access flags beyond the rights.
    pub(super) fn flags(&self, memory: &RawMemory, is_software: bool) -> u32 {
        let mut flags = 0;
        // By copies of the kernel: a fault ends a request of the software device, and not the
        // process.
        if self.on_demand || (memory.may_fault() && is_software) {
            flags |= ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
            // The flag has a meaning for memory on demand alone.
            if memory.placed().huge_pages.is_some() {
                flags |= ibv_access_flags::IBV_ACCESS_HUGETLB.0;
            }
        }
        flags
    }

    /// Access flags that a device may ignore.
    pub(super) fn optional_flags(&self, kind: Kind) -> u32 {
        let is_relaxed = self.relaxed_ordering.unwrap_or(kind.is_relaxed());
        if is_relaxed { ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 } else { 0 }
    }

    /// Fails if an option may not be so for this memory, or on this device.
    pub(super) fn check(&self, pd: &PdInner, memory: &RawMemory, kind: Kind) -> Result<()> {
        let invalid = |limit| Err(Error::new(Verb::RegisterMr, ErrorKind::InvalidOption(limit)));
        self.check_rights(kind)?;
        let placed = memory.placed();
        if self.huge_pages.is_some() && self.huge_pages != placed.huge_pages {
            return invalid(&HUGE_PAGES_ELSEWHERE);
        }
        if self.numa_node.is_some() && self.numa_node != placed.numa_node {
            return invalid(&NUMA_NODE_ELSEWHERE);
        }
        if let Some(iova) = self.iova.filter(|_| self.shift(memory) != 0) {
            check_iova(pd, iova, self.shift(memory), memory.len(), kind)?;
        }
        self.check_device(pd, memory.len())
    }

    /// As [`check`](Self::check), for memory that is to be allocated with these options.
    pub(super) fn check_allocation(&self, pd: &PdInner, len: usize, kind: Kind) -> Result<()> {
        Region::check(pd, len, Verb::RegisterMr)?;
        self.check_rights(kind)?;
        if let Some(iova) = self.iova {
            // The memory is to begin with a page, so the distance to it has the place of the
            // address.
            check_iova(pd, iova, iova, len, kind)?;
        }
        self.check_device(pd, len)
    }

    fn check_rights(&self, kind: Kind) -> Result<()> {
        let limit = match kind {
            Kind::LocalHost | Kind::LocalGpu if !self.access().is_empty() => &LOCAL_ACCESS,
            Kind::Source if !RemoteAccess::READ.contains(self.access()) => &SOURCE_ACCESS,
            _ => return Ok(()),
        };
        Err(Error::new(Verb::RegisterMr, ErrorKind::InvalidOption(limit)))
    }

    fn check_device(&self, pd: &PdInner, len: usize) -> Result<()> {
        let max = pd.context.device_attr.max_mr_size();
        if max != 0 && len as u64 > max {
            return Err(Error::new(Verb::RegisterMr, ErrorKind::RegionTooLong(max)));
        }
        if self.on_demand && !rights_on_demand(&pd.context)?.contains(self.access()) {
            return Err(Error::new(Verb::RegisterMr, ErrorKind::UnsupportedOption(&ON_DEMAND_RIGHTS)));
        }
        Ok(())
    }
}

/// Checks an address for the device that is not the memory's, and the distance between the two.
fn check_iova(pd: &PdInner, iova: u64, shift: u64, len: usize, kind: Kind) -> Result<()> {
    let invalid = |limit| Err(Error::new(Verb::RegisterMr, ErrorKind::InvalidOption(limit)));
    if kind != Kind::ExposedHost {
        return invalid(&IOVA_LOCAL);
    }
    if shift % rdma_mem::page_size() as u64 != 0 {
        return invalid(&IOVA_PAGE);
    }
    if iova.checked_add(len as u64).is_none() {
        return invalid(&IOVA_END);
    }
    if pd.context.is_siw() {
        return Err(Error::new(Verb::RegisterMr, ErrorKind::UnsupportedOption(&IOVA_SIW)));
    }
    Ok(())
}

/// Checks that the device pages on demand. Returns the rights that peers may have to such memory.
fn rights_on_demand(context: &ContextInner) -> Result<RemoteAccess> {
    let none = Error::new(Verb::RegisterMr, ErrorKind::UnsupportedOption(&ON_DEMAND));
    let attr = context.device_attr_ex().map_err(|_| none)?;
    if !attr.on_demand_paging() {
        return Err(none);
    }
    let bits = attr.as_raw().odp_caps.per_transport_caps.rc_odp_caps;
    let mut rights = RemoteAccess::empty();
    for (bit, right) in [
        (ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_WRITE, RemoteAccess::WRITE),
        (ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_READ, RemoteAccess::READ),
        (ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_ATOMIC, RemoteAccess::ATOMIC),
    ] {
        rights.set(right, bits & bit.0 != 0);
    }
    Ok(rights)
}
