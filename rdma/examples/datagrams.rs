//! A server that answers datagrams, with queue pairs that share their receives, and its client.
//!
//! ```text
//! cargo run --example datagrams -- listen 0.0.0.0:18516
//! cargo run --example datagrams -- connect 192.0.2.1:18516
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rdma::op;
use rdma::{AddressCache, DatagramEndpoint, DatagramOptions, DeviceSelector, Grh, QueuePair, SharedReceiveQueue};

/// The key of the queue pairs: a queue pair drops datagrams that name another key.
const QKEY: u32 = 0x1122_3344;
const MESSAGES: u8 = 100;
const LONG: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", address] => serve(TcpListener::bind(address)?),
        ["connect", address] => ask(TcpStream::connect(address)?),
        _ => Err("usage: datagrams listen ADDRESS:PORT | connect ADDRESS:PORT".into()),
    }
}

/// Tells each client one of four queue pairs, and answers what comes to any of them.
fn serve(listener: TcpListener) -> Result<(), Box<dyn Error>> {
    let opened = rdma::open(&DeviceSelector::from_env()?)?;
    let pd = opened.context.alloc_pd()?;
    let cq = opened.context.cq_builder(2048).events().build()?;
    let mut receives = SharedReceiveQueue::datagram(&pd).max_wr(256).build()?;
    let mut qps = Vec::new();
    for _ in 0..4 {
        let qp = QueuePair::datagram(&pd).cq(&cq).shared_receives(&receives).max_inline_data(64).build()?;
        qps.push(qp.init(&DatagramOptions::new(QKEY).port(opened.port))?.ready()?);
    }
    // The header of the network comes in front of each datagram.
    let room = Grh::LEN + qps[0].max_message();
    let mut memory = pd.allocate(256 * room)?;
    for _ in 0..4 {
        let mut batch = receives.batch();
        for _ in 0..64 {
            batch.push(memory.split_to(room), 0)?;
        }
        // With one doorbell.
        batch.submit().map_err(|error| error.error())?;
    }

    println!("listening at {}", listener.local_addr()?);
    let endpoints = qps.iter().map(QueuePair::endpoint).collect::<Result<Vec<_>, _>>()?;
    std::thread::spawn(move || {
        for (client, endpoint) in listener.incoming().zip(endpoints.iter().cycle()) {
            // A client that has left needs no address.
            let _gone = client.and_then(|mut client| client.write_all(&endpoint.to_bytes()));
        }
    });

    // A new address handle is a system call on most devices.
    let mut clients = AddressCache::new(256);
    let mut poller = cq.poller();
    loop {
        let mut done = poller.wait(None)?.expect("no time limit");
        let qpn = done.qpn();
        if let Err(error) = done.status() {
            eprintln!("queue pair {qpn}: {error}");
        }
        // The completion of an answer has none.
        let Some(datagram) = done.take_datagram() else { continue };
        let source = *datagram.source();
        let qp = qps.iter_mut().find(|qp| qp.qpn() == qpn).expect("one of ours");
        // What fails for one client does not end the service: its datagram is dropped.
        if let Ok(back) = clients.answer(&*qp, &source) {
            let answer = &datagram[..datagram.len().min(64)];
            let _refused = qp.post_send(op::send_inline(answer).to(back, source.qpn, QKEY));
        }
        receives.post_recv(datagram.into_buffer(), 0)?;
    }
}

/// Sends messages one by one, and waits for each answer. Datagrams may be lost on a network.
fn ask(mut server: TcpStream) -> Result<(), Box<dyn Error>> {
    let opened = rdma::open(&DeviceSelector::from_env()?)?;
    let pd = opened.context.alloc_pd()?;
    let cq = opened.context.create_cq(32)?;
    let qp = QueuePair::datagram(&pd).cq(&cq).max_inline_data(64).build()?;
    let mut qp = qp.init(&DatagramOptions::new(QKEY).port(opened.port))?.ready()?;

    let mut bytes = [0; DatagramEndpoint::LEN];
    server.read_exact(&mut bytes)?;
    let peer = DatagramEndpoint::from_bytes(&bytes)?;
    let address = qp.address_of(&peer)?;
    let mut poller = cq.poller();
    let mut room = Some(pd.allocate(Grh::LEN + 64)?);
    let mut answered = 0;
    for number in 0..MESSAGES {
        if let Some(buffer) = room.take() {
            qp.post_recv(buffer, 0)?;
        }
        qp.post_send(op::send_inline(&[number]).to(&address, peer.qpn, QKEY))?;
        // The send's completion and the answer come in any order.
        for _ in 0..2 {
            let Some(mut done) = poller.wait(Some(LONG))? else { break };
            done.status()?;
            if let Some(datagram) = done.take_datagram() {
                answered += u32::from(datagram[..] == [number]);
                room = Some(datagram.into_buffer());
            }
        }
    }
    println!("{answered} of {MESSAGES} messages were answered");
    Ok(())
}
