//! The guide: verbs step by step, and how to choose, size and test.
//!
//! | Page | What it answers |
//! | --- | --- |
//! | [`verbs`] | steps 4 to 6: completions by hand, connecting by hand, raw requests |
//! | [`operations`] | when to send, when to write, when to read |
//! | [`queues`] | how many slots, receives and buffers a program needs |
//! | [`threads`] | how threads and tasks share a queue pair, and how many requests go by one doorbell |
//! | [`memory`] | how to register memory that a program already has |
//! | [`transports`] | what differs on InfiniBand, RoCE and iWARP |
//! | [`priorities`] | which traffic class connections take on a lossless network, and how to check it |
//! | [`observing`] | counters and log events, and what to look at for which symptom |
//! | [`between_hosts`] | how soft0 reaches other hosts, containers and users over TCP |
//! | [`testing`] | how to test without a NIC, and how to test failures |
//! | [`your_ci`] | how to run them in hosted jobs, containers and images |
//! | [`foreign`] | how to use objects that C code or another library has made |
//! | [`event_loop`] | RDMA in an event loop of the program's own |
//! | [`coming_from_c`] | what each function of libibverbs and librdmacm is here |
//! | [`coming_from_crates`] | what the names of `ibverbs`, `sideway` and `async-rdma` are here |
//!
//! Steps 1 to 3 are in the guide of `rdma_net`, the crate above this one: messages, one-sided
//! access and futures. Its pages on executors, errors and security hold for verbs too.

#[cfg(test)]
mod tests;

macro_rules! pages {
    ($($name:ident = $file:literal $(and $async:literal)?, $title:literal;)*) => {
        $(
            #[doc = $title]
            #[cfg_attr(feature = "soft", doc = include_str!($file))]
            $(#[cfg_attr(all(feature = "soft", feature = "aio"), doc = include_str!($async))])?
            #[cfg_attr(not(feature = "soft"), doc = "\n\nThis page is in docs built with the feature `soft`.")]
            pub mod $name {}
        )*
    };
}

pages! {
    verbs = "verbs.md", "Steps 4 to 6: verbs.\n\n";
    operations = "operations.md", "Choosing between send, write and read.\n\n";
    queues = "queues.md", "Sizing queues and buffers.\n\n";
    threads = "threads.md" and "tasks.md", "Threads, tasks and chains.\n\n";
    memory = "memory.md", "Memory that you already have.\n\n";
    transports = "transports.md", "InfiniBand, RoCE and iWARP.\n\n";
    priorities = "priorities.md", "Priorities on a lossless network.\n\n";
    observing = "observing.md", "Observing.\n\n";
    between_hosts = "between_hosts.md", "Between hosts.\n\n";
    testing = "testing.md", "Testing without a NIC.\n\n";
    your_ci = "your_ci.md", "Your CI.\n\n";
    foreign = "foreign.md", "Objects of other libraries.\n\n";
    event_loop = "event_loop.md", "Your event loop.\n\n";
    coming_from_c = "coming_from_c.md", "Coming from C.\n\n";
    coming_from_crates = "coming_from_crates.md", "Coming from other crates.\n\n";
}
