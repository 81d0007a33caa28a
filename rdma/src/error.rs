//! The crate's error type: small, `Copy`, and made without allocation.
//!
//! An [`Error`] says which verb failed ([`Verb`]), in what way ([`ErrorKind`]), and with which
//! `errno` if the operating system or the provider gave one. A failed *completion* is not the error
//! of a call: it is data, [`WcError`](crate::WcError).

use std::fmt;
use std::io;
use std::num::NonZeroI32;

use nix::errno::Errno;
use rdma_sys::Variable;

use crate::errno;
use crate::platform::{HAS_DEVICES, NEEDS_LINUX};
use crate::types::{ForeignObject, OptionLimit, QpAttrMask, QpState, RejectReason, WrongDevice};

macro_rules! verbs {
    ($($(#[$meta:meta])* $name:ident = $verb:literal,)*) => {
        /// The verb, or another operation, that failed with an [`Error`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Verb { $($(#[$meta])* #[doc = concat!("`", $verb, "`")] $name,)* }

        impl Verb {
            /// The verb's name, or a phrase for an operation without a verb.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $verb,)* }
            }
        }
    };
}

verbs! {
    LoadLibrary = "load the library",
    ListDevices = "ibv_get_device_list",
    WatchDescriptor = "wait for a descriptor",
    OpenDevice = "ibv_open_device",
    CloseDevice = "ibv_close_device",
    QueryDevice = "ibv_query_device",
    QueryPort = "ibv_query_port",
    QueryGid = "ibv_query_gid",
    QueryPkey = "ibv_query_pkey",
    AllocPd = "ibv_alloc_pd",
    DeallocPd = "ibv_dealloc_pd",
    RegisterMr = "ibv_reg_mr",
    RegisterDmaBuf = "ibv_reg_dmabuf_mr",
    AdviseMr = "ibv_advise_mr",
    DeregisterMr = "ibv_dereg_mr",
    Allocate = "allocate memory",
    /// Ends every access to memory but the device's, before it is lent as bytes.
    MakePrivate = "make the memory private",
    Access = "access memory",
    /// Of a [`Pool`](crate::Pool).
    TakeBuffer = "take a buffer of the pool",
    /// Of a [`Pool`](crate::Pool).
    BuildPool = "make a pool",
    /// Of a [`RegionMap`](crate::RegionMap).
    MapRegion = "put a region into the map",
    CreateChannel = "ibv_create_comp_channel",
    DestroyChannel = "ibv_destroy_comp_channel",
    GetCqEvent = "ibv_get_cq_event",
    CreateCq = "ibv_create_cq",
    DestroyCq = "ibv_destroy_cq",
    PollCq = "ibv_poll_cq",
    ResizeCq = "ibv_resize_cq",
    RequestNotify = "ibv_req_notify_cq",
    GetAsyncEvent = "ibv_get_async_event",
    CreateQp = "ibv_create_qp",
    ModifyQp = "ibv_modify_qp",
    QueryQp = "ibv_query_qp",
    DestroyQp = "ibv_destroy_qp",
    PostSend = "ibv_post_send",
    PostRecv = "ibv_post_recv",
    CreateSrq = "ibv_create_srq",
    ModifySrq = "ibv_modify_srq",
    QuerySrq = "ibv_query_srq",
    DestroySrq = "ibv_destroy_srq",
    PostSrqRecv = "ibv_post_srq_recv",
    CreateAh = "ibv_create_ah",
    DestroyAh = "ibv_destroy_ah",
    AttachMulticast = "ibv_attach_mcast",
    DetachMulticast = "ibv_detach_mcast",
    SetEce = "ibv_set_ece",
    QueryEce = "ibv_query_ece",
    CreateEventChannel = "rdma_create_event_channel",
    DestroyEventChannel = "rdma_destroy_event_channel",
    CreateId = "rdma_create_id",
    DestroyId = "rdma_destroy_id",
    BindAddr = "rdma_bind_addr",
    ResolveAddr = "rdma_resolve_addr",
    ResolveRoute = "rdma_resolve_route",
    Listen = "rdma_listen",
    Connect = "rdma_connect",
    Establish = "rdma_establish",
    Accept = "rdma_accept",
    Reject = "rdma_reject",
    Disconnect = "rdma_disconnect",
    Notify = "rdma_notify",
    JoinMulticast = "rdma_join_multicast",
    LeaveMulticast = "rdma_leave_multicast",
    GetCmEvent = "rdma_get_cm_event",
    SetOption = "rdma_set_option",
    MigrateId = "rdma_migrate_id",
    InitQpAttr = "rdma_init_qp_attr",
    SetLocalEce = "rdma_set_local_ece",
    GetRemoteEce = "rdma_get_remote_ece",
    ConnectTcp = "connect by TCP",
    ListenTcp = "listen on TCP",
    /// Makes an object of this crate of a C object: `from_raw`.
    FromRaw = "from_raw",
}

impl Verb {
    /// Whether `EAGAIN` says that nothing is there yet. Of other operations it says that something
    /// is used up: most often, that no thread may be started.
    const fn can_be_waited_for(self) -> bool {
        matches!(
            self,
            Self::GetCqEvent
                | Self::GetAsyncEvent
                | Self::GetCmEvent
                | Self::PollCq
                | Self::PostSend
                | Self::PostRecv
                | Self::PostSrqRecv
        )
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The way in which an operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The queue has too few free slots for the request until completions have been polled.
    QueueFull,
    /// A length does not fit: of a message, an inline payload, a region.
    TooLong,
    /// More segments than the queue was created for.
    TooManySegments,
    /// A range does not lie in its region or buffer.
    OutOfBounds,
    /// The object is still in use by another object, a clone or a request.
    InUse,
    /// The handle was made by the parent of this forked process.
    Forked,
    /// The device, its provider or this build does not support the operation.
    NotSupported,
    /// An argument is not allowed; the provider did not say which.
    InvalidInput,
    /// The operation did not finish within its timeout.
    Timeout,
    /// The process lacks the permission.
    PermissionDenied,
    /// No memory is left, or the limit of the device or of locked memory is reached.
    OutOfMemory,
    /// The device is gone, or no device was found.
    NoDevice,
    /// The port, GID, P_Key, multicast group or file does not exist.
    NotFound,
    /// An environment variable has an invalid value.
    InvalidVariable(&'static Variable),
    /// An option has a value that it may not have here, or contradicts another one.
    InvalidOption(&'static OptionLimit),
    /// An option has a value that the device or the system lacks.
    UnsupportedOption(&'static OptionLimit),
    /// A region would be longer than the device's longest, which has this number of bytes.
    RegionTooLong(u64),
    /// The device has only this number of completion vectors.
    NoCompletionVector(u32),
    /// The kernel refuses this system call to the process: a seccomp filter or a setting of its
    /// container. The software device reports this, and waits do.
    RefusedCall(&'static str),
    /// The port is not active.
    PortDown,
    /// The operation would have to wait.
    WouldBlock,
    /// The queue pair's requests could overrun the completion queue: make the queue deeper.
    CompletionQueueTooSmall {
        /// Entries that the queue pair needs.
        needed: u32,
        /// Entries that are not yet reserved.
        free: u32,
    },
    /// The queue pair takes its receives from a [`SharedReceiveQueue`](crate::SharedReceiveQueue).
    SharedReceives,
    /// No completion queue was given for the send or the receive queue.
    NoCompletionQueue,
    /// The attributes do not fit the transition of the queue pair's state.
    InvalidTransition {
        /// The state that the queue pair was in.
        from: QpState,
        /// The state asked for.
        to: QpState,
        /// Attributes that the transition needs and that were not given.
        missing: QpAttrMask,
        /// Attributes that the transition does not allow and that were given.
        not_allowed: QpAttrMask,
    },
    /// The two sides cannot work together: their link layers differ, only one has a GID, or their
    /// vendors' options differ.
    Incompatible,
    /// No RDMA device, or no route, leads to this address or from it.
    NoRoute,
    /// The queue pair was closed or shut down by another of its handles.
    Ended,
    /// Another id is bound to this address.
    AddressInUse,
    /// No listener is at this address.
    NotListening,
    /// The peer rejected the connection.
    Rejected(RejectReason),
    /// The connection has ended, or does not exist.
    Disconnected,
    /// The address belongs to a device other than the open one.
    WrongDevice(WrongDevice),
    /// The C object cannot become an object of this crate.
    Foreign(ForeignObject),
    /// Another error of the operating system or the provider: see [`Error::errno`].
    Os,
    /// The provider broke the interface's rules, or failed without saying why.
    Unknown,
}

/// Whether an `errno` may be the refusal of a system call by a seccomp filter.
fn is_refusal(errno: i32) -> bool {
    matches!(errno, libc::EPERM | libc::EACCES | libc::ENOSYS)
}

/// The system call behind an `errno` that the software device has just returned.
#[cfg(feature = "soft")]
fn failed_call(errno: i32) -> Option<&'static str> {
    rdma_soft::failed_call(errno)
}

/// Returns `None`: this build has no software device.
#[cfg(not(feature = "soft"))]
fn failed_call(_errno: i32) -> Option<&'static str> {
    None
}

/// The error of an operation: which one failed, in what way, and with which `errno` if any.
///
/// `Debug` prints the same sentence as `Display`, so that an error returned from `main` is
/// readable.
///
/// # Examples
///
/// ```
/// use rdma::{Error, ErrorKind, Verb};
///
/// let error = Error::from_errno(Verb::RegisterMr, 12);
/// assert_eq!(error.kind(), ErrorKind::OutOfMemory);
/// assert!(format!("{error:?}").starts_with("ibv_reg_mr: out of memory"));
/// let error: std::io::Error = error.into();
/// assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Error {
    verb: Verb,
    kind: ErrorKind,
    errno: Option<NonZeroI32>,
}

/// The result of most operations of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error that this crate detected itself.
    #[must_use]
    pub const fn new(verb: Verb, kind: ErrorKind) -> Self {
        Self { verb, kind, errno: None }
    }

    /// An error reported as an `errno`, positive or negative.
    #[must_use]
    pub fn from_errno(verb: Verb, errno: i32) -> Self {
        let errno = errno.checked_abs().unwrap_or(0);
        let kind = match errno {
            0 => ErrorKind::Unknown,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT => ErrorKind::NotSupported,
            libc::EPERM | libc::EACCES => ErrorKind::PermissionDenied,
            libc::ENOMEM => ErrorKind::OutOfMemory,
            libc::EINVAL => ErrorKind::InvalidInput,
            libc::EAGAIN if verb.can_be_waited_for() => ErrorKind::WouldBlock,
            libc::EBUSY => ErrorKind::InUse,
            libc::ENODEV | libc::ENXIO => ErrorKind::NoDevice,
            libc::ETIMEDOUT => ErrorKind::Timeout,
            libc::ENOENT => ErrorKind::NotFound,
            _ => ErrorKind::Os,
        };
        let refused = is_refusal(errno).then(|| failed_call(errno)).flatten();
        let kind = refused.map_or(kind, ErrorKind::RefusedCall);
        Self { verb, kind, errno: NonZeroI32::new(errno) }
    }

    /// The error of the system call with this name: [`ErrorKind::RefusedCall`] if its `errno` is
    /// that of a seccomp filter.
    #[must_use]
    pub fn of_call(verb: Verb, call: &'static str, errno: i32) -> Self {
        let error = Self::from_errno(verb, errno);
        if is_refusal(errno) { error.with_kind(ErrorKind::RefusedCall(call)) } else { error }
    }

    /// An error of the standard library, or one of this crate that has become such an error.
    #[must_use]
    pub fn from_io(verb: Verb, error: &io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Self>()) {
            Some(inner) => Self { verb, ..*inner },
            None => Self::from_errno(verb, error.raw_os_error().unwrap_or(0)),
        }
    }

    /// Turns EAGAIN and EINTR of a non-blocking call into `None`.
    pub(crate) fn or_nothing<T>(self) -> Result<Option<T>> {
        match self.errno() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(None),
            _ => Err(self),
        }
    }

    /// The error of an option that a check has refused.
    pub(crate) fn check_option(verb: Verb, checked: Result<(), &'static OptionLimit>) -> Result<()> {
        checked.map_err(|limit| Self::new(verb, ErrorKind::InvalidOption(limit)))
    }

    /// Calls a function that returns 0, or an `errno` of either sign, or -1 and sets `errno`.
    pub(crate) fn check(verb: Verb, call: impl FnOnce() -> i32) -> Result<()> {
        errno::check(call).map_err(|errno| Self::from_errno(verb, errno))
    }

    /// The error of a post or poll that returned an `errno` of either sign, or -1 and set `errno`.
    ///
    /// The data path does not clear `errno` before each call: after -1 it may be an earlier one.
    #[cold]
    pub(crate) fn of_data_path(verb: Verb, result: i32) -> Self {
        Self::from_errno(verb, if result == -1 { Errno::last_raw() } else { result })
    }

    /// The same failure, with a more precise kind.
    #[must_use]
    pub const fn with_kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }

    /// The verb that failed.
    #[must_use]
    pub const fn verb(&self) -> Verb {
        self.verb
    }

    /// The way in which the operation failed.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The operating system's error number, if the error has one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.errno.map(NonZeroI32::get)
    }

    /// Advice on how to fix the error, if there is any.
    fn remedy(&self) -> Option<&'static str> {
        Some(match (self.verb, self.kind) {
            (_, ErrorKind::NoDevice | ErrorKind::NotSupported) if !HAS_DEVICES => NEEDS_LINUX,
            (Verb::RegisterMr, ErrorKind::OutOfMemory) => {
                "raise the memlock limit (`ulimit -l unlimited`) or register less"
            }
            (Verb::RegisterMr, ErrorKind::Os) if self.errno() == Some(libc::EFAULT) => {
                "the memory is not mapped, or not writable"
            }
            (Verb::Allocate, ErrorKind::OutOfMemory) => {
                "ask for less; huge pages are reserved in /sys/kernel/mm/hugepages, for a node in its folder of /sys/devices/system/node"
            }
            (Verb::ConnectTcp | Verb::ListenTcp, ErrorKind::NotSupported) => {
                "iWARP connects by the connection manager only"
            }
            (Verb::RegisterDmaBuf, ErrorKind::NotSupported) => {
                "the device cannot import dma-bufs (soft0, rxe and siw cannot), or Linux is older than 5.12"
            }
            (Verb::RegisterDmaBuf, ErrorKind::InvalidInput) => {
                "offset and length must lie in the dma-buf, and address and offset at the same place of a page"
            }
            (Verb::PostRecv, ErrorKind::NotSupported) => {
                "the provider may copy short messages with the processor, which cannot reach GPU memory and memory with a \
                 chosen iova; on mlx5, set MLX5_SCATTER_TO_CQE=0"
            }
            (Verb::ModifyQp, ErrorKind::Timeout) => {
                "the peer's address could not be resolved: check the GID index and the route to the peer's GID"
            }
            (Verb::ModifyQp, ErrorKind::InvalidInput) => {
                "the set of attributes is right, so a value is not: check port, P_Key and GID index, MTU and address"
            }
            (Verb::ModifyQp, ErrorKind::InUse) => {
                "on iWARP a reset ends nothing that is in flight: destroy the queue pair and make a new one"
            }
            (Verb::ModifyQp | Verb::CreateAh, ErrorKind::Incompatible) => "one end has a GID and the other has not",
            (Verb::QueryPort | Verb::QueryGid | Verb::QueryPkey, ErrorKind::NotFound) => {
                "the device has no such port, GID or P_Key"
            }
            (Verb::GetRemoteEce, ErrorKind::Incompatible) => {
                "the peer answers in another maker's enhanced connection options: it, or what is between, is broken"
            }
            (Verb::CreateAh, ErrorKind::NotFound) => "no GID of this port is the one that the message was sent to",
            (Verb::LeaveMulticast, ErrorKind::NotFound) => "this id has not joined the group, or has left it",
            (Verb::Connect | Verb::Accept | Verb::Reject, ErrorKind::TooLong) => {
                "private data has at most 56 bytes to connect, 196 to accept and 148 to reject (datagrams: 180, 136, 136; iWARP: 251)"
            }
            (Verb::ResolveRoute | Verb::Connect | Verb::Accept | Verb::InitQpAttr, ErrorKind::InvalidInput) => {
                "an id is connected once, after its address and then its route were resolved"
            }
            (Verb::CreateAh, ErrorKind::Timeout) => {
                "the address could not be resolved: check the GID index and the route to the peer's GID"
            }
            (Verb::CreateAh, ErrorKind::InvalidInput) => "check port, GID index, LID and GID of the path",
            (Verb::LoadLibrary, ErrorKind::NotSupported) => {
                "install the library (rdma-core), or set RDMA_IBVERBS_PATH or RDMA_RDMACM_PATH to it"
            }
            (Verb::CreateEventChannel, ErrorKind::NotFound | ErrorKind::NoDevice | ErrorKind::PermissionDenied) => {
                "load the connection manager (modprobe rdma_ucm); in a container, pass /dev/infiniband/rdma_cm"
            }
            (Verb::CreateCq | Verb::CreateQp, ErrorKind::InvalidInput) => {
                "ask for less: compare with the device's limits (max_cqe, max_qp_wr, max_sge, inline data)"
            }
            (Verb::CreateCq | Verb::CreateQp | Verb::AllocPd, ErrorKind::OutOfMemory) => {
                "the device's or the memlock limit is reached: ask for less, or raise `ulimit -l`"
            }
            (Verb::MakePrivate, ErrorKind::NotSupported) => {
                "others keep their access to this memory: use it through its owner"
            }
            (Verb::TakeBuffer, ErrorKind::TooLong) => "the pool's largest class has shorter buffers",
            (Verb::TakeBuffer, ErrorKind::InvalidInput) => "a buffer has at least one byte",
            (Verb::TakeBuffer, ErrorKind::WouldBlock | ErrorKind::Timeout) => {
                "all buffers of this class are in use: give some back, or raise the class's count"
            }
            (Verb::MapRegion, ErrorKind::InUse) => "the region overlaps one that is in the map",
            (_, ErrorKind::Forked) => "open the device in the process that uses it, after fork",
            (_, ErrorKind::QueueFull) => "poll completions before posting more",
            (_, ErrorKind::Ended) => "drop its handles, and connect again with a new one",
            (_, ErrorKind::SharedReceives) => "post to the shared receive queue",
            (_, ErrorKind::CompletionQueueTooSmall { .. }) => "create a deeper completion queue",
            (Verb::ListDevices | Verb::OpenDevice, ErrorKind::PermissionDenied) => {
                "check the rights on /dev/infiniband"
            }
            (Verb::BindAddr | Verb::ListenTcp, ErrorKind::PermissionDenied) => {
                "ports below 1024 are for root: take another one"
            }
            (_, ErrorKind::RefusedCall(_)) => "allow it in the seccomp filter or the container's profile",
            (_, ErrorKind::PortDown) => "choose an active port, or bring the link up",
            (Verb::BindAddr, ErrorKind::NoRoute) => {
                "bind to an address of this host that is an RDMA device's, and to a port that nobody has on all addresses"
            }
            (Verb::ResolveAddr | Verb::ResolveRoute, ErrorKind::Timeout) => {
                "nobody has this address on the device's network, or a firewall is in the way"
            }
            (Verb::Connect, ErrorKind::Timeout) => {
                "the peer's host or its program does not answer: see whether they are well"
            }
            (_, ErrorKind::Rejected(RejectReason::OTHER_USER)) => "run both programs as the same user",
            (_, ErrorKind::Rejected(RejectReason::STALE_CONNECTION)) => "try again, or with a new queue pair",
            (_, ErrorKind::NoRoute) => {
                "check that the address is an RDMA device's, that there is a route to it, and that it answers on this network; \
                 soft0 leads to other hosts and containers if RDMA_SOFT_TCP is set at both ends"
            }
            (_, ErrorKind::AddressInUse) => "take another port (0 takes a free one), or allow reuse before binding",
            (_, ErrorKind::NotListening) => {
                "start the server first, and check address, port and port space; \
                 soft0 reaches processes of other users, containers and hosts if RDMA_SOFT_TCP is set at both ends"
            }
            (Verb::InitQpAttr | Verb::Connect | Verb::Accept | Verb::Establish, ErrorKind::WrongDevice(_)) => {
                "make the queue pair on the context that the request or the id tells"
            }
            (_, ErrorKind::WrongDevice(_)) => {
                "open the device that the address belongs to, or give a source address of this one"
            }
            (verb, ErrorKind::Os) => match (verb, self.errno()?) {
                (_, libc::EMFILE) => "raise the limit of open files (`ulimit -n`)",
                (_, libc::EFBIG) => "raise the limit of file sizes (`ulimit -f`)",
                (Verb::OpenDevice | Verb::CreateEventChannel, libc::EAGAIN) => {
                    "raise the limit of processes and threads (`ulimit -u`)"
                }
                _ => return None,
            },
            _ => return None,
        })
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::QueueFull => "the queue is full",
            Self::SharedReceives => "the queue pair takes its receives from a shared receive queue",
            Self::TooLong => "too long",
            Self::TooManySegments => "too many segments",
            Self::OutOfBounds => "out of bounds",
            Self::InUse => "still in use",
            Self::Forked => "the handle belongs to the parent process",
            Self::NotSupported => "not supported",
            Self::InvalidInput => "invalid argument",
            Self::Timeout => "timed out",
            Self::PermissionDenied => "permission denied",
            Self::OutOfMemory => "out of memory or device resources",
            Self::NoDevice => "no such device, or it is gone",
            Self::NotFound => "not found",
            Self::InvalidVariable(Variable { name, values }) => {
                return write!(f, "the environment variable {name} has an invalid value: it may be {values}");
            }
            Self::InvalidOption(limit) => return limit.fmt(f),
            Self::UnsupportedOption(OptionLimit { name, values }) => {
                return write!(f, "the option {name} is not supported: here it may be {values}");
            }
            Self::RegionTooLong(max) => {
                return write!(f, "the memory is too long: a region of this device has at most {max} bytes");
            }
            Self::NoCompletionVector(count) => {
                let last = count.saturating_sub(1);
                return write!(f, "the option completion_vector has an invalid value: it may be 0 to {last}");
            }
            Self::RefusedCall(call) => return write!(f, "the kernel refuses the system call {call}"),
            Self::PortDown => "the port is not active",
            Self::WouldBlock => "would block",
            Self::CompletionQueueTooSmall { needed, free } => {
                return write!(f, "the completion queue has {free} free entries, and {needed} are needed");
            }
            Self::NoCompletionQueue => "a queue pair needs a completion queue for sends and one for receives",
            Self::InvalidTransition { from, to, missing, not_allowed } => {
                write!(f, "from {from} to {to}")?;
                if missing.is_empty() && not_allowed.is_empty() {
                    f.write_str(": there is no such transition")?;
                }
                if !missing.is_empty() {
                    write!(f, ": missing {missing}")?;
                }
                if !not_allowed.is_empty() {
                    write!(f, ": not allowed {not_allowed}")?;
                }
                return Ok(());
            }
            Self::Incompatible => "the two ends cannot work together",
            Self::NoRoute => "no RDMA device or no route for this address",
            Self::Ended => "the queue pair was closed or shut down",
            Self::AddressInUse => "the address is in use",
            Self::NotListening => "nobody listens at this address",
            Self::Rejected(reason) => return write!(f, "rejected by the peer: {reason}"),
            Self::Disconnected => "disconnected",
            Self::WrongDevice(devices) => return devices.fmt(f),
            Self::Foreign(reason) => return reason.fmt(f),
            Self::Os => "operating system error",
            Self::Unknown => "the provider failed without saying why",
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.verb)?;
        match (self.kind, self.errno) {
            (ErrorKind::Os, Some(errno)) => write!(f, "{}", io::Error::from_raw_os_error(errno.get()))?,
            (kind, Some(errno)) => write!(f, "{kind} (os error {errno})")?,
            (kind, None) => write!(f, "{kind}")?,
        }
        match self.remedy() {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

debug_is_display!(Error);

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind {
            ErrorKind::QueueFull | ErrorKind::WouldBlock => io::ErrorKind::WouldBlock,
            ErrorKind::NotSupported | ErrorKind::UnsupportedOption(_) | ErrorKind::Forked => io::ErrorKind::Unsupported,
            ErrorKind::Timeout => io::ErrorKind::TimedOut,
            ErrorKind::PermissionDenied | ErrorKind::RefusedCall(_) => io::ErrorKind::PermissionDenied,
            ErrorKind::OutOfMemory => io::ErrorKind::OutOfMemory,
            ErrorKind::NoDevice | ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::PortDown | ErrorKind::Disconnected | ErrorKind::Ended => io::ErrorKind::NotConnected,
            ErrorKind::InUse | ErrorKind::AddressInUse => io::ErrorKind::AddrInUse,
            ErrorKind::NoRoute => io::ErrorKind::AddrNotAvailable,
            ErrorKind::NotListening | ErrorKind::Rejected(_) => io::ErrorKind::ConnectionRefused,
            ErrorKind::Os => match error.errno() {
                None | Some(libc::EAGAIN) => io::ErrorKind::Other,
                Some(errno) => Self::from_raw_os_error(errno).kind(),
            },
            ErrorKind::Unknown => io::ErrorKind::Other,
            _ => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}

/// Implements the traits of an error that gives an object back: it reads as the reason, its field
/// `error`, and converts into it.
macro_rules! gives_back {
    ($error:ident<$parameter:ident $(: $bound:path)?>) => {
        impl<$parameter $(: $bound)?> ::std::fmt::Debug for $error<$parameter> {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Debug::fmt(&self.error, f)
            }
        }

        impl<$parameter $(: $bound)?> ::std::fmt::Display for $error<$parameter> {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.error, f)
            }
        }

        impl<$parameter $(: $bound)?> ::std::error::Error for $error<$parameter> {}

        impl<$parameter $(: $bound)?> From<$error<$parameter>> for $crate::Error {
            fn from(error: $error<$parameter>) -> Self {
                error.error
            }
        }

        impl<$parameter $(: $bound)?> From<$error<$parameter>> for ::std::io::Error {
            fn from(error: $error<$parameter>) -> Self {
                error.error.into()
            }
        }
    };
}
pub(crate) use gives_back;

/// A step that consumes an object failed; the error gives the object back, unchanged.
///
/// Converts into [`Error`] with `?` where the object is not needed.
#[non_exhaustive]
pub struct Failed<T> {
    /// The reason of the failure.
    pub error: Error,
    /// The object that the step was called on.
    pub object: T,
}

impl<T> Failed<T> {
    /// A failure of a step that consumes an object.
    #[must_use]
    pub fn new(error: Error, object: T) -> Self {
        Self { error, object }
    }

    /// The same failure with another object, made from this one.
    #[must_use]
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Failed<U> {
        Failed { error: self.error, object: f(self.object) }
    }
}

gives_back!(Failed<T>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_small_and_copy() {
        fn copy<T: Copy + Send + Sync + 'static>() {}
        copy::<Error>();
        assert!(size_of::<Error>() <= 32, "{}", size_of::<Error>());
    }

    #[test]
    fn both_signs_of_errno_mean_the_same() {
        let positive = Error::check(Verb::ModifyQp, || libc::EOPNOTSUPP).unwrap_err();
        let negative = Error::check(Verb::ModifyQp, || -libc::EOPNOTSUPP).unwrap_err();
        assert_eq!(positive, negative);
        assert_eq!(positive.kind(), ErrorKind::NotSupported);
        assert_eq!(positive.errno(), Some(libc::EOPNOTSUPP));
        assert_eq!(Error::from_errno(Verb::ModifyQp, i32::MIN).kind(), ErrorKind::Unknown);
    }

    #[test]
    fn the_text_says_what_failed_why_and_what_to_do() {
        let text = Error::from_errno(Verb::RegisterMr, libc::ENOMEM).to_string();
        assert!(text.starts_with("ibv_reg_mr: "), "{text}");
        assert!(text.contains("ulimit -l"), "{text}");
        let kind = ErrorKind::InvalidTransition {
            from: QpState::RESET,
            to: QpState::INIT,
            missing: QpAttrMask::PORT | QpAttrMask::PKEY_INDEX,
            not_allowed: QpAttrMask::empty(),
        };
        let text = Error::new(Verb::ModifyQp, kind).to_string();
        assert_eq!(text, "ibv_modify_qp: from RESET to INIT: missing PKEY_INDEX | PORT");
    }

    #[test]
    fn an_error_that_leaves_main_is_a_sentence() {
        let error = Error::new(Verb::PollCq, ErrorKind::NoDevice);
        let sentence = "ibv_poll_cq: no such device, or it is gone";
        assert_eq!(format!("{error:?}"), sentence);
        assert_eq!(format!("{:?}", Failed::new(error, ())), sentence);
        let error = crate::WcError { status: crate::WcStatus::LOC_PROT_ERR, vendor_err: 0x51 };
        let sentence = "local protection error: a local key does not cover the buffer (vendor code 0x51)";
        assert_eq!(format!("{error:?}"), sentence);
        #[cfg(feature = "aio")]
        assert_eq!(format!("{:?}", crate::aio::Error::from(error)), sentence);
        let error = crate::OpenError::PortDown { name: "mlx5_0".into(), port: None };
        assert_eq!(format!("{error:?}"), error.to_string());
    }

    #[test]
    fn io_errors_keep_kind_and_text() {
        let error = Error::from_errno(Verb::PollCq, libc::EACCES);
        let io: io::Error = error.into();
        assert_eq!(io.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(io.to_string(), error.to_string());
        assert_eq!(io.downcast::<Error>().unwrap(), error);
    }
}
