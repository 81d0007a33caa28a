//! gRPC by tonic over the byte streams of `rdma_net`: a server and a client in one process. A call
//! with one answer, a call that fails, and messages in both directions at once. The transport is
//! the source that the guide of `rdma_net` shows.

#[path = "../../../rdma-net/src/guide/tonic.rs"]
mod guide;
mod service;

use std::time::Duration;

use rdma_net::{ListenOptions, Node, NodeOptions};
use service::{Echo, Note, answer};
use tokio::sync::oneshot;
use tonic::Code;
use tonic::transport::{Endpoint, Server};
use tower::service_fn;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Longest duration of the program.
const LIMIT: Duration = Duration::from_secs(30);
/// Messages of a stream.
const MESSAGES: u32 = 500;
/// Bytes of a text: some need many fragments of the connection.
const LENGTHS: [usize; 3] = [1, 5000, 1 << 20];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    tokio::time::timeout(LIMIT, run()).await?
}

async fn run() -> Result<(), Failure> {
    let context = rdma::open(&"soft0".parse()?)?.context;
    let (node, driver) = Node::new(&context, &NodeOptions::new())?;
    let driving = driver.spawn()?;
    let listener = node.listen("127.0.0.1:0".parse()?, &ListenOptions::new())?;
    let address = listener.local_addr();
    let (end, ended) = oneshot::channel::<()>();
    let ended = async { drop(ended.await) };
    let server = Server::builder().serve_with_incoming_shutdown(service_fn(answer), guide::incoming(listener), ended);
    let serving = tokio::spawn(server);

    // Several clients: the server accepts them beside one another.
    let endpoint = Endpoint::from_static("http://echo");
    let connect = || endpoint.connect_with_connector(guide::connector(node.clone(), address));
    let (first, second) = (connect().await?, connect().await?);
    tokio::try_join!(call(Echo::new(first)), call(Echo::new(second)))?;

    drop(end);
    serving.await??;
    drop(node);
    driving.await??;
    Ok(())
}

/// Calls the service, and compares its answers.
async fn call(mut echo: Echo) -> Result<(), Failure> {
    for length in LENGTHS {
        let note = Note { number: 7, text: "x".repeat(length) };
        check(echo.one(note.clone()).await? == note, "an answer with other contents")?;
    }
    let refused = echo.one(Note::default()).await.err().map(|status| status.code());
    check(refused == Some(Code::InvalidArgument), "an empty text that is not refused")?;

    let note = |number| Note { number, text: format!("message {number}") };
    let mut answers = echo.many(tokio_stream::iter((0..MESSAGES).map(note))).await?;
    for number in 0..MESSAGES {
        check(answers.message().await? == Some(note(number)), "an answer that is missing or out of order")?;
    }
    check(answers.message().await?.is_none(), "more answers than messages")?;
    println!("{} calls, and {MESSAGES} messages in both directions", LENGTHS.len() + 1);
    Ok(())
}

fn check(is_right: bool, problem: &str) -> Result<(), Failure> {
    if is_right { Ok(()) } else { Err(problem.into()) }
}
