//! Tests of staged messages, over the software device.

use rdma::{ConnectOptions, DeviceSelector, InitOptions};

use super::*;
use crate::{GpuBuffer, testing};

/// A connected pair; options of both ends.
fn pair(options: [StagingOptions; 2]) -> [GpuEndpoint; 2] {
    let selector: DeviceSelector = "soft0".parse().unwrap();
    let opened = rdma::open(&selector).unwrap();
    let pd = opened.context.alloc_pd().unwrap();
    let gpus = testing::driver().gpus().unwrap();
    let init = InitOptions::new().port(opened.port);
    let ends = [&gpus[0], gpus.last().unwrap()];
    let [a, b] = [0, 1].map(|end| GpuEndpoint::prepare(ends[end], &pd, &init, options[end]).unwrap());
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let connect = |end: PreparedGpuEndpoint, to| end.connect(to, &ConnectOptions::new()).unwrap();
    [connect(a, &to_b), connect(b, &to_a)]
}

fn small() -> StagingOptions {
    StagingOptions::new().chunk(4096).depth(4).timeout(rdma_test_support::LIMIT)
}

/// A message in the memory of an end's GPU: the numbers from `first` on, cut to bytes.
fn message(end: &GpuEndpoint, first: usize, len: usize) -> Ready<GpuSlice<u8>> {
    let stream = Stream::new(end.outgoing.gpu()).unwrap();
    let slice = GpuBuffer::new(stream.gpu(), len.max(1)).unwrap().slice().range(..len).unwrap();
    stream.upload(&slice, &bytes(first, len)).unwrap();
    stream.ready(slice).unwrap()
}

fn bytes(first: usize, len: usize) -> Vec<u8> {
    (0..251).cycle().skip(first).take(len).collect()
}

fn receive(end: &mut GpuEndpoint, room: usize) -> Result<Vec<u8>> {
    let gpu = end.incoming.gpu().clone();
    let slice = GpuBuffer::new(&gpu, room).unwrap().slice();
    let len = end.recv(&slice)?;
    let mut bytes = vec![0; len];
    Stream::new(&gpu).unwrap().download(&slice.range(..len).unwrap(), &mut bytes).unwrap();
    Ok(bytes)
}

#[test]
fn messages_of_all_lengths_arrive() {
    let [mut a, mut b] = pair([small(), small()]);
    for len in [0, 1, 4095, 4096, 4097, 16384, 100_000] {
        let sent = message(&a, len, len);
        std::thread::scope(|scope| {
            scope.spawn(|| a.send(&sent).unwrap());
            assert!(receive(&mut b, 100_000).unwrap() == bytes(len, len), "{len} bytes");
        });
    }
}

#[test]
fn both_ends_send_at_once() {
    let ends = pair([small(), small()]);
    std::thread::scope(|scope| {
        for mut end in ends {
            scope.spawn(move || {
                // As many chunks as the peer has slots fit without a receive.
                for turn in 0..20 {
                    end.send(&message(&end, turn, 4 * 4096)).unwrap();
                    assert!(receive(&mut end, 4 * 4096).unwrap() == bytes(turn, 4 * 4096));
                }
            });
        }
    });
}

#[test]
fn ends_of_different_sizes_agree() {
    let large = StagingOptions::new().chunk(10_000).depth(7).timeout(rdma_test_support::LIMIT);
    for options in [[small(), large], [large, small()], [small().depth(1), large]] {
        let [mut a, mut b] = pair(options);
        let sent = message(&a, 3, 150_000);
        std::thread::scope(|scope| {
            scope.spawn(|| a.send(&sent).unwrap());
            assert!(receive(&mut b, 150_000).unwrap() == bytes(3, 150_000));
        });
    }
}

#[test]
fn a_message_that_is_too_long_is_lost_and_the_next_one_arrives() {
    let [mut a, mut b] = pair([small(), small()]);
    let (long, short) = (message(&a, 0, 60_000), message(&a, 9, 10));
    std::thread::scope(|scope| {
        scope.spawn(|| [&long, &short].into_iter().for_each(|sent| a.send(sent).unwrap()));
        assert_eq!(receive(&mut b, 5000), Err(Error::MessageTooLong { len: 60_000, room: 5000 }));
        assert_eq!(receive(&mut b, 5000).unwrap(), bytes(9, 10));
    });
}

#[test]
fn an_end_without_a_message_times_out_and_is_not_used_again() {
    let [mut a, _b] = pair([small().timeout(Duration::from_millis(1)), small()]);
    // The greeting counts as a message.
    assert!(matches!(receive(&mut a, 10), Err(Error::Timeout)));
    assert_eq!(receive(&mut a, 10), Err(Error::EndpointFailed));
}

#[test]
fn a_failed_copy_ends_the_connection() {
    if testing::driver().path() != testing::stand_in().path() {
        return rdma_test_support::skip("a real driver has no faults on demand");
    }
    let [mut a, _b] = pair([small(), small()]);
    let sent = message(&a, 0, 10);
    rdma_cuda_stand_in::Control::new().fail_next("cuMemcpyDtoHAsync_v2", 9999);
    assert_eq!(a.send(&sent).unwrap_err().cuda().unwrap().code(), 9999);
    assert_eq!(a.send(&sent), Err(Error::EndpointFailed));
}
