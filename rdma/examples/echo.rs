//! Connections by the connection manager: an echo server with a thread for each client, and a
//! client.
//!
//! ```text
//! cargo run --example echo -- listen 0.0.0.0:7471
//! cargo run --example echo -- connect 192.0.2.1:7471
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use rdma::cm::ConnOptions;
use rdma::cm::blocking::{self, IncomingConnection, ListenOptions, Listener};
use rdma::op::{self, Opcode};
use rdma::transport::Rc;
use rdma::{Context, DeviceSelector, QueuePair};

const SIZE: usize = 64;
/// Time to set a connection up, and for an answer.
const LIMIT: Duration = Duration::from_secs(10);
/// Time after which a server looks whether its client has left.
const LOOK: Duration = Duration::from_millis(100);

fn main() -> Result<(), Box<dyn Error>> {
    let context = rdma::open(&DeviceSelector::from_env()?)?.context;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", address] => serve(&context, address.parse()?),
        ["connect", address] => ask(&context, address.parse()?),
        _ => Err("usage: echo listen ADDRESS:PORT | connect ADDRESS:PORT".into()),
    }
}

fn serve(context: &Context, address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind(context, address, &ListenOptions::new().backlog(128))?;
    println!("listening at {}", listener.local_addr());
    loop {
        let request = listener.next_request(None)?.expect("no time limit");
        let context = context.clone();
        thread::spawn(move || {
            if let Err(error) = serve_client(&context, request) {
                eprintln!("a client: {error}");
            }
        });
    }
}

fn serve_client(context: &Context, request: IncomingConnection<Rc>) -> Result<(), Box<dyn Error>> {
    let name = String::from_utf8_lossy(request.private_data()).into_owned();
    let (pd, cq) = (context.alloc_pd()?, context.cq_builder(32).events().build()?);
    let mut qp = request.init(QueuePair::builder(&pd).cq(&cq).build()?)?;
    qp.post_recv(pd.allocate(SIZE)?, 0)?;
    let (connection, mut qp) = request.accept(qp, &ConnOptions::new(), LIMIT)?;
    println!("{name} has come");
    let mut poller = cq.poller();
    while !connection.wait_disconnected(Some(Duration::ZERO))? {
        let Some(mut done) = poller.wait(Some(LOOK))? else { continue };
        done.status()?;
        let buffer = done.take_buffer().expect("each request has a buffer");
        if done.opcode() == Opcode::Recv {
            let len = done.byte_len();
            qp.post_send(op::send(buffer.part(..len)))?;
        } else {
            qp.post_recv(buffer, 0)?;
        }
    }
    connection.disconnect(&qp)?;
    println!("{name} has left");
    Ok(())
}

fn ask(context: &Context, server: SocketAddr) -> Result<(), Box<dyn Error>> {
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(32)?);
    let route = blocking::resolve::<Rc>(context, None, server, LIMIT)?;
    let mut qp = route.init(QueuePair::builder(&pd).cq(&cq).build()?)?;
    qp.post_recv(pd.allocate(SIZE)?, 0)?;
    let options = ConnOptions::new().private_data(b"a client");
    let (connection, mut qp) = route.connect(qp, &options, LIMIT)?;
    let mut message = pd.allocate(5)?;
    message.copy_from_slice(b"hello");
    qp.post_send(op::send(message))?;
    let mut poller = cq.poller();
    // The send's completion and the answer.
    for _ in 0..2 {
        let mut done = poller.wait(Some(LIMIT))?.ok_or("no answer has come")?;
        done.status()?;
        if let Some(message) = done.received() {
            println!("{}", String::from_utf8_lossy(&message));
        }
    }
    connection.disconnect(&qp)?;
    Ok(())
}
