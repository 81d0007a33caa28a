//! Message contents that differ between messages, and between the places of a message.

/// Fills `bytes` with the contents of message `number`.
pub(crate) fn fill(bytes: &mut [u8], number: u64) {
    let mut value = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in bytes.chunks_mut(8) {
        value = value.wrapping_add(0x2545_f491_4f6c_dd1d);
        chunk.copy_from_slice(&value.to_le_bytes()[..chunk.len()]);
    }
    // A receiver that watches memory waits for the last byte.
    if let Some(last) = bytes.last_mut() {
        *last = last_byte(number);
    }
}

/// The last byte of a message: differs between consecutive messages, and is never 0 as in fresh
/// memory.
pub(super) fn last_byte(number: u64) -> u8 {
    u8::try_from(number % 255).unwrap_or(0) + 1
}

/// Whether `bytes` are the contents of message `number`.
pub(crate) fn is_intact(bytes: &[u8], number: u64) -> bool {
    let mut expected = vec![0; bytes.len()];
    fill(&mut expected, number);
    expected == bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_tell_messages_and_places_apart() {
        let mut bytes = vec![0; 100];
        for number in [0, 1, 254, 255, 1 << 40] {
            fill(&mut bytes, number);
            assert!(is_intact(&bytes, number));
            assert!(!is_intact(&bytes, number + 1));
            bytes.swap(3, 11);
            assert!(!is_intact(&bytes, number));
            assert_ne!(last_byte(number), last_byte(number + 1));
            assert_ne!(last_byte(number), 0);
        }
    }
}
