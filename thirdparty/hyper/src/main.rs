//! HTTP by hyper over the byte streams of `rdma_net`: a server and its clients in one process, by
//! the source that the guide of `rdma_net` shows.

#[path = "../../../rdma-net/src/guide/hyper.rs"]
mod guide;

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, Version};
use rdma_net::{ListenOptions, Node, NodeOptions};
use tokio::task::JoinSet;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Longest duration of the program.
const LIMIT: Duration = Duration::from_secs(30);
/// Bytes of a body: some need many fragments of the connection.
const LENGTHS: [usize; 4] = [0, 1, 5000, 1 << 20];
/// Requests at a time over HTTP/2.
const AT_A_TIME: usize = 40;

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
    let serving = tokio::spawn(guide::serve(listener));

    let mut requests = guide::by_http1(&node, address).await?;
    for len in LENGTHS {
        let answer = requests.send_request(request(len)?).await?;
        check(answer.version() == Version::HTTP_11, "another version than 1.1")?;
        check(answer.into_body().collect().await?.to_bytes() == body(len), "an answer with another body")?;
    }
    drop(requests);

    let requests = guide::by_http2(&node, address).await?;
    let mut asking = JoinSet::new();
    for number in 0..AT_A_TIME {
        let (mut requests, len) = (requests.clone(), LENGTHS[number % LENGTHS.len()]);
        asking.spawn(async move {
            let answer = requests.send_request(request(len)?).await?;
            check(answer.version() == Version::HTTP_2, "another version than 2")?;
            check(answer.into_body().collect().await?.to_bytes() == body(len), "an answer with another body")
        });
    }
    drop(requests);
    while let Some(answered) = asking.join_next().await {
        answered??;
    }
    println!("{} requests one by one, and {AT_A_TIME} at a time", LENGTHS.len());

    serving.abort();
    drop(node);
    // Ends once the connections have.
    driving.await??;
    Ok(())
}

fn request(len: usize) -> Result<Request<Full<Bytes>>, Failure> {
    Ok(Request::post("http://echo/").header("host", "echo").body(Full::new(body(len)))?)
}

fn body(len: usize) -> Bytes {
    (0..len).map(|index| (index % 251) as u8).collect()
}

fn check(is_right: bool, problem: &str) -> Result<(), Failure> {
    if is_right { Ok(()) } else { Err(problem.into()) }
}
