//! An echo server for many clients in one thread: completions, events of the connection manager and
//! events of the device wake one epoll(7). The example `echo` is its client.
//!
//! ```text
//! cargo run --example event_loop -- 0.0.0.0:7471
//! cargo run --example echo -- connect 192.0.2.1:7471
//! ```

use std::collections::HashMap;
use std::error::Error;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rdma::cm::{ConnOptions, ConnectRequest, EventChannel, EventKind, Id};
use rdma::op::{self, Opcode};
use rdma::transport::Rc;
use rdma::{CompletionQueue, DeviceSelector, Poller, ProtectionDomain, QueuePair, RemoteAccess};

const SIZE: usize = 64;
/// Completions of all clients; each has space for four.
const DEPTH: u32 = 1024;

/// What the descriptors of the loop stand for.
const COMPLETIONS: u64 = 0;
const CONNECTIONS: u64 = 1;
const DEVICE: u64 = 2;

/// The server: its clients by the numbers of their queue pairs.
struct Server {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    poller: Poller,
    clients: HashMap<u32, (Id<Rc>, QueuePair<Rc>)>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: event_loop ADDRESS:PORT")?;
    let context = rdma::open(&DeviceSelector::from_env()?)?.context;
    let channel = context.create_completion_channel()?;
    let cq = context.cq_builder(DEPTH).channel(&channel).build()?;
    let events = EventChannel::of(&context)?;
    let listener = events.create_id::<Rc>()?;
    listener.bind_addr(address.parse()?)?;
    listener.listen(128)?;
    println!("listening at {}", listener.local_addr().expect("it is bound"));

    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(&channel, EpollEvent::new(EpollFlags::EPOLLIN, COMPLETIONS))?;
    epoll.add(&events, EpollEvent::new(EpollFlags::EPOLLIN, CONNECTIONS))?;
    epoll.add(&context, EpollEvent::new(EpollFlags::EPOLLIN, DEVICE))?;
    let mut server = Server { pd: context.alloc_pd()?, poller: cq.poller(), cq, clients: HashMap::new() };
    server.cq.request_notify(false)?;
    loop {
        let mut ready = [EpollEvent::empty(); 16];
        let count = epoll.wait(&mut ready, EpollTimeout::NONE)?;
        for event in &ready[..count] {
            match event.data() {
                COMPLETIONS => {
                    while channel.try_next_event()?.is_some() {}
                    // Armed before it is polled: what comes after the poll wakes the loop again.
                    server.cq.request_notify(false)?;
                    server.complete()?;
                }
                CONNECTIONS => {
                    while let Some(event) = events.try_next_event()? {
                        match event.kind {
                            EventKind::ConnectRequest(request) => server.accept(request)?,
                            EventKind::Disconnected => server.leave(event.id)?,
                            _ => {}
                        }
                    }
                }
                _ => {
                    while let Some(event) = context.try_next_event()? {
                        println!("{:?}", event.kind);
                    }
                }
            }
        }
    }
}

impl Server {
    fn accept(&mut self, request: ConnectRequest<Rc>) -> Result<(), Box<dyn Error>> {
        let qp = QueuePair::builder(&self.pd).cq(&self.cq).max_send_wr(2).max_recv_wr(2).build()?;
        let mut qp = request.init(qp, RemoteAccess::empty())?;
        qp.post_recv(self.pd.allocate(SIZE)?, 0)?;
        // A client that has left meanwhile is no failure of the server.
        match request.accept(qp, &ConnOptions::new()) {
            Ok((id, qp)) => drop(self.clients.insert(qp.qpn(), (id, qp))),
            Err(failed) => eprintln!("a client: {}", failed.error),
        }
        Ok(())
    }

    fn leave(&mut self, key: rdma::cm::IdKey) -> Result<(), Box<dyn Error>> {
        let client = self.clients.iter().find(|(_, (id, _))| id.key() == key).map(|(qpn, _)| *qpn);
        if let Some((id, qp)) = client.and_then(|qpn| self.clients.remove(&qpn)) {
            id.disconnect(&qp)?;
        }
        Ok(())
    }

    /// Answers what has come.
    fn complete(&mut self) -> Result<(), Box<dyn Error>> {
        while let Some(mut done) = self.poller.poll()? {
            // A request of a client that has left is flushed; its buffer goes with it.
            let (Some((_, qp)), Ok(())) = (self.clients.get_mut(&done.qpn()), done.status()) else { continue };
            let buffer = done.take_buffer().expect("each request has a buffer");
            if done.opcode() == Opcode::Recv {
                let len = done.byte_len();
                qp.post_send(op::send(buffer.part(..len)))?;
            } else {
                qp.post_recv(buffer, 0)?;
            }
        }
        Ok(())
    }
}
