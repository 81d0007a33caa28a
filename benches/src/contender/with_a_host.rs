//! Operations within a host, in a process that also has a link to another host, or may have one.

use std::io;
use std::time::{Duration, Instant};

use rdma::Opened;

use super::RdmaSend;
use crate::pair::{Channel, Contender, PingPong, Role};
use crate::ways::Way;

/// Bytes of the messages over the link.
const SIZE: usize = 64;

/// A way that the leader goes, and the link, over which nothing is sent meanwhile.
#[derive(Debug)]
pub struct WithAHost<W> {
    name: &'static str,
    way: Option<W>,
    _link: Option<RdmaSend>,
}

impl<W: Way> WithAHost<W> {
    /// Makes the way with this name, at the leader, and a link to the follower if asked for.
    ///
    /// # Errors
    ///
    /// The error of the device or of the channel.
    pub fn new(
        role: Role,
        channel: &mut Channel,
        opened: &Opened,
        name: &'static str,
        is_linked: bool,
    ) -> io::Result<Self> {
        let way = (role == Role::Leader).then(|| W::named(name)).transpose()?;
        let mut link = is_linked.then(|| RdmaSend::connect(role, channel, opened, SIZE)).transpose()?;
        match &mut link {
            Some(link) if role == Role::Leader => {
                link.send()?;
                link.receive()?;
            }
            Some(link) => {
                link.receive()?;
                link.send()?;
            }
            None => {}
        }
        Ok(Self { name, way, _link: link })
    }
}

impl<W: Way> Contender for WithAHost<W> {
    fn name(&self) -> String {
        self.name.into()
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let start = Instant::now();
        self.way.as_mut().map_or(Ok(()), |way| way.run(iterations))?;
        Ok(start.elapsed())
    }
}
