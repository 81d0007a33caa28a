// Hidden lines of examples: two connected queue pairs of `soft0`, whose driver runs on a thread.

use rdma::aio::{Driver, DriverOptions, Error, QueuePair, block_on};
use rdma::{ConnectOptions, InitOptions, ProtectionDomain, Rc};

struct Ends {
    pd: ProtectionDomain,
    a: QueuePair<Rc>,
    b: QueuePair<Rc>,
}

fn ends() -> Result<Ends, Box<dyn std::error::Error>> {
    let context = rdma::open(&"soft0".parse()?)?.context;
    let (mut driver, handle) = Driver::new(&context, &DriverOptions::new())?;
    std::thread::spawn(move || while driver.wait(None).is_ok() {});
    let pd = context.alloc_pd()?;
    let build = || pd.queue_pair().cq(handle.completion_queue()).max_inline_data(16).build();
    let (a, b) = (build()?.init(&InitOptions::new())?, build()?.init(&InitOptions::new())?);
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let a = handle.queue_pair(a.connect(&to_b, &ConnectOptions::new())?)?;
    let b = handle.queue_pair(b.connect(&to_a, &ConnectOptions::new())?)?;
    Ok(Ends { pd, a, b })
}
