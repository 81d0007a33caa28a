//! Byte streams.

use super::*;

/// Reads until the end of the stream.
async fn read_all(stream: &mut Stream) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), [0; 777]);
    while let len @ 1.. = stream.read(&mut part).await.unwrap() {
        all.extend_from_slice(&part[..len]);
    }
    all
}

#[test]
fn a_stream_carries_bytes_both_ways_at_once() {
    let mut world = World::new(&options());
    let (client, server) = world.pair();
    let ends = [client, server].map(|connection| {
        thread::spawn(move || {
            let mut stream = connection.into_stream();
            block_on(async {
                // As many bytes as the receives of the peer take: nobody reads yet.
                stream.write_all(&bytes(1500)).await.unwrap();
                assert_eq!(stream.write(&[]).await.unwrap(), 0);
                stream.write_all(b"end").await.unwrap();
                stream.finish();
                assert!(stream.write(b"more").await.is_err(), "after the end");
                assert!(read_all(&mut stream).await == [&bytes(1500)[..], b"end"].concat());
                assert_eq!(stream.read(&mut [0; 9]).await.unwrap(), 0, "the end stays");
            });
        })
    });
    for end in ends {
        end.join().unwrap();
    }
    world.end();
}

#[test]
fn a_long_write_takes_one_message_and_waits_for_a_slow_reader() {
    let mut world = World::new(&options().max_message(200_000));
    let (client, server) = world.pair();
    let (mut to, mut from) = (client.into_stream(), server.into_stream());
    let sent = bytes(1_000_000);
    let sender = thread::spawn({
        let sent = sent.clone();
        move || {
            block_on(async {
                assert_eq!(to.write(&sent[..100_000]).await.unwrap(), 100_000);
                assert_eq!(to.write(&sent[100_000..]).await.unwrap(), 128 << 10);
                to.write_all(&sent[100_000 + (128 << 10)..]).await.unwrap();
                to.write_all(b"end").await.unwrap();
                to.finish();
                assert_eq!(to.read(&mut [0; 9]).await.unwrap(), 0);
            });
        }
    });
    block_on(async {
        let mut first = [0; 7];
        let len = from.read(&mut first).await.unwrap();
        let rest = read_all(&mut from).await;
        assert!([&first[..len], &rest].concat() == [&sent[..], b"end"].concat());
        from.finish();
    });
    sender.join().unwrap();
    drop(from);
    world.end();
}

#[cfg(feature = "futures-io")]
#[test]
fn a_stream_has_the_traits_of_futures_io() {
    use std::future::poll_fn;
    use std::io::IoSlice;
    use std::pin::Pin;

    use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};

    let mut world = World::new(&options());
    let (client, server) = world.pair();
    let (mut to, mut from) = (client.into_stream(), server.into_stream());
    block_on(async {
        let slices = [IoSlice::new(b"hello, "), IoSlice::new(b"world")];
        let written = poll_fn(|cx| Pin::new(&mut to).poll_write_vectored(cx, &slices)).await.unwrap();
        assert_eq!(written, 12);
        poll_fn(|cx| AsyncWrite::poll_close(Pin::new(&mut to), cx)).await.unwrap();
        let mut five = [0; 5];
        let read = poll_fn(|cx| AsyncRead::poll_read(Pin::new(&mut from), cx, &mut five)).await.unwrap();
        assert_eq!(&five[..read], b"hello");
        let rest = poll_fn(|cx| Pin::new(&mut from).poll_fill_buf(cx).map_ok(<[u8]>::to_vec)).await.unwrap();
        assert_eq!(rest, b", world");
        AsyncBufRead::consume(Pin::new(&mut from), rest.len());
        assert_eq!(from.read(&mut five).await.unwrap(), 0);
    });
    drop((to, from));
    world.end();
}
