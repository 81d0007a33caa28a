//! Frames by a codec of tokio-util over `rdma_net`.

use std::io;

use futures_util::{SinkExt, StreamExt, TryStreamExt};
use rdma_net::Stream;
use tokio_util::bytes::{Bytes, BytesMut};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

/// Frames: a length of 4 bytes, and as many bytes.
pub(crate) type Frames = Framed<Stream, LengthDelimitedCodec>;

pub(crate) fn frames(stream: Stream) -> Frames {
    // A peer cannot make this side keep more than a frame.
    LengthDelimitedCodec::builder().max_frame_length(1 << 20).new_framed(stream)
}

/// Sends each frame back, until the peer ends its data.
pub(crate) async fn echo(stream: Stream) -> io::Result<()> {
    let (to, from) = frames(stream).split();
    from.map_ok(BytesMut::freeze).forward(to).await
}

/// Asks by a frame, and waits for the next one.
pub(crate) async fn ask(frames: &mut Frames, request: Bytes) -> io::Result<BytesMut> {
    frames.send(request).await?;
    frames.try_next().await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
