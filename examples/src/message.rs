//! The messages of the services as bytes, by `serde` and `postcard`.

use serde::{Deserialize, Serialize};

use crate::Failure;

/// A message as bytes.
///
/// # Errors
/// None for the messages of this crate, whose parts all have a known length.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, Failure> {
    postcard::to_allocvec(message).map_err(|error| Failure::new(format!("cannot encode a message: {error}")))
}

/// The message that bytes are; `None` if they are malformed, or more than a message.
#[must_use]
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Message<'a> {
        Nothing,
        Bytes(u64, #[serde(with = "serde_bytes")] &'a [u8]),
    }

    #[test]
    fn whole_messages_are_decoded_and_others_are_not() {
        for message in [Message::Nothing, Message::Bytes(u64::MAX, b"bytes")] {
            let bytes = encode(&message).unwrap();
            assert_eq!(decode(&bytes), Some(message));
            for len in 0..bytes.len() {
                assert_eq!(decode::<Message<'_>>(&bytes[..len]), None, "{len} bytes");
            }
            let longer = [&bytes[..], b"more"].concat();
            assert_eq!(decode::<Message<'_>>(&longer), None);
        }
        for unknown in 0..=u8::MAX {
            let bytes = [unknown; 64];
            let message = decode::<Message<'_>>(&bytes);
            assert!(message.is_none_or(|message| matches!(message, Message::Bytes(..))), "{unknown}");
        }
    }
}
