//! The guide: connections, one-sided access, executors, errors and security.
//!
//! | Page | What it answers |
//! | --- | --- |
//! | [`connections`] | steps 1 to 3: messages, one-sided access, futures |
//! | [`sizes`] | windows, fragments and buffers: memory against speed |
//! | [`asynchronous`] | executors, drivers, cancellation, shutdown |
//! | [`tonic`], [`hyper`], [`codecs`] | gRPC, HTTP, and frames of a codec over byte streams |
//! | [`errors`] | what each failure means, and how the death of a peer shows |
//! | [`observing`] | counters and log events, and what to look at for which symptom |
//! | [`security`] | what an attacker can do, what the crates do, and TLS |
//!
//! The guide of verbs, [`rdma::guide`], goes on with steps 4 to 6, below connections. Its pages on
//! [operations](rdma::guide::operations), [transports](rdma::guide::transports) and
//! [testing](rdma::guide::testing) hold for connections too.
//!
//! The six steps are programs of two sides on the software device, one below the other: each step
//! does by hand what the one above it does for the program. Begin at step 1 and go down only for a
//! reason.
//!
//! | Step | The program handles | The crates handle |
//! | --- | --- | --- |
//! | 1, messages | requests and answers | buffers, flow control, keep-alive, closing |
//! | 2, one-sided access | which memory is open to the peer | completions, order of operations in flight |
//! | 3, futures | buffers, posted receives | completions, wake-ups |
//! | 4, completions | polling | connecting, states of the queue pair |
//! | 5, endpoints | the exchange of endpoints | memory safety of requests in flight |
//! | 6, raw verbs | all of it | types, and the tables of functions |

macro_rules! pages {
    ($($name:ident = $file:literal, $title:literal $(, $program:literal)?;)*) => {
        $(
            #[doc = $title]
            #[cfg_attr(feature = "soft", doc = include_str!($file))]
            #[cfg_attr(not(feature = "soft"), doc = "\n\nThis page is in docs built with the feature `soft`.")]
            // Source that a program of the workspace `thirdparty` compiles and runs.
            $(#[cfg_attr(feature = "soft", doc = concat!("```ignore\n", include_str!($program), "```"))])?
            pub mod $name {}
        )*
    };
}

pages! {
    connections = "connections.md", "Steps 1 to 3: connections.\n\n";
    sizes = "sizes.md", "Sizing windows and buffers.\n\n";
    asynchronous = "asynchronous.md", "Executors, drivers, cancellation and shutdown.\n\n";
    tonic = "tonic.md", "gRPC by tonic.\n\n", "tonic.rs";
    hyper = "hyper.md", "HTTP by hyper.\n\n", "hyper.rs";
    codecs = "codecs.md", "Frames by codecs of tokio-util.\n\n", "codecs.rs";
    errors = "errors.md", "Errors, and the death of a peer.\n\n";
    observing = "observing.md", "Observing.\n\n";
    security = "security.md", "Security.\n\n";
}
