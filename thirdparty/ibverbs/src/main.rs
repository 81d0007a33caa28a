//! A ping-pong through the crate `ibverbs`.

use std::io;

use thirdparty_ibverbs::{Objects, connect, open};

fn main() -> io::Result<()> {
    let context = open()?;
    let (one, other) = (Objects::new(&context)?, Objects::new(&context)?);
    let (ping, pong) = connect(&one, &other)?;
    pingpong::run(ping, pong)
}
