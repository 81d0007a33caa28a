//! A driver in an epoll(7) of the program's own, beside other descriptors: one thread takes
//! datagrams by UDP, sends each as a message to a server, and returns the answer by UDP. The
//! example `hello` is the server.
//!
//! Everything runs in this process, on the software device, or the gateway has one of its own:
//!
//! ```text
//! cargo run --example gateway
//! cargo run --example hello -- --listen 192.0.2.1:7471
//! cargo run --example gateway -- --listen 0.0.0.0:9000 192.0.2.1:7471
//! ```

use std::collections::VecDeque;
use std::error::Error;
use std::io::ErrorKind::WouldBlock;
use std::net::{SocketAddr, UdpSocket};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rdma::DeviceSelector;
use rdma_net::{Driver, Failure, ListenOptions, Listener, Node, NodeOptions};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let soft0 = "soft0".parse()?;
            let (node, driver) = node(&soft0)?;
            thread::spawn(move || driver.run_blocking());
            let listener = node.listen("127.0.0.1:0".parse()?, &ListenOptions::new())?;
            let (server, udp) = (listener.local_addr(), UdpSocket::bind("127.0.0.1:0")?);
            thread::spawn(move || rdma::aio::block_on(serve(listener)));
            let gateway = udp.local_addr()?;
            thread::spawn(move || forward(&soft0, &udp, server).inspect_err(|error| eprintln!("gateway: {error}")));
            ask(gateway)
        }
        ["--listen", address, server] => {
            let udp = UdpSocket::bind(address)?;
            println!("listening at {}", udp.local_addr()?);
            forward(&DeviceSelector::from_env()?, &udp, server.parse()?)
        }
        _ => Err("usage: gateway [--listen ADDRESS:PORT SERVER:PORT]".into()),
    }
}

fn node(device: &DeviceSelector) -> Result<(Node, Driver)> {
    Ok(Node::new(&rdma::open(device)?.context, &NodeOptions::new())?)
}

/// The gateway's loop.
fn forward(device: &DeviceSelector, udp: &UdpSocket, server: SocketAddr) -> Result<()> {
    udp.set_nonblocking(true)?;
    let (node, mut driver) = node(device)?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(&driver, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    let sleep = || match epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::NONE) {
        Err(Errno::EINTR) => Ok(0),
        slept => slept,
    };
    // The loop polls everything in each turn, so no task needs to be woken.
    let mut cx = Context::from_waker(Waker::noop());

    let mut connecting = pin!(node.connect(server));
    let mut connection = loop {
        let may_sleep = driver.arm()?;
        if let Poll::Ready(connected) = connecting.as_mut().poll(&mut cx) {
            break connected?;
        }
        if may_sleep {
            sleep()?;
        }
    };
    epoll.add(udp, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
    // Those who wait for an answer: the server answers in order.
    let mut askers = VecDeque::new();
    let mut datagram = vec![0; 1 << 16];
    loop {
        let may_sleep = driver.arm()?;
        // A future that is dropped loses no message, and sends all of one or nothing.
        while let Poll::Ready(answer) = pin!(connection.next()).poll(&mut cx) {
            let answer = answer?.ok_or("the server has closed the connection")?;
            let _may_be_lost = udp.send_to(&answer, askers.pop_front().ok_or("an answer to nobody")?);
        }
        loop {
            let (len, asker) = match udp.recv_from(&mut datagram) {
                Ok(received) => received,
                Err(error) if error.kind() == WouldBlock => break,
                Err(error) => return Err(error.into()),
            };
            // What the server has no space for is lost, as datagrams may be.
            if let Poll::Ready(sent) = pin!(connection.send(&datagram[..len])).poll(&mut cx) {
                sent?;
                askers.push_back(asker);
            }
        }
        if may_sleep {
            sleep()?;
        }
    }
}

/// A server of one client.
async fn serve(mut listener: Listener) -> std::result::Result<(), Failure> {
    let mut connection = listener.accept().await?.accept().await?;
    while let Some(request) = connection.next().await? {
        connection.send(request.to_ascii_uppercase()).await?;
    }
    Ok(())
}

fn ask(gateway: SocketAddr) -> Result<()> {
    let udp = UdpSocket::bind("127.0.0.1:0")?;
    udp.set_read_timeout(Some(Duration::from_secs(60)))?;
    for request in ["one", "two", "three"] {
        udp.send_to(request.as_bytes(), gateway)?;
        let mut answer = [0; 2048];
        let len = udp.recv(&mut answer)?;
        println!("{}", answer[..len].escape_ascii());
    }
    Ok(())
}
