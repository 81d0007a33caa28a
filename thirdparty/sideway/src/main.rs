//! A ping-pong through the crate `sideway`.

use thirdparty_sideway::{Failure, connect, open};

fn main() -> Result<(), Failure> {
    let (ping, pong) = connect(&open()?)?;
    Ok(pingpong::run(ping, pong)?)
}
