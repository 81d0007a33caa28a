// Hidden lines of examples: as `net.rs`, and the nodes take notifications.

use rdma::aio::block_on;
use rdma_net::{Connection, Failure, ListenOptions, Listener, Node, NodeOptions};

fn node() -> Result<Node, Box<dyn std::error::Error>> {
    let context = rdma::open(&"soft0".parse()?)?.context;
    let (node, driver) = Node::new(&context, &NodeOptions::new().notifications(64))?;
    std::thread::spawn(move || driver.run_blocking());
    Ok(node)
}

fn listener() -> Result<Listener, Box<dyn std::error::Error>> {
    Ok(node()?.listen("127.0.0.1:0".parse()?, &ListenOptions::new())?)
}

/// Both sides of a connection, the connecting one first.
fn connected() -> Result<(Connection, Connection), Box<dyn std::error::Error>> {
    let mut listener = listener()?;
    let (node, address) = (node()?, listener.local_addr());
    let connecting = std::thread::spawn(move || block_on(node.connect(address)));
    let accepted = block_on(async { listener.accept().await?.accept().await })?;
    Ok((connecting.join().expect("no panic")?, accepted))
}
