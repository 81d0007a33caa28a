// Hidden lines of examples: two connected queue pairs of `soft0`, whose driver runs on a thread.

use rdma::aio::{Driver, DriverOptions, Error, QueuePair, block_on};
use rdma::{InitOptions, ProtectionDomain};
use rdma::transport::Rc;

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
    let build = || rdma::QueuePair::builder(&pd).cq(handle.completion_queue()).max_inline_data(16).build();
    let init = || -> rdma::Result<_> { Ok(build()?.init(&InitOptions::new())?) };
    let (a, b) = rdma_testkit::join(init()?, init()?)?;
    Ok(Ends { pd, a: handle.queue_pair(a)?, b: handle.queue_pair(b)? })
}
