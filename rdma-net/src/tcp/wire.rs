//! Frames of the TCP exchange.
//!
//! ```text
//! 0 magic u32 | 4 version u8 | 5 kind u8 | 6 length of the body u16 | 8 body
//!
//! REQUEST (1), ANSWER (2)   endpoint (32 bytes) | HELLO
//! REFUSE (3)                the REFUSE of the handshake
//! READY (4)                 nothing
//! ```

use rdma::Endpoint;

use crate::protocol::{Refuse, RefuseCode};

const MAGIC: [u8; 4] = *b"RDX1";
const VERSION: u8 = 1;
const HEADER_LEN: usize = 8;
/// Longest body in bytes: that of a REFUSE has 108 at most.
const MAX_BODY: usize = 128;
/// Longest frame in bytes.
pub(super) const MAX_FRAME: usize = HEADER_LEN + MAX_BODY;

/// The kinds of frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The connecting side's endpoint and HELLO.
    Request = 1,
    /// The listening side's endpoint and HELLO.
    Answer = 2,
    /// This side does not accept the other's frame.
    Refuse = 3,
    /// The connecting side has connected its queue pair.
    Ready = 4,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Request, Self::Answer, Self::Refuse, Self::Ready].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// A frame with its body.
pub(super) fn encode(kind: Kind, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
    let mut frame = MAGIC.to_vec();
    frame.extend([VERSION, kind as u8]);
    frame.extend(length.to_be_bytes());
    frame.extend(body);
    frame
}

/// Decodes the first frame of what a peer has sent. Returns its kind and the length of the whole
/// frame, or `None` while bytes are missing.
pub(super) fn decode(bytes: &[u8]) -> Result<Option<(Kind, usize)>, Refuse> {
    if !bytes.starts_with(&MAGIC[..bytes.len().min(MAGIC.len())]) {
        return Err(Refuse::new(RefuseCode::Version, "the bytes are no frame of a TCP exchange"));
    }
    let Some(&[_, _, _, _, version, kind, length_high, length_low]) = bytes.first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    if version != VERSION {
        return Err(Refuse::new(RefuseCode::Version, "this end speaks version 1 of the TCP exchange"));
    }
    let length = usize::from(u16::from_be_bytes([length_high, length_low]));
    let Some(kind) = Kind::from_byte(kind).filter(|_| length <= MAX_BODY) else {
        return Err(Refuse::new(RefuseCode::Limits, "the kind or the length of a frame is wrong"));
    };
    let end = HEADER_LEN + length;
    Ok((bytes.len() >= end).then_some((kind, end)))
}

/// The body of a whole frame.
pub(super) fn body(frame: &[u8]) -> &[u8] {
    frame.get(HEADER_LEN..).unwrap_or_default()
}

/// The body of a REQUEST or an ANSWER.
pub(crate) fn offer(endpoint: &Endpoint, hello: &[u8]) -> Vec<u8> {
    [&endpoint.to_bytes()[..], hello].concat()
}

/// The endpoint and the HELLO of a REQUEST or an ANSWER.
pub(crate) fn split_offer(body: &[u8]) -> Result<(Endpoint, &[u8]), Refuse> {
    let refuse = |text: String| Refuse::new(RefuseCode::Limits, text);
    let (endpoint, hello) =
        body.split_first_chunk::<{ Endpoint::LEN }>().ok_or_else(|| refuse("an endpoint is missing".into()))?;
    Ok((Endpoint::from_bytes(endpoint).map_err(|error| refuse(error.to_string()))?, hello))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_found_once_it_is_whole() {
        let frame = encode(Kind::Answer, b"body");
        for len in 0..frame.len() {
            assert_eq!(decode(&frame[..len]), Ok(None), "{len} bytes");
        }
        let more = [&frame[..], b"next"].concat();
        assert_eq!(decode(&more), Ok(Some((Kind::Answer, frame.len()))));
        assert_eq!(body(&frame), b"body");
    }

    #[test]
    fn a_wrong_byte_of_a_header_is_refused() {
        for (at, value, code) in [
            (0, 0, RefuseCode::Version),
            (3, b'2', RefuseCode::Version),
            (4, 2, RefuseCode::Version),
            (5, 0, RefuseCode::Limits),
            (5, 5, RefuseCode::Limits),
            (6, 1, RefuseCode::Limits),
            (7, 129, RefuseCode::Limits),
        ] {
            let mut frame = encode(Kind::Request, b"");
            frame[at] = value;
            assert_eq!(decode(&frame).unwrap_err().code, code, "byte {at} = {value}");
        }
    }

    #[test]
    fn a_short_or_impossible_endpoint_is_refused() {
        assert_eq!(split_offer(&[0; 31]).unwrap_err().code, RefuseCode::Limits);
        assert_eq!(split_offer(&[0; 64]).unwrap_err().code, RefuseCode::Limits);
    }
}
