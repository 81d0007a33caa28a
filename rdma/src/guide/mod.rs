//! The guide: from connections down to raw verbs, and how to choose, size, test and secure.
//!
//! | Page | What it answers |
//! | --- | --- |
//! | [`connections`] | steps 1 to 3: messages, one-sided access, futures |
//! | [`verbs`] | steps 4 to 6: completions by hand, connecting by hand, raw requests |
//! | [`operations`] | when to send, when to write, when to read |
//! | [`queues`] | how many slots, receives and buffers a program needs |
//! | [`asynchronous`] | executors, drivers, cancellation, shutdown |
//! | [`errors`] | what each failure means, and how the death of a peer shows |
//! | [`transports`] | what differs on InfiniBand, RoCE and iWARP |
//! | [`testing`] | how to test without a NIC, and how to test failures |
//! | [`coming_from_c`] | what each function of libibverbs and librdmacm is here |
//! | [`security`] | what an attacker can do, what this crate does, and TLS |
//!
//! The six steps are programs of two ends on the software device, one below the other: each step
//! does by hand what the one above it does for the program. Begin at step 1 and go down only for a
//! reason.
//!
//! | Step | The program handles | The crate handles |
//! | --- | --- | --- |
//! | 1, messages | requests and answers | buffers, flow control, keep-alive, closing |
//! | 2, one-sided access | which memory is open to the peer | completions, order of operations in flight |
//! | 3, futures | buffers, posted receives | completions, wake-ups |
//! | 4, completions | polling | connecting, states of the queue pair |
//! | 5, endpoints | the exchange of endpoints | memory safety of requests in flight |
//! | 6, raw verbs | all of it | types, and the tables of functions |

macro_rules! pages {
    ($($feature:literal $name:ident = $file:literal, $title:literal;)*) => {
        $(
            #[doc = $title]
            #[cfg_attr(feature = $feature, doc = include_str!($file))]
            #[cfg_attr(not(feature = $feature), doc = concat!("\n\nThis page is in docs built with the feature `", $feature, "`."))]
            pub mod $name {}
        )*
    };
}

pages! {
    "net" connections = "connections.md", "Steps 1 to 3: connections.\n\n";
    "soft" verbs = "verbs.md", "Steps 4 to 6: verbs.\n\n";
    "net" operations = "operations.md", "Choosing between send, write and read.\n\n";
    "net" queues = "queues.md", "Sizing queues and buffers.\n\n";
    "net" asynchronous = "asynchronous.md", "Executors, drivers, cancellation and shutdown.\n\n";
    "net" errors = "errors.md", "Errors, and the death of a peer.\n\n";
    "net" transports = "transports.md", "InfiniBand, RoCE and iWARP.\n\n";
    "soft" testing = "testing.md", "Testing without a NIC.\n\n";
    "soft" coming_from_c = "coming_from_c.md", "Coming from C.\n\n";
    "net" security = "security.md", "Security.\n\n";
}
