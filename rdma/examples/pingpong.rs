//! A ping-pong between two processes, whose queue pairs are connected by an exchange over TCP.
//!
//! ```text
//! cargo run --example pingpong -- listen 0.0.0.0:18515
//! cargo run --example pingpong -- connect 192.0.2.1:18515
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use rdma::op::{self, Opcode};
use rdma::{ConnectOptions, DeviceSelector, Endpoint, InitOptions, QueuePair};

const SIZE: usize = 64;
const ROUNDS: u32 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (mut socket, is_client) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", address] => {
            let listener = TcpListener::bind(address)?;
            println!("listening at {}", listener.local_addr()?);
            (listener.accept()?.0, false)
        }
        ["connect", address] => (TcpStream::connect(address)?, true),
        _ => return Err("usage: pingpong listen ADDRESS:PORT | connect ADDRESS:PORT".into()),
    };

    // RDMA_DEVICE chooses the device.
    let opened = rdma::open(&DeviceSelector::from_env()?)?;
    let pd = opened.context.alloc_pd()?;
    let cq = opened.context.create_cq(32)?;
    let mut qp = QueuePair::builder(&pd).cq(&cq).build()?.init(&InitOptions::new().port(opened.port))?;
    // One receive more than the peer has messages in flight.
    for _ in 0..2 {
        qp.post_recv(pd.allocate(SIZE)?, 0)?;
    }

    socket.write_all(&qp.endpoint().to_bytes())?;
    let mut peer = [0; Endpoint::LEN];
    socket.read_exact(&mut peer)?;
    let mut qp = qp.connect(&Endpoint::from_bytes(&peer)?, &ConnectOptions::new())?;
    // Nobody sends before both queue pairs are connected.
    socket.write_all(b"!")?;
    socket.read_exact(&mut [0])?;

    let begin = Instant::now();
    let mut poller = cq.poller();
    let (mut sent, mut received) = (0, 0);
    let mut message = Some(pd.allocate(SIZE)?);
    while sent < ROUNDS || received < ROUNDS || message.is_none() {
        // The client sends first; then each message answers one.
        let may_send = sent < received + u32::from(is_client) && sent < ROUNDS;
        if let Some(buffer) = message.take_if(|_| may_send) {
            qp.post_send(op::send(buffer))?;
            sent += 1;
        }
        let Some(mut done) = poller.poll()? else { continue };
        done.status()?;
        let buffer = done.take_buffer().expect("each request has a buffer");
        if done.opcode() == Opcode::Recv {
            received += 1;
            qp.post_recv(buffer, 0)?;
        } else {
            message = Some(buffer);
        }
    }
    println!("{:.2} us one way", begin.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS) / 2.0);
    Ok(())
}
