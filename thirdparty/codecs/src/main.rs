//! Frames by a codec of tokio-util over the byte streams of `rdma_net`: a server and its client in
//! one process, by the source that the guide of `rdma_net` shows.

#[path = "../../../rdma-net/src/guide/codecs.rs"]
mod guide;

use std::time::Duration;

use futures_util::{SinkExt, StreamExt, TryStreamExt, stream};
use rdma_net::{ListenOptions, Node, NodeOptions};
use tokio_util::bytes::Bytes;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Longest duration of the program.
const LIMIT: Duration = Duration::from_secs(30);
/// Bytes of a frame: some need many fragments of the connection, and some share one.
const LENGTHS: [usize; 6] = [0, 1, 3, 5000, 70_000, 1 << 20];
/// Frames that are sent while answers come.
const FRAMES: usize = 60;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    tokio::time::timeout(LIMIT, run()).await?
}

async fn run() -> Result<(), Failure> {
    let context = rdma::open(&"soft0".parse()?)?.context;
    let (node, driver) = Node::new(&context, &NodeOptions::new())?;
    let driving = driver.spawn()?;
    let mut listener = node.listen("127.0.0.1:0".parse()?, &ListenOptions::new())?;
    let address = listener.local_addr();
    let serving = tokio::spawn(async move {
        for _ in 0..2 {
            guide::echo(listener.accept().await?.accept().await?.into_stream()).await?;
        }
        Ok::<_, Failure>(())
    });

    let mut frames = guide::frames(node.connect(address).await?.into_stream());
    for len in LENGTHS {
        check(guide::ask(&mut frames, frame(len)).await? == frame(len), "an answer with other bytes")?;
    }
    // Both directions at once.
    let (mut to, mut from) = frames.split();
    let lengths = LENGTHS.iter().copied().cycle().take(FRAMES);
    let sending = tokio::spawn({
        let lengths = lengths.clone();
        async move {
            to.send_all(&mut stream::iter(lengths).map(|len| Ok(frame(len)))).await?;
            to.close().await
        }
    });
    for len in lengths {
        check(from.try_next().await?.is_some_and(|answer| answer == frame(len)), "an answer with other bytes")?;
    }
    check(from.try_next().await?.is_none(), "more answers than frames")?;
    sending.await??;
    drop(from);

    // A frame beyond the limit.
    let mut stream = node.connect(address).await?.into_stream();
    tokio::io::AsyncWriteExt::write_all(&mut stream, &u32::MAX.to_be_bytes()).await?;
    check(serving.await?.is_err(), "a frame beyond the limit that is not refused")?;
    println!("{} frames one by one, and {FRAMES} in both directions", LENGTHS.len());

    drop((stream, node));
    // Ends once the connections have.
    driving.await??;
    Ok(())
}

fn frame(len: usize) -> Bytes {
    (0..len).map(|index| (index % 251) as u8).collect()
}

fn check(is_right: bool, problem: &str) -> Result<(), Failure> {
    if is_right { Ok(()) } else { Err(problem.into()) }
}
