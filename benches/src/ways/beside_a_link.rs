//! What a link to another host costs the work within this one, as callgrind counts it while nothing
//! goes over the link. The other host is a process at another loopback address.
//!
//! Each look at the link's socket is a system call. The polls before those that are counted are so
//! many that looks are as rare as they become.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use rdma::soft::tcp::{self, Key};

use super::{counted_iterations, post_poll, send_receive};
use crate::callgrind::counted;
use crate::contender::WithAHost;
use crate::device;
use crate::pair::{self, Channel, Contender, Contenders, Plan, Role};

/// Iterations before those that are counted.
const WARM_UP: u64 = 100;
/// Polls before those that are counted.
const POLLS: u64 = 1 << 19;

/// The names of the ways.
pub const NAMES: [&str; 2] =
    ["send and receive by hand, soft0 with an idle link", "empty poll, soft0 with an idle link"];

const SEND: &str = send_receive::NAMES[0];
const POLL: &str = post_poll::Case::NAMES[6];

/// Goes a way in the leader, which callgrind counts, beside a link to its follower.
///
/// # Errors
///
/// The device's error, or that of the other process.
pub fn count(name: &str) -> io::Result<()> {
    let plan = Plan::new(true, 1, Duration::ZERO);
    let prepare = |role: Role, channel: &mut Channel| {
        listen(role, channel)?;
        let opened = device::open()?;
        let polls = WithAHost::<post_poll::Case>::new(role, channel, &opened, POLL, true)?;
        let sends =
            (name == NAMES[0]).then(|| WithAHost::<send_receive::Case>::new(role, channel, &opened, SEND, false));
        Ok::<Contenders, _>(vec![Box::new(Beside { polls, sends: sends.transpose()? })])
    };
    pair::compare(&plan, prepare).map(drop)
}

/// Has the device of this process listen at an address and with a key of this comparison, so that
/// the two processes are on two hosts.
pub(super) fn listen(role: Role, channel: &mut Channel) -> io::Result<()> {
    let (number, key) = match role {
        Role::Leader => {
            let key = Key::random()?;
            channel.send(&serde_json::to_string(&key.to_bytes())?)?;
            (2, key)
        }
        Role::Follower => (3, Key::from_bytes(&serde_json::from_str::<Vec<u8>>(&channel.receive()?)?)?),
    };
    let address = Ipv4Addr::new(127, 88, 29, number);
    // All hosts of a job have one port.
    let port = match role {
        Role::Leader => {
            let port = TcpListener::bind((address, 0))?.local_addr()?.port();
            channel.send(&port.to_string())?;
            port
        }
        Role::Follower => channel.receive()?.parse().map_err(io::Error::other)?,
    };
    tcp::listen(SocketAddr::from((address, port)).into(), key)?;
    Ok(())
}

/// A way and, before it, many polls.
struct Beside {
    polls: WithAHost<post_poll::Case>,
    /// Counted in place of polls.
    sends: Option<WithAHost<send_receive::Case>>,
}

/// The leader goes as far as the arguments say.
impl Contender for Beside {
    fn name(&self) -> String {
        NAMES[usize::from(self.sends.is_none())].into()
    }

    /// As a program does, it goes on for as long as its own arguments say.
    fn is_a_program(&self) -> bool {
        true
    }

    fn lead(&mut self, _iterations: u64) -> io::Result<Duration> {
        let start = Instant::now();
        self.polls.lead(POLLS)?;
        match &mut self.sends {
            None => counted(|| self.polls.lead(counted_iterations()))?,
            Some(sends) => {
                sends.lead(WARM_UP)?;
                counted(|| sends.lead(counted_iterations()))?
            }
        };
        Ok(start.elapsed())
    }
}
