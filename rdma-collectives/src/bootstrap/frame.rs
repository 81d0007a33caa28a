//! The wire protocol between rank 0 and the others: a head whose layout never changes, then JSON
//! frames.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use super::host::HostId;
use super::journal::News;
use super::json::Json;
use super::terms::Settings;
use crate::cause::Cause;
use crate::text::PeerText;

/// The first bytes of every connection.
pub(super) const MAGIC: [u8; 8] = *b"rdma-job";
/// Version of the protocol; changes with the frames and with the values that the programs exchange.
pub(super) const VERSION: u32 = 10;
/// Largest first frame of a connection, whose sender is still unknown.
pub(super) const MAX_HELLO: usize = 16 << 10;
/// Bytes of a frame for each rank of the job, of whose values a frame consists: the addresses of
/// 1024 queue pairs are a third of it.
const PER_RANK: usize = 1 << 20;
/// Largest frame of a job of any size.
const MAX_LENGTH: usize = 64 << 20;

/// The largest frame of a job of `world` ranks.
pub(super) fn max_length(world: usize) -> usize {
    world.saturating_mul(PER_RANK).min(MAX_LENGTH)
}

/// The introduction of a rank to rank 0 of its job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) host: HostId,
    /// Name of the program: ranks of different programs, or with different settings, cannot work
    /// together.
    pub(super) program: String,
    pub(super) settings: Settings,
}

/// A message between ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Frame {
    /// The first frame of a connection.
    Hello(Hello),
    /// The question whether rank 0 of the job listens here, which a rank may ask before it
    /// introduces itself with another head.
    Probe,
    /// Rank 0's answer to [`Frame::Probe`].
    Present,
    /// All ranks have connected; holds the host of each.
    Welcome(Vec<HostId>),
    /// The job does not begin, or not with this rank; holds the rank that is the reason, if it is
    /// one alone and not rank 0, and the reason.
    Refuse(Option<usize>, Loss),
    /// The meeting has failed, of which this rank has been told; it may be here for the next one,
    /// which has not begun.
    Over,
    /// One rank's part of a gathering: the gathering's name, and the value.
    Part(String, Json),
    /// An array of all parts of a gathering, in rank order.
    Whole(Json),
    /// A frame between ranks of a part of the job.
    Within(Routed),
    /// What the ranks of a communicator tell each other about their operations.
    Compare(Routed<News>),
    /// A lost rank, and what happened to it.
    Lost(usize, Loss),
    /// The sender is alive.
    Alive,
    /// The sender has finished and closes the connection.
    Bye,
}

/// The end of a rank, or its failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Loss {
    pub(super) what: PeerText,
    pub(super) cause: Cause,
}

impl Loss {
    pub(super) fn new(what: impl Into<String>, cause: Cause) -> Self {
        Self { what: what.into().into(), cause }
    }
}

/// A frame between ranks of a part of the job, which passes through rank 0. Ranks are those of the
/// job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Routed<C = Content> {
    pub(super) group: GroupId,
    pub(super) from: usize,
    pub(super) to: Vec<usize>,
    pub(super) content: C,
}

/// The identity of a group at each of its ranks: empty for the whole job, else the numbers of the
/// splits that led to it. A rank is in one part of each split, so parts of the same split need no
/// identities of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct GroupId(Vec<u32>);

impl GroupId {
    /// The identity of the parts of a group's split.
    pub(super) fn part(&self, split: u32) -> Self {
        Self(self.0.iter().copied().chain([split]).collect())
    }

    pub(super) fn is_whole(&self) -> bool {
        self.0.is_empty()
    }

    /// The group whose split made this part, and the number of the split.
    pub(super) fn parent(&self) -> Option<(Self, u32)> {
        let (&split, parent) = self.0.split_last()?;
        Some((Self(parent.to_vec()), split))
    }
}

/// The frames that ranks of a part of the job send to each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Content {
    /// As [`Frame::Part`].
    Part(String, Json),
    /// As [`Frame::Whole`].
    Whole(Json),
}

impl From<Content> for Frame {
    fn from(content: Content) -> Self {
        match content {
            Content::Part(what, value) => Self::Part(what, value),
            Content::Whole(parts) => Self::Whole(parts),
        }
    }
}

/// The head of a connection; its layout is that of every version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) version: u32,
    /// Number of the job that the connecting rank belongs to.
    pub(super) job: u64,
}

impl Head {
    /// The head of this build for a job.
    pub(super) fn of(job: u64) -> Self {
        Self { version: VERSION, job }
    }

    pub(super) fn write(self, out: &mut impl Write) -> io::Result<()> {
        let mut head = MAGIC.to_vec();
        head.extend(self.version.to_be_bytes());
        head.extend(self.job.to_be_bytes());
        out.write_all(&head)
    }

    /// Reads a head; `None` if the bytes are of another protocol.
    pub(super) fn read(input: &mut impl Read) -> io::Result<Option<Self>> {
        let (mut magic, mut version, mut job) = ([0; 8], [0; 4], [0; 8]);
        input.read_exact(&mut magic)?;
        if magic != MAGIC {
            return Ok(None);
        }
        input.read_exact(&mut version)?;
        input.read_exact(&mut job)?;
        Ok(Some(Self { version: u32::from_be_bytes(version), job: u64::from_be_bytes(job) }))
    }
}

impl Frame {
    /// Bytes of the values of a gathering's frame, which another rank chooses.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Part(what, value) => what.len() + value.len(),
            Self::Whole(values) => values.len(),
            _ => 0,
        }
    }

    /// Writes a frame of at most `most` bytes.
    pub(super) fn write(&self, out: &mut impl Write, most: usize) -> io::Result<()> {
        let body = serde_json::to_vec(self)?;
        let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= most);
        let length = length.ok_or_else(|| {
            let text = format!("a message of {} bytes is longer than a job of so many ranks allows", body.len());
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        out.write_all(&[&length.to_be_bytes()[..], &body].concat())
    }

    /// Reads a frame of at most `most` bytes.
    pub(super) fn read(input: &mut impl Read, most: usize) -> io::Result<Self> {
        let mut length = [0; 4];
        input.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > most {
            return Err(malformed());
        }
        let mut body = vec![0; length];
        input.read_exact(&mut body)?;
        serde_json::from_slice(&body).map_err(|_| malformed())
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message of another protocol; are all ranks the same build?")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::journal::{Entry, Report};
    use super::*;

    #[test]
    fn every_frame_survives_the_wire() {
        let json = |value| Json::of(&value).unwrap();
        let settings = [("max".to_owned(), json!("1K"))].into_iter().collect();
        let (host, program) = (HostId::own(), "all_reduce".into());
        let hello = Hello { rank: 2, world: 3, host, program, settings };
        for frame in [
            Frame::Hello(hello),
            Frame::Probe,
            Frame::Present,
            Frame::Over,
            Frame::Welcome(vec![HostId::own(); 2]),
            Frame::Refuse(Some(1), Loss::new("no", Cause::TimedOut { limit: std::time::Duration::from_secs(1) })),
            Frame::Part("addresses".into(), json(json!([1, "x", null]))),
            Frame::Whole(json(json!([1, u64::MAX]))),
            Frame::Within(Routed {
                group: GroupId::default().part(2),
                from: 3,
                to: vec![1, 0],
                content: Content::Whole(json(json!([5]))),
            }),
            Frame::Compare(Routed {
                group: GroupId::default().part(0),
                from: 1,
                to: vec![0],
                content: News::Report(Report {
                    last: u64::MAX,
                    entries: vec![Entry { number: u64::MAX, hash: u64::MAX - 1, signature: [1 << 63, 0, 2] }],
                }),
            }),
            Frame::Lost(7, Loss::new("has failed", Cause::OutOfMemory)),
            Frame::Alive,
            Frame::Bye,
        ] {
            let mut wire = Vec::new();
            Head::of(u64::MAX).write(&mut wire).unwrap();
            frame.write(&mut wire, MAX_HELLO).unwrap();
            let mut input = wire.as_slice();
            assert_eq!(Head::read(&mut input).unwrap(), Some(Head { version: VERSION, job: u64::MAX }));
            assert_eq!(Frame::read(&mut input, MAX_HELLO).unwrap(), frame);
        }
    }

    #[test]
    fn foreign_bytes_are_refused() {
        assert_eq!(Head::read(&mut &b"GET / HTTP/1.1"[..]).unwrap(), None);
        let other = [&MAGIC[..], &9_u32.to_be_bytes(), &7_u64.to_be_bytes()].concat();
        assert_eq!(Head::read(&mut other.as_slice()).unwrap(), Some(Head { version: 9, job: 7 }));
        let deep = [&10_000_u32.to_be_bytes()[..], &[b'['; 10_000]].concat();
        for wire in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\x04\"By", b"\0\0\0\x02{}", b"\0\0\0\x00", &deep] {
            assert!(Frame::read(&mut &*wire, MAX_HELLO).is_err());
        }
        let long = Frame::Part("x".repeat(MAX_HELLO), Json::of(&()).unwrap());
        assert!(long.write(&mut Vec::new(), MAX_HELLO).unwrap_err().to_string().contains("longer than"));
    }

    #[test]
    fn a_frame_has_room_for_what_ranks_tell_each_other() {
        assert_eq!(max_length(2), 2 << 20);
        assert_eq!(max_length(usize::MAX), MAX_LENGTH);
        // Addresses of 1024 queue pairs, as `connect` tells them.
        let addresses = vec![(1_usize, vec![u8::MAX; 64]); 1024];
        let part = Frame::Part("addresses".into(), Json::of(&addresses).unwrap());
        part.write(&mut Vec::new(), PER_RANK / 3).unwrap();
    }
}
