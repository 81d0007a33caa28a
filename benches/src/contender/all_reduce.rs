//! The sum of ranks' elements at all: by a communicator, and, of two ranks, by plain sockets.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rdma_collectives::bootstrap::{Group, Place, Roles, Root, Terms};
use rdma_collectives::{Communicator, Reduction, Tensor, Transport};

use super::tcp::{self, transfer};
use crate::pair::{Channel, Contender, Role};

/// Bytes that one call writes, and reads, at most.
const WRITE: usize = 64 << 10;
const READ: usize = 256 << 10;
/// How long the ranks wait for each other to come.
const PATIENCE: Duration = Duration::from_secs(20);

/// `all_reduce` in place over verbs on the software device, one rank at each side.
pub struct AllReduce {
    comm: Communicator,
    tensor: Tensor<f32>,
    // The communicator lives as long as its group.
    _group: Group,
}

impl AllReduce {
    /// Connects the two ranks, where the leader has this address, and checks a sum.
    ///
    /// # Errors
    ///
    /// The communicator's error, or a wrong sum.
    pub fn connect(role: Role, channel: &mut Channel, leader: IpAddr, size: usize) -> io::Result<Self> {
        let root = root(role, channel, leader)?;
        Self::open(usize::from(role == Role::Follower), 2, root, size)
    }

    fn open(rank: usize, ranks: usize, root: String, size: usize) -> io::Result<Self> {
        let place = Place { rank, ranks, root: Root::Address(root), job: 1 };
        let terms = Terms::new("benches", &(), Roles::Ranks, PATIENCE);
        let mut group = Group::meet(place, &terms).map_err(io::Error::other)?;
        let device = "soft0".parse().map_err(io::Error::other)?;
        let builder = Communicator::builder(&mut group).device(device).transport(Transport::Verbs);
        let mut comm = builder.open().map_err(io::Error::other)?;
        let tensor = comm.allocate::<f32>(size / size_of::<f32>()).map_err(io::Error::other)?;
        let mut this = Self { comm, tensor, _group: group };
        this.check(rank, ranks)?;
        Ok(this)
    }

    /// Sums once, and leaves zeros.
    fn check(&mut self, rank: usize, ranks: usize) -> io::Result<()> {
        let count = self.tensor.count();
        let float = |value: usize| f32::from(u16::try_from(value).unwrap_or(0));
        let own = |at: usize| float(at % 100 + rank);
        let write = |tensor: &Tensor<f32>, values: &[f32]| tensor.write(0, values).map_err(io::Error::other);
        write(&self.tensor, &(0..count).map(own).collect::<Vec<_>>())?;
        self.sum()?;
        let mut sums = vec![0.0; count];
        self.tensor.read(0, &mut sums).map_err(io::Error::other)?;
        let expected = |at: usize| float(ranks * (at % 100) + ranks * (ranks - 1) / 2);
        if let Some(at) = (0..count).find(|&at| (sums[at] - expected(at)).abs() > 0.0) {
            return Err(io::Error::other(format!("a wrong sum of element {at}: {}", sums[at])));
        }
        write(&self.tensor, &vec![0.0; count])
    }

    fn sum(&mut self) -> io::Result<()> {
        self.comm.all_reduce_in_place(&self.tensor, Reduction::Sum).map_err(io::Error::other)
    }

    fn run(&mut self, iterations: u64) -> io::Result<()> {
        (0..iterations).try_for_each(|_| self.sum())
    }
}

/// The place where the ranks meet: a port of the leader's that is free.
fn root(role: Role, channel: &mut Channel, leader: IpAddr) -> io::Result<String> {
    match role {
        Role::Leader => {
            let address = TcpListener::bind((leader, 0))?.local_addr()?.to_string();
            channel.send(&address)?;
            Ok(address)
        }
        Role::Follower => channel.receive(),
    }
}

/// `all_reduce` in place, with several ranks at each side, which are threads of its process.
#[derive(Debug)]
pub struct AllReduceOfMany(Vec<Rank>);

/// A thread with a rank: it sums as often as it is told, and then says so.
#[derive(Debug)]
struct Rank {
    iterations: Sender<u64>,
    done: Receiver<io::Result<()>>,
}

impl AllReduceOfMany {
    /// Connects the ranks, `each` at a side, where the leader has this address, and checks a sum.
    ///
    /// # Errors
    ///
    /// The communicator's error, or a wrong sum.
    pub fn connect(role: Role, channel: &mut Channel, leader: IpAddr, size: usize, each: usize) -> io::Result<Self> {
        let root = root(role, channel, leader)?;
        let first = if role == Role::Leader { 0 } else { each };
        let this = Self((first..first + each).map(|rank| Rank::start(rank, 2 * each, root.clone(), size)).collect());
        this.wait()?;
        Ok(this)
    }

    fn run(&self, iterations: u64) -> io::Result<()> {
        for rank in &self.0 {
            rank.iterations.send(iterations).map_err(io::Error::other)?;
        }
        self.wait()
    }

    fn wait(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|rank| rank.done.recv().map_err(io::Error::other)?)
    }
}

impl Rank {
    fn start(rank: usize, ranks: usize, root: String, size: usize) -> Self {
        let ((iterations, told), (tell, done)) = (channel(), channel());
        thread::spawn(move || {
            let opened = AllReduce::open(rank, ranks, root, size);
            let (mut reduce, mut said) = match opened {
                Ok(reduce) => (reduce, tell.send(Ok(()))),
                Err(error) => return drop(tell.send(Err(error))),
            };
            while let Some(iterations) = said.ok().and_then(|()| told.recv().ok()) {
                said = tell.send(reduce.run(iterations));
            }
        });
        Self { iterations, done }
    }
}

impl Contender for AllReduceOfMany {
    fn name(&self) -> String {
        format!("all_reduce over soft0, {} ranks each", self.0.len())
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let start = Instant::now();
        self.run(iterations)?;
        Ok(start.elapsed())
    }

    fn follow(&mut self, iterations: u64) -> io::Result<()> {
        self.run(iterations)
    }
}

impl fmt::Debug for AllReduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllReduce").field("elements", &self.tensor.count()).finish_non_exhaustive()
    }
}

impl Contender for AllReduce {
    fn name(&self) -> String {
        "all_reduce over soft0".into()
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let start = Instant::now();
        self.run(iterations)?;
        Ok(start.elapsed())
    }

    fn follow(&mut self, iterations: u64) -> io::Result<()> {
        self.run(iterations)
    }
}

/// The ring of two ranks over one connection, on which both spin. Each rank sends the other's half,
/// and adds to its own half what comes; what is summed goes out at once.
#[derive(Debug)]
pub struct SocketRing {
    stream: TcpStream,
    elements: Vec<u8>,
    /// The half that this rank sums.
    own: Range<usize>,
    /// The half of the other rank.
    other: Range<usize>,
    scratch: Vec<u8>,
}

impl SocketRing {
    /// Connects the two ranks, where the leader has this address, and checks a sum.
    ///
    /// # Errors
    ///
    /// The socket's error, or a wrong sum.
    pub fn connect(role: Role, channel: &mut Channel, leader: IpAddr, size: usize) -> io::Result<Self> {
        let stream = tcp::connect(role, channel, leader)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let half = size / 2;
        let (own, other) = match role {
            Role::Leader => (0..half, half..size),
            Role::Follower => (half..size, 0..half),
        };
        let elements = 1.5_f32.to_ne_bytes().repeat(size / size_of::<f32>());
        let mut this = Self { stream, elements, own, other, scratch: vec![0; READ] };
        this.sum()?;
        if this.elements.chunks_exact(4).any(|element| element != 3_f32.to_ne_bytes()) {
            return Err(io::Error::other("a wrong sum"));
        }
        this.elements.fill(0);
        Ok(this)
    }

    fn sum(&mut self) -> io::Result<()> {
        let Self { stream, elements, own, other, scratch } = self;
        let half = own.len();
        // Bytes that were sent and received, of both halves; those of an element that is not whole.
        let (mut sent, mut received, mut part) = (0, 0, 0);
        while sent < 2 * half || received < 2 * half {
            let summed = received.min(half) - part;
            let end = if sent < half { half } else { half + summed };
            if sent < end {
                let at = if sent < half { other.start + sent } else { own.start + sent - half };
                sent += transfer(stream.write(&elements[at..at + WRITE.min(end - sent)]))?;
            }
            if received < half {
                let room = READ.min(half - received + part);
                let count = transfer(stream.read(&mut scratch[part..room]))?;
                let (from, filled) = (own.start + received - part, part + count);
                received += count;
                part = filled % size_of::<f32>();
                let whole = filled - part;
                add(&mut elements[from..from + whole], &scratch[..whole]);
                scratch.copy_within(whole..filled, 0);
            } else if received < 2 * half {
                let at = other.start + received - half;
                received += transfer(stream.read(&mut elements[at..at + READ.min(2 * half - received)]))?;
            }
        }
        Ok(())
    }
}

fn add(sums: &mut [u8], values: &[u8]) {
    for (sum, value) in sums.chunks_exact_mut(4).zip(values.chunks_exact(4)) {
        let float = |bytes: &[u8]| f32::from_ne_bytes(bytes.try_into().unwrap_or_default());
        sum.copy_from_slice(&(float(sum) + float(value)).to_ne_bytes());
    }
}

impl Contender for SocketRing {
    fn name(&self) -> String {
        "the ring over plain sockets".into()
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let start = Instant::now();
        (0..iterations).try_for_each(|_| self.sum())?;
        Ok(start.elapsed())
    }

    fn follow(&mut self, iterations: u64) -> io::Result<()> {
        (0..iterations).try_for_each(|_| self.sum())
    }
}
