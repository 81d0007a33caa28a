//! Memory that the program already has: a vector of numbers, a slice of the stack, a table that is
//! only read. Both sides are in this process.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rdma::op;
use rdma::{ConnectOptions, DeviceSelector, InitOptions, QueuePair, RemoteAccess};

const LIMIT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let opened = rdma::open(&DeviceSelector::from_env()?)?;
    let pd = opened.context.alloc_pd()?;
    let init = InitOptions::new().port(opened.port).remote_access(RemoteAccess::READ);
    let (cq, served) = (opened.context.create_cq(32)?, opened.context.create_cq(32)?);
    let client = QueuePair::builder(&pd).cq(&cq).build()?.init(&init)?;
    let server = QueuePair::builder(&pd).cq(&served).build()?.init(&init)?;
    let (to_client, to_server) = (client.endpoint(), server.endpoint());
    let mut client = client.connect(&to_server, &ConnectOptions::new())?;
    let mut server = server.connect(&to_client, &ConnectOptions::new())?;
    let (mut poller, mut server_poller) = (cq.poller(), served.poller());

    // Numbers are given away, sent, and come back as the vector that they were.
    let numbers: Vec<f32> = (0_u8..100).map(f32::from).collect();
    server.post_recv(pd.register(vec![0_f32; 100])?, 0)?;
    client.post_send(op::send(pd.register(numbers)?))?;
    let mut sent = poller.wait(Some(LIMIT))?.ok_or("no completion")?;
    sent.status()?;
    let numbers: Vec<f32> = sent.take_buffer().ok_or("the message")?.deregister()?;
    let mut received = server_poller.wait(Some(LIMIT))?.ok_or("no completion")?;
    received.status()?;
    let sink = received.take_buffer().ok_or("the sink")?;
    println!("the sum of {} numbers is {}", numbers.len(), sink.elements::<f32>()?.iter().sum::<f32>());

    // A table that nobody changes: the peer reads it, and so does the program, at the same time.
    let table: Arc<[u64]> = (0..1000).map(|number| number * number).collect();
    let source = pd.register_source(Arc::clone(&table), RemoteAccess::READ)?;
    let remote = source.remote(12 * 8..13 * 8)?;

    // The result of the read goes straight into a variable.
    let mut square = [0_u64];
    pd.register_scoped(&mut square, |memory| {
        let lent = memory.lend_mut(..);
        client.scope(&mut poller, LIMIT, |scope| {
            scope.post_send(op::read(lent, remote)).map_err(|refused| refused.error())
        })
    })???;
    assert_eq!(square[0], table[12]);
    println!("the square of 12 is {}", square[0]);

    // The numbers again, as a source: without a copy, in two requests at a time.
    let numbers = pd.register_source(numbers, RemoteAccess::empty())?;
    for half in [0..200, 200..400] {
        server.post_recv(pd.allocate(200)?, 0)?;
        client.post_send(op::send(numbers.slice(half)?))?;
    }
    for _ in 0..2 {
        let mut received = server_poller.wait(Some(LIMIT))?.ok_or("no completion")?;
        received.status()?;
        let half = received.take_buffer().ok_or("the sink")?;
        println!("a half begins with {}", half.elements::<f32>()?[0]);
    }
    Ok(())
}
