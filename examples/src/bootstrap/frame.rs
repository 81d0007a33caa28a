//! The wire protocol between rank 0 and the others: a header that never changes, then JSON frames.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::exchange::GroupId;
use super::host::HostId;
use super::terms::Settings;

/// The first bytes of every connection.
pub(super) const MAGIC: [u8; 8] = *b"rdma-job";
/// Version of the protocol; changes with the frames and with the values that the programs exchange.
pub(super) const VERSION: u32 = 4;
/// Largest frame: large enough for the addresses of all queue pairs of some thousand ranks.
pub(super) const MAX_LENGTH: usize = 64 << 20;
/// Largest first frame of a connection, whose sender is still unknown.
pub(super) const MAX_HELLO: usize = 64 << 10;

/// The introduction of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) job: u64,
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
    /// All ranks have connected; holds the host of each.
    Welcome(Vec<HostId>),
    /// The rank cannot take part; holds the reason.
    Refuse(String),
    /// One rank's part of a gathering: the gathering's name, and the value.
    Part(String, Value),
    /// All parts of a gathering, in rank order.
    Whole(Vec<Value>),
    /// A frame between ranks of a part of the job.
    Within(Routed),
    /// A lost rank, and what happened to it.
    Lost(usize, String),
    /// The sender is alive.
    Alive,
    /// The sender has finished and closes the connection.
    Bye,
}

/// A frame between ranks of a part of the job, which passes through rank 0. Ranks are those of the
/// job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Routed {
    pub(super) group: GroupId,
    pub(super) from: usize,
    pub(super) to: Vec<usize>,
    pub(super) content: Content,
}

/// The frames that ranks of a part of the job send to each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Content {
    /// As [`Frame::Part`].
    Part(String, Value),
    /// As [`Frame::Whole`].
    Whole(Vec<Value>),
}

impl From<Content> for Frame {
    fn from(content: Content) -> Self {
        match content {
            Content::Part(what, value) => Self::Part(what, value),
            Content::Whole(parts) => Self::Whole(parts),
        }
    }
}

/// The header of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Head {
    Ours,
    OtherVersion(u32),
    Foreign,
}

pub(super) fn write_head(out: &mut impl Write) -> io::Result<()> {
    let mut head = MAGIC.to_vec();
    head.extend(VERSION.to_be_bytes());
    out.write_all(&head)
}

pub(super) fn read_head(input: &mut impl Read) -> io::Result<Head> {
    let (mut magic, mut version) = ([0; 8], [0; 4]);
    input.read_exact(&mut magic)?;
    if magic != MAGIC {
        return Ok(Head::Foreign);
    }
    input.read_exact(&mut version)?;
    Ok(match u32::from_be_bytes(version) {
        VERSION => Head::Ours,
        other => Head::OtherVersion(other),
    })
}

impl Frame {
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let body = serde_json::to_vec(self)?;
        let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= MAX_LENGTH).ok_or_else(malformed)?;
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

    use super::*;

    #[test]
    fn every_frame_survives_the_wire() {
        let settings = [("max".to_owned(), json!("1K"))].into_iter().collect();
        let (host, program) = (HostId::own(), "all_reduce".into());
        let hello = Hello { job: u64::MAX, rank: 2, world: 3, host, program, settings };
        for frame in [
            Frame::Hello(hello),
            Frame::Welcome(vec![HostId::own(); 2]),
            Frame::Refuse("no".into()),
            Frame::Part("addresses".into(), json!([1, "x", null])),
            Frame::Whole(vec![json!(1), json!(u64::MAX)]),
            Frame::Within(Routed {
                group: GroupId::default().part(2),
                from: 3,
                to: vec![1, 0],
                content: Content::Whole(vec![json!(5)]),
            }),
            Frame::Lost(7, "has failed".into()),
            Frame::Alive,
            Frame::Bye,
        ] {
            let mut wire = Vec::new();
            write_head(&mut wire).unwrap();
            frame.write(&mut wire).unwrap();
            let mut input = wire.as_slice();
            assert_eq!(read_head(&mut input).unwrap(), Head::Ours);
            assert_eq!(Frame::read(&mut input, MAX_LENGTH).unwrap(), frame);
        }
    }

    #[test]
    fn foreign_bytes_are_refused() {
        assert_eq!(read_head(&mut &b"GET / HTTP/1.1"[..]).unwrap(), Head::Foreign);
        let other = [&MAGIC[..], &9_u32.to_be_bytes()].concat();
        assert_eq!(read_head(&mut other.as_slice()).unwrap(), Head::OtherVersion(9));
        let deep = [&10_000_u32.to_be_bytes()[..], &[b'['; 10_000]].concat();
        for wire in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\x04\"By", b"\0\0\0\x02{}", b"\0\0\0\x00", &deep] {
            assert!(Frame::read(&mut &*wire, MAX_LENGTH).is_err());
        }
        let nested = format!(r#"{{"Part":["x",{}1{}]}}"#, "[".repeat(120), "]".repeat(120));
        let nested = [&u32::try_from(nested.len()).unwrap().to_be_bytes()[..], nested.as_bytes()].concat();
        let (told, heard) = std::sync::mpsc::channel();
        // In a thread like those that read connections.
        super::super::spawn("test", move || told.send(Frame::read(&mut &*nested, MAX_LENGTH).is_ok()).unwrap())
            .unwrap();
        assert!(heard.recv().unwrap(), "a deep value is read, and overflows no stack");
        let long = Frame::Refuse("x".repeat(MAX_LENGTH));
        assert!(long.write(&mut Vec::new()).is_err());
    }
}
