//! Plans of faults as data.

use bitflags::bitflags;

use super::super::types::Op;

/// A plan of faults: rules that pick requests and say what happens to them, and the seed of the
/// rules' random choices.
///
/// A plan is parsed from text, as in the environment variable `RDMA_SOFT_FAULT`, and displayed as
/// such text. [`HELP`](super::HELP) is the grammar.
///
/// ```
/// use rdma_soft::faults::FaultPlan;
///
/// let plan: FaultPlan = "seed=7; delay=100us..2ms:send:p=0.1; access:write:nth=5".parse()?;
/// assert_eq!(plan.seed(), 7);
///
/// let error = "loss:send; rnr:read".parse::<FaultPlan>().unwrap_err();
/// assert_eq!(error.to_string(), "at 15, `read`: rnr applies to send, write");
/// # Ok::<(), rdma_soft::faults::ParseFaultError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FaultPlan {
    pub(super) seed: u64,
    pub(super) rules: Vec<Rule>,
}

impl FaultPlan {
    /// The seed of a plan whose text names none.
    pub const DEFAULT_SEED: u64 = 1;

    /// The seed of the random choices.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

bitflags! {
    /// Operations of requests.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Operations: u8 {
        /// Sends on a connection.
        const SEND = 1;
        /// RDMA writes.
        const WRITE = 2;
        /// RDMA reads.
        const READ = 4;
        /// Atomics.
        const ATOMIC = 8;
        /// Datagrams.
        const DATAGRAM = 16;
    }
}

impl Operations {
    /// The operations on memory that they name by a key.
    const ONE_SIDED: Self = Self::WRITE.union(Self::READ).union(Self::ATOMIC);
    /// The operations of connections.
    const CONNECTED: Self = Self::SEND.union(Self::ONE_SIDED);

    /// Returns the operation of a request on a connection.
    pub(crate) const fn of(op: Op) -> Self {
        match op {
            Op::Send => Self::SEND,
            Op::Write => Self::WRITE,
            Op::Read => Self::READ,
            Op::CompareSwap | Op::FetchAdd => Self::ATOMIC,
        }
    }
}

/// The number of attempts of one request that a fault spoils.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempts {
    /// So many.
    Some(u64),
    /// All.
    All,
}

/// The effect on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The request starts later, by a time in nanoseconds from this range.
    Delay(u64, u64),
    /// The request completes later than it could, by a time in nanoseconds from this range.
    Late(u64, u64),
    /// The request is lost on its way.
    Loss(Attempts),
    /// The receiver has no receive for the request.
    Rnr(Attempts),
    /// The target refuses the access to its memory.
    Access,
    /// The responder cannot execute the request.
    Operation,
    /// The requester may not access its own memory.
    Protection,
    /// The requester does not understand the answer.
    Response,
    /// The queue pair goes to ERR.
    Flush,
    /// The completion queue overruns.
    CqError,
    /// The port goes down, and up again after a time in nanoseconds: all requests are lost.
    PortDown(u64),
    /// The device fails, and with it every queue pair.
    DeviceFatal,
    /// The process ends as if killed.
    Die,
}

impl Fault {
    /// Every fault, with the values that stand for an omitted one.
    pub(super) const ALL: [Self; 13] = [
        Self::Delay(0, 0),
        Self::Late(0, 0),
        Self::Loss(Attempts::Some(1)),
        Self::Rnr(Attempts::Some(1)),
        Self::Access,
        Self::Operation,
        Self::Protection,
        Self::Response,
        Self::Flush,
        Self::CqError,
        Self::DeviceFatal,
        Self::Die,
        Self::PortDown(0),
    ];

    /// Returns the name in the text of a plan.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Delay(..) => "delay",
            Self::Late(..) => "late",
            Self::Loss(_) => "loss",
            Self::Rnr(_) => "rnr",
            Self::Access => "access",
            Self::Operation => "operation",
            Self::Protection => "protection",
            Self::Response => "response",
            Self::Flush => "flush",
            Self::CqError => "cq-error",
            Self::PortDown(_) => "port-down",
            Self::DeviceFatal => "device-fatal",
            Self::Die => "die",
        }
    }

    /// Whether the fault is the device's or the process's, and needs no request.
    pub(super) const fn is_general(self) -> bool {
        matches!(self, Self::PortDown(_) | Self::DeviceFatal | Self::Die)
    }

    /// Whether only a requester that expects an answer can notice the fault.
    const fn needs_answer(self) -> bool {
        matches!(self, Self::Late(..) | Self::Rnr(_) | Self::Operation | Self::Response)
    }

    /// Returns the operations that can meet the fault.
    pub(super) const fn operations(self, inbound: bool) -> Operations {
        match self {
            Self::Delay(..) | Self::Protection if !inbound => Operations::all(),
            Self::Late(..) | Self::Response if !inbound => Operations::CONNECTED,
            Self::Delay(..) | Self::Late(..) | Self::Protection | Self::Response => Operations::empty(),
            Self::Loss(_) | Self::PortDown(_) | Self::DeviceFatal | Self::Die => Operations::all(),
            Self::Rnr(_) => Operations::SEND.union(Operations::WRITE),
            Self::Access => Operations::ONE_SIDED,
            Self::Operation | Self::Flush | Self::CqError => Operations::CONNECTED,
        }
    }
}

/// Which of the requests that match a rule it picks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pick {
    /// Each.
    Each,
    /// Only the request with this number, counted from 1.
    Nth(u64),
    /// Each request whose number is a multiple.
    Every(u64),
    /// Each with this probability, above 0 and at most 1.
    Chance(f64),
    /// None: the fault happens so many nanoseconds after the plan is set.
    At(u64),
}

/// A rule of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rule {
    pub(super) fault: Fault,
    /// Whether the rule is for requests that arrive, and not for those that are posted.
    pub(super) inbound: bool,
    pub(super) operations: Operations,
    /// The only queue pair of this process that the rule concerns.
    pub(super) qpn: Option<u32>,
    /// The number of matching requests that the rule passes over first.
    pub(super) after: u64,
    pub(super) pick: Pick,
    /// The most requests that the rule picks.
    pub(super) limit: Option<u64>,
}

/// A request, as rules see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    /// The queue pair of this process.
    pub(crate) qpn: u32,
    pub(crate) inbound: bool,
    /// One operation.
    pub(crate) operation: Operations,
    /// Whether the request takes a receive at its destination.
    pub(crate) takes_receive: bool,
    pub(crate) is_empty: bool,
    /// Whether the connection is reliable.
    pub(crate) is_reliable: bool,
}

impl Rule {
    /// Whether the rule counts a request.
    pub(super) fn matches(&self, subject: &Subject) -> bool {
        let can_meet = match self.fault {
            Fault::Rnr(_) => subject.takes_receive,
            // A request without data accesses no memory.
            Fault::Access => !subject.is_empty,
            _ => true,
        };
        can_meet
            && (subject.is_reliable || !self.fault.needs_answer())
            && self.inbound == subject.inbound
            && self.operations.contains(subject.operation)
            && self.qpn.is_none_or(|qpn| qpn == subject.qpn)
            && !matches!(self.pick, Pick::At(_))
    }
}
