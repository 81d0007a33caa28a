// Hidden lines of examples: two connected queue pairs of `soft0`, with what they share.

use rdma::{CompletionQueue, ConnectOptions, InitOptions, Poller, ProtectionDomain, QueuePair, Rc};

struct Pair {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    poller: Poller,
    a: QueuePair<Rc>,
    b: QueuePair<Rc>,
}

fn pair() -> Result<Pair, Box<dyn std::error::Error>> {
    let context = rdma::open(&"soft0".parse()?)?.context;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(256)?);
    let build = || pd.queue_pair().cq(&cq).max_inline_data(16).build();
    let (a, b) = (build()?.init(&InitOptions::new())?, build()?.init(&InitOptions::new())?);
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(&to_b, &ConnectOptions::new())?, b.connect(&to_a, &ConnectOptions::new())?);
    let poller = cq.poller();
    Ok(Pair { pd, cq, poller, a, b })
}
