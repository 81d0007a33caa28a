//! The shortest server of datagrams: queue pairs that share their receives answer whatever comes.
//! Clients are those of [datagrams.rs](datagrams.rs).
//!
//! ```text
//! cargo run --example datagram_server -- 0.0.0.0:18516
//! cargo run --example datagrams -- connect 192.0.2.1:18516
//! ```

use std::io::Write;

use rdma::{AddressCache, DatagramOptions, DeviceSelector, Grh, QueuePair, SharedReceiveQueue, op};

const QKEY: u32 = 0x1122_3344;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let opened = rdma::open(&DeviceSelector::from_env()?)?;
    let pd = opened.context.alloc_pd()?;
    let cq = opened.context.cq_builder(4096).events().build()?;
    let mut srq = SharedReceiveQueue::datagram(&pd).max_wr(1024).build()?;
    let options = DatagramOptions::new(QKEY).port(opened.port);
    let build = || QueuePair::datagram(&pd).cq(&cq).shared_receives(&srq).max_send_wr(256).max_inline_data(64).build();
    let mut qps = (0..4).map(|_| Ok(build()?.init(&options)?.ready()?)).collect::<rdma::Result<Vec<_>>>()?;
    let len = Grh::LEN + qps[0].max_message();
    let mut memory = pd.allocate(1024 * len)?;
    for _ in 0..1024 {
        srq.post_recv(memory.split_to(len), 0)?;
    }

    let listener = std::net::TcpListener::bind(std::env::args().nth(1).ok_or("no address")?)?;
    println!("listening at {}", listener.local_addr()?);
    let endpoints = qps.iter().map(QueuePair::endpoint).collect::<Result<Vec<_>, _>>()?;
    std::thread::spawn(move || {
        let clients = listener.incoming().zip(endpoints.iter().cycle());
        clients.for_each(|(client, to)| drop(client.and_then(|mut client| client.write_all(&to.to_bytes()))));
    });

    let mut clients = AddressCache::new(256);
    let mut poller = cq.poller();
    loop {
        let mut done = poller.wait(None)?.expect("no limit");
        done.status()?;
        let qpn = done.qpn();
        let Some(datagram) = done.take_datagram() else { continue };
        let source = *datagram.source();
        let qp = qps.iter_mut().find(|qp| qp.qpn() == qpn).expect("ours");
        let back = clients.answer(&*qp, &source)?;
        qp.post_send(op::send_inline(&datagram[..64.min(datagram.len())]).to(back, source.qpn, QKEY))?;
        srq.post_recv(datagram.into_buffer(), 0)?;
    }
}
