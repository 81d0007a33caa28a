//! What travels between rank 0 and the others: a hello whose head never changes, then frames.

use std::io::{self, Read, Write};

/// The first bytes of every connection.
pub(super) const MAGIC: [u8; 8] = *b"rdma-job";
/// Changes whenever anything here or in what the programs exchange does.
pub(super) const VERSION: u32 = 2;
/// Nothing that ranks tell each other is longer: addresses of all queue pairs of some hundred ranks.
const MAX_LENGTH: usize = 64 << 20;
/// Nor is what somebody says of whom nothing is known yet.
const MAX_HELLO: usize = 64 << 10;

/// How a rank introduces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) job: u64,
    pub(super) rank: u32,
    pub(super) world: u32,
    /// The program and its settings: ranks that disagree cannot work together.
    pub(super) program: String,
    pub(super) settings: String,
}

/// A message between ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// All ranks are here.
    Welcome,
    /// Go away; why.
    Refuse(String),
    /// One rank's part of an all-gather.
    Part(Vec<u8>),
    /// All parts of an all-gather, in the order of ranks.
    Whole(Vec<Vec<u8>>),
    /// A rank failed: which, and what it said.
    Abort(u32, String),
    /// The sender has finished; it will close the connection now.
    Bye,
}

/// What the head of a hello can turn out to be.
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

impl Hello {
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut body = Vec::new();
        body.extend(self.job.to_be_bytes());
        body.extend(self.rank.to_be_bytes());
        body.extend(self.world.to_be_bytes());
        put(&mut body, self.program.as_bytes());
        put(&mut body, self.settings.as_bytes());
        write_record(out, b'H', &body)
    }

    pub(super) fn read(input: &mut impl Read) -> io::Result<Self> {
        let (kind, body) = read_record(input, MAX_HELLO)?;
        let mut fields = Fields(&body);
        if kind != b'H' {
            return Err(malformed());
        }
        Ok(Self {
            job: u64::from_be_bytes(fields.array()?),
            rank: u32::from_be_bytes(fields.array()?),
            world: u32::from_be_bytes(fields.array()?),
            program: fields.text()?,
            settings: fields.text()?,
        })
    }
}

impl Frame {
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Welcome => write_record(out, b'W', &[]),
            Self::Refuse(why) => write_record(out, b'R', why.as_bytes()),
            Self::Part(bytes) => write_record(out, b'P', bytes),
            Self::Whole(parts) => {
                let mut body = Vec::new();
                for part in parts {
                    put(&mut body, part);
                }
                write_record(out, b'G', &body)
            }
            Self::Abort(rank, why) => {
                let mut body = rank.to_be_bytes().to_vec();
                body.extend(why.as_bytes());
                write_record(out, b'A', &body)
            }
            Self::Bye => write_record(out, b'B', &[]),
        }
    }

    pub(super) fn read(input: &mut impl Read) -> io::Result<Self> {
        let (kind, body) = read_record(input, MAX_LENGTH)?;
        let mut fields = Fields(&body);
        Ok(match kind {
            b'W' => Self::Welcome,
            b'R' => Self::Refuse(String::from_utf8_lossy(&body).into_owned()),
            b'P' => Self::Part(body),
            b'G' => {
                let mut parts = Vec::new();
                while !fields.0.is_empty() {
                    parts.push(fields.bytes()?.to_vec());
                }
                Self::Whole(parts)
            }
            b'A' => Self::Abort(u32::from_be_bytes(fields.array()?), String::from_utf8_lossy(fields.0).into_owned()),
            b'B' => Self::Bye,
            _ => return Err(malformed()),
        })
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message that makes no sense; are all ranks the same build?")
}

fn put(body: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    body.extend(length.to_be_bytes());
    body.extend(bytes);
}

fn write_record(out: &mut impl Write, kind: u8, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= MAX_LENGTH).ok_or_else(malformed)?;
    let mut record = vec![kind];
    record.extend(length.to_be_bytes());
    record.extend(body);
    out.write_all(&record)
}

fn read_record(input: &mut impl Read, most: usize) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    input.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let length = u32::from_be_bytes(length) as usize;
    if length > most {
        return Err(malformed());
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body)?;
    Ok((kind, body))
}

/// Reads fields off the front of a body.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, n: usize) -> io::Result<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(n).ok_or_else(malformed)?;
        self.0 = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| malformed())
    }

    fn bytes(&mut self) -> io::Result<&'a [u8]> {
        let length = u32::from_be_bytes(self.array()?) as usize;
        self.take(length)
    }

    fn text(&mut self) -> io::Result<String> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| malformed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_survives_the_wire() {
        let hello = Hello { job: 1 << 40, rank: 2, world: 3, program: "all_reduce".into(), settings: "min=8".into() };
        let mut wire = Vec::new();
        write_head(&mut wire).unwrap();
        hello.write(&mut wire).unwrap();
        let mut input = wire.as_slice();
        assert_eq!(read_head(&mut input).unwrap(), Head::Ours);
        assert_eq!(Hello::read(&mut input).unwrap(), hello);
        for frame in [
            Frame::Welcome,
            Frame::Refuse("no".into()),
            Frame::Part(vec![1, 2]),
            Frame::Whole(vec![vec![], vec![1], vec![2, 3]]),
            Frame::Abort(7, "died".into()),
            Frame::Bye,
        ] {
            let mut wire = Vec::new();
            frame.write(&mut wire).unwrap();
            assert_eq!(Frame::read(&mut wire.as_slice()).unwrap(), frame);
        }
    }

    #[test]
    fn rubbish_is_refused() {
        assert_eq!(read_head(&mut &b"GET / HTTP/1.1"[..]).unwrap(), Head::Foreign);
        let mut other = MAGIC.to_vec();
        other.extend(9u32.to_be_bytes());
        assert_eq!(read_head(&mut other.as_slice()).unwrap(), Head::OtherVersion(9));
        for wire in [&b"B\xff\xff\xff\xff"[..], b"?\0\0\0\0", b"G\0\0\0\x04\0\0\0\x09", b"A\0\0\0\x01x", b"B\0"] {
            assert!(Frame::read(&mut &*wire).is_err(), "{wire:?}");
        }
        assert!(Frame::Part(vec![0; MAX_LENGTH + 1]).write(&mut Vec::new()).is_err());
    }
}
