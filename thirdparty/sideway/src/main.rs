//! A ping-pong through the crate `sideway`.

use std::error::Error;

use thirdparty_sideway::{connect, open};

fn main() -> Result<(), Box<dyn Error>> {
    let (ping, pong) = connect(&open()?)?;
    Ok(pingpong::run(ping, pong)?)
}
