//! The shortest program with one-sided operations: a write whose immediate data notifies the peer,
//! and atomics on a counter. [atomics.rs](atomics.rs) explains the steps.

use rdma::op::{self, Opcode};
use rdma::{ConnectOptions, DeviceSelector, InitOptions, QueuePair, RemoteAccess};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let opened = rdma::open(&DeviceSelector::from_env()?)?;
    let pd = opened.context.alloc_pd()?;
    let (cq, served) = (opened.context.create_cq(32)?, opened.context.cq_builder(32).events().build()?);
    let access = RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC;
    let init = InitOptions::new().port(opened.port).remote_access(access);
    let a = QueuePair::builder(&pd).cq(&cq).build()?.init(&init)?;
    let mut b = QueuePair::builder(&pd).cq(&served).build()?.init(&init)?;
    // The receive of a notification needs no memory.
    b.post_recv((), 9)?;
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let mut a = a.connect(&to_b, &ConnectOptions::new())?;
    let _b = b.connect(&to_a, &ConnectOptions::new())?;
    let target = pd.allocate_exposed(4096, access)?;

    let mut data = pd.allocate(64)?;
    data.fill(7);
    a.post_send(op::write_imm(data, target.remote(64..128)?, 0xCAFE))?;
    let mut server = served.poller();
    let done = server.wait(None)?.expect("no limit");
    done.status()?;
    assert_eq!((done.opcode(), done.imm(), done.byte_len()), (Opcode::RecvWriteImm, Some(0xCAFE), 64));
    let mut poller = cq.poller();
    poller.wait(None)?.expect("no limit").status()?;

    a.post_send(op::fetch_add(pd.allocate(8)?, target.remote(0..8)?, 5))?;
    assert_eq!(poller.wait(None)?.expect("no limit").old_value(), Some(0));
    a.post_send(op::compare_swap(pd.allocate(8)?, target.remote(0..8)?, 5, 9))?;
    assert_eq!(poller.wait(None)?.expect("no limit").old_value(), Some(5));
    println!("64 bytes were written, and 5 became 9");
    Ok(())
}
