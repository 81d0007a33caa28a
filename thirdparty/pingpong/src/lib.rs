//! Messages between two connected queue pairs of one process, through any crate's interface.

use std::io;

/// Bytes of a message.
pub const LEN: usize = 64;

/// Round trips of [`run`].
const ROUND_TRIPS: u8 = 200;

/// One side of a reliable connection, with a buffer for each direction.
pub trait End {
    /// Posts a receive at the other side and a send at this one, and polls until both have
    /// completed.
    ///
    /// # Errors
    ///
    /// The crate's error, or a completion without success. The connection cannot be used any more.
    fn send(&mut self, to: &mut Self) -> io::Result<()>;

    /// The message to be sent.
    fn outgoing(&mut self) -> &mut [u8];

    /// The message that was received last.
    fn incoming(&self) -> &[u8];
}

/// Sends messages there and back, and compares what arrives.
///
/// # Errors
///
/// The error of a side, or a message that arrived with other contents.
pub fn run<E: End>(mut ping: E, mut pong: E) -> io::Result<()> {
    for number in 0..ROUND_TRIPS {
        check(&mut ping, &mut pong, number)?;
        check(&mut pong, &mut ping, !number)?;
    }
    println!("{ROUND_TRIPS} round trips of {LEN} bytes");
    Ok(())
}

/// Sends a message of equal bytes.
fn check<E: End>(from: &mut E, to: &mut E, byte: u8) -> io::Result<()> {
    from.outgoing().fill(byte);
    from.send(to)?;
    let arrived = to.incoming();
    if arrived == [byte; LEN] { Ok(()) } else { Err(io::Error::other(format!("{byte} was sent, {arrived:?} arrived"))) }
}
