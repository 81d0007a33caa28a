//! One-sided operations: a write with immediate data, of which the receiver is notified, and
//! atomics on a counter that is shared. Both sides are in this process.

use std::error::Error;

use rdma::op::{self, Opcode};
use rdma::{ConnectOptions, DeviceSelector, InitOptions, QueuePair, RemoteAccess};

fn main() -> Result<(), Box<dyn Error>> {
    let opened = rdma::open(&DeviceSelector::from_env()?)?;
    let pd = opened.context.alloc_pd()?;
    let access = RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC;
    let init = InitOptions::new().port(opened.port).remote_access(access);

    // Each side has a completion queue of its own; the server's can be slept on.
    let (cq, served) = (opened.context.create_cq(32)?, opened.context.cq_builder(32).events().build()?);
    let client = QueuePair::builder(&pd).cq(&cq).build()?.init(&init)?;
    let mut server = QueuePair::builder(&pd).cq(&served).build()?.init(&init)?;
    // The notification takes a receive, but not its memory: the data goes to its place.
    server.post_recv(pd.allocate(1)?, 9)?;
    let (to_client, to_server) = (client.endpoint(), server.endpoint());
    let mut client = client.connect(&to_server, &ConnectOptions::new())?;
    let _server = server.connect(&to_client, &ConnectOptions::new())?;

    // What the client may access. Its bytes are copied out, because a peer may write at any time.
    let target = pd.allocate_exposed(4096, access)?;
    let (counter, place) = (target.remote(0..8)?, target.remote(64..128)?);

    let mut data = pd.allocate(64)?;
    data.fill(7);
    client.post_send(op::write_imm(data, place, 0xCAFE))?;
    let mut server_poller = served.poller();
    let done = server_poller.wait(None)?.expect("no time limit");
    done.status()?;
    assert_eq!((done.opcode(), done.imm(), done.byte_len()), (Opcode::RecvWriteImm, Some(0xCAFE), 64));
    let mut written = [0; 64];
    target.copy_out(64, &mut written)?;
    assert_eq!(written, [7; 64]);
    println!("64 bytes were written, with {:#x}", 0xCAFE);

    let mut poller = cq.poller();
    poller.wait(None)?.expect("no time limit").status()?;
    for addend in [5, 7] {
        client.post_send(op::fetch_add(pd.allocate(8)?, counter, addend))?;
        let done = poller.wait(None)?.expect("no time limit");
        done.status()?;
        println!("{addend} was added to {}", done.old_value().expect("of an atomic"));
    }
    client.post_send(op::compare_swap(pd.allocate(8)?, counter, 12, 100))?;
    let done = poller.wait(None)?.expect("no time limit");
    done.status()?;
    assert_eq!(done.old_value(), Some(12));
    println!("12 became 100");
    Ok(())
}
