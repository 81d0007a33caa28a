//! Tests of messages, over the software device, which has direct paths to all GPUs.

use std::sync::Arc;

use rdma::op;
use rdma::{ConnectOptions, DeviceSelector, InitOptions, Opened};
use rdma_test_support::passes_alone;

use super::ring::Message;
use super::*;
use crate::{GpuBuffer, Policy, Reason, Way, testing};
use Policy::{PreferDirect, RequireDirect, Staged};

/// The policies of two sides.
const POLICIES: [[Policy; 2]; 4] = [[Staged; 2], [RequireDirect; 2], [Staged, RequireDirect], [RequireDirect, Staged]];

fn soft() -> Opened {
    let selector: DeviceSelector = "soft0".parse().unwrap();
    rdma::open(&selector).unwrap()
}

/// A side on the first GPU, or on the last one.
fn prepare(opened: &Opened, is_last: bool, options: GpuEndpointOptions) -> Result<PreparedGpuEndpoint> {
    let pd = opened.context.alloc_pd().unwrap();
    let gpus = testing::driver().gpus().unwrap();
    let gpu = if is_last { gpus.last() } else { gpus.first() };
    GpuEndpoint::prepare(gpu.unwrap(), &pd, &InitOptions::new().port(opened.port), options)
}

/// A connected pair; options of both sides.
fn pair(options: [GpuEndpointOptions; 2]) -> [GpuEndpoint; 2] {
    let opened = soft();
    connect([0, 1].map(|end| prepare(&opened, end == 1, options[end]).unwrap()))
}

fn connect([a, b]: [PreparedGpuEndpoint; 2]) -> [GpuEndpoint; 2] {
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let connect = |end: PreparedGpuEndpoint, to| end.connect(to, &ConnectOptions::new()).unwrap();
    [connect(a, &to_b), connect(b, &to_a)]
}

fn small(policy: Policy) -> GpuEndpointOptions {
    let preference = Preference { policy, ..Preference::default() };
    GpuEndpointOptions::new().chunk(4096).depth(4).timeout(rdma_test_support::LIMIT).preference(preference)
}

/// Sends a message from one side, and checks that the other side receives it.
fn exchange(a: &mut GpuEndpoint, b: &mut GpuEndpoint, len: usize) {
    let sent = message(a, len, len);
    std::thread::scope(|scope| {
        scope.spawn(|| a.send(&sent).unwrap());
        assert!(receive(b, 100_000).unwrap() == bytes(len, len), "{len} bytes");
    });
}

/// A message in the memory of a side's GPU: the numbers from `first` on, cut to bytes.
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
    for policies in POLICIES {
        let [mut a, mut b] = pair(policies.map(small));
        assert_eq!([&a, &b].map(|end| end.path().is_direct()), policies.map(|policy| policy == RequireDirect));
        for len in [0, 1, 4095, 4096, 4097, 16384, 100_000] {
            exchange(&mut a, &mut b, len);
        }
    }
}

#[test]
fn both_ends_send_at_once() {
    let ends = [pair([small(Staged); 2]), pair([small(RequireDirect); 2])];
    std::thread::scope(|scope| {
        for mut end in ends.into_iter().flatten() {
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
    for [one, other] in POLICIES {
        let (small, large) = (small(one), small(other).chunk(10_000).depth(7));
        for options in [[small, large], [large, small], [small.depth(1), large]] {
            let [mut a, mut b] = pair(options);
            exchange(&mut a, &mut b, 99_000);
        }
    }
}

#[test]
fn a_message_that_is_too_long_is_lost_and_the_next_one_arrives() {
    for policy in [Staged, RequireDirect] {
        let [mut a, mut b] = pair([small(policy); 2]);
        let (long, short) = (message(&a, 0, 60_000), message(&a, 9, 10));
        std::thread::scope(|scope| {
            scope.spawn(|| [&long, &short].into_iter().for_each(|sent| a.send(sent).unwrap()));
            assert_eq!(receive(&mut b, 5000), Err(Error::MessageTooLong { len: 60_000, room: 5000 }));
            assert_eq!(receive(&mut b, 5000).unwrap(), bytes(9, 10));
        });
    }
}

#[test]
fn an_end_without_a_message_times_out_and_is_not_used_again() {
    let [mut a, _b] = pair([small(PreferDirect).timeout(Duration::from_millis(1)), small(PreferDirect)]);
    // The greeting counts as a message.
    assert!(matches!(receive(&mut a, 10), Err(Error::Timeout)));
    assert_eq!(receive(&mut a, 10), Err(Error::EndpointFailed));
}

#[test]
fn a_failed_copy_ends_the_connection() {
    if testing::driver().path() != testing::stand_in().path() {
        return rdma_test_support::skip("a real driver has no faults on demand");
    }
    let [mut a, _b] = pair([small(Staged); 2]);
    let sent = message(&a, 0, 10);
    rdma_cuda_stand_in::Control::new().fail_next("cuMemcpyDtoHAsync_v2", 9999);
    assert_eq!(a.send(&sent).unwrap_err().cuda().unwrap().code(), 9999);
    assert_eq!(a.send(&sent), Err(Error::EndpointFailed));
}

#[test]
fn the_memories_that_were_sent_from_last_stay_registered() {
    let [mut a, mut b] = pair([small(RequireDirect); 2]);
    let memories: Vec<_> = (0..20)
        .map(|turn| {
            let sent = message(&a, turn, 100);
            a.send(&sent).unwrap();
            a.send(&sent).unwrap();
            (0..2).for_each(|_| assert!(receive(&mut b, 100).unwrap() == bytes(turn, 100)));
            Arc::downgrade(sent.get().memory())
        })
        .collect();
    let kept = |memories: &[std::sync::Weak<_>]| memories.iter().filter(|memory| memory.strong_count() > 0).count();
    assert_eq!([&memories[..4], &memories[4..]].map(kept), [0, 16]);
}

/// Sends a chunk that is not the last of its message.
fn send_chunk(end: &mut GpuEndpoint, len: usize) -> Result<()> {
    end.ring.add_slots(end.outgoing.gpu(), &end.pd)?;
    loop {
        if end.ring.has_credit() {
            if let Some(slot) = end.ring.take_free() {
                return end.ring.send(&mut end.queue_pair, slot, len, false);
            }
        }
        end.ring.progress(&mut end.queue_pair)?;
    }
}

#[test]
fn chunks_that_bring_a_message_no_further_are_refused() {
    for len in [0, 10] {
        let [mut a, mut b] = pair([small(Staged); 2]);
        send_chunk(&mut a, len).unwrap();
        assert_eq!(receive(&mut b, 100), Err(Error::ForeignMessage));
    }
}

#[test]
fn credits_that_the_peer_cannot_have_are_refused() {
    for count in [0, 1, u32::MAX >> 2] {
        let [mut a, mut b] = pair([small(Staged); 2]);
        a.ring.control(&mut a.queue_pair, Message::Credits(count)).unwrap();
        assert_eq!(receive(&mut b, 100), Err(Error::ForeignMessage), "{count}");
    }
}

#[test]
fn a_chunk_without_a_credit_is_refused() {
    let [mut a, mut b] = pair([small(Staged); 2]);
    for _ in 0..5 {
        let chunk = a.pd.allocate(4096).unwrap();
        let refused = a.queue_pair.post_send(op::send_imm(chunk, 0).token(u64::MAX)).err();
        assert!(refused.is_none());
    }
    // The greetings of both sides, and the chunks, which have all arrived then.
    for _ in 0..7 {
        a.ring.progress(&mut a.queue_pair).unwrap();
    }
    assert_eq!(receive(&mut b, 100_000), Err(Error::ForeignMessage));
}

#[test]
fn a_write_that_takes_a_receive_is_refused() {
    let [mut a, mut b] = pair([small(Staged); 2]);
    let nowhere = rdma::RemoteSlice::new(0, 0, 0);
    a.queue_pair.post_send(op::write_imm((), nowhere, 0)).map_err(|refused| refused.error()).unwrap();
    assert_eq!(receive(&mut b, 100), Err(Error::ForeignMessage));
}

#[test]
fn a_message_without_end_is_received_until_the_timeout() {
    let limit = Duration::from_millis(300);
    let [mut a, mut b] = pair([small(Staged).timeout(limit); 2]);
    std::thread::scope(|scope| {
        // Ends when the receiver hands back no more slots.
        let sender = scope.spawn(|| while send_chunk(&mut a, 4096).is_ok() {});
        assert_eq!(receive(&mut b, 100), Err(Error::Timeout));
        sender.join().unwrap();
    });
}

/// A queue pair that refuses receives into a GPU's memory after the first ones.
#[derive(Default)]
struct Refusing {
    gpu: usize,
    host: usize,
}

impl Receives for Refusing {
    fn post_host(&mut self, _: rdma::Buffer, _: u64) -> rdma::Result<()> {
        self.host += 1;
        Ok(())
    }

    fn post_gpu(&mut self, _: ExposedSlice<rdma::Gpu>, _: u64) -> rdma::Result<()> {
        self.gpu += 1;
        if self.gpu < 3 {
            return Ok(());
        }
        Err(rdma::Error::new(rdma::Verb::PostRecv, rdma::ErrorKind::NotSupported))
    }
}

#[test]
fn no_receive_into_a_gpu_is_left_after_a_refusal() {
    let pd = soft().context.alloc_pd().unwrap();
    let gpu = testing::driver().gpu(0).unwrap();
    let mut landing = Landing::new(&gpu, &pd, &InitOptions::new(), 4 * 4096, Preference::default()).unwrap();
    let cq = pd.context().create_cq(8).unwrap();
    let make = || Ok((Refusing::default(), Ring::new(cq.poller(), 4096, 1, None)));
    let host_slots = (0..4).map(|_| HostSlot::new(&gpu, &pd, 4096));
    let (queue_pair, _) = post_receives(make, &mut landing, PreferDirect, 4096, host_slots).unwrap();
    assert_eq!((queue_pair.gpu, queue_pair.host, landing.path().is_direct()), (0, 4, false));
}

#[test]
fn an_end_without_a_direct_path_stages_if_it_may() {
    if testing::driver().path() == testing::stand_in().path() {
        passes_alone(&["endpoint::tests::only_one_end_has_a_direct_path"], &[]);
    }
}

#[test]
#[ignore = "run by an_end_without_a_direct_path_stages_if_it_may"]
fn only_one_end_has_a_direct_path() {
    let opened = soft();
    // The first stream is that of the copies for soft0.
    let prepare_without = |policy| {
        rdma_cuda_stand_in::Control::new().fail_next("cuStreamCreate", 9999);
        prepare(&opened, false, small(policy))
    };
    let Err(Error::Path { reason }) = prepare_without(RequireDirect) else { panic!("there is no direct path") };
    assert!(reason.starts_with("no direct path between GPU and NIC: "), "{reason}");
    let staged = prepare_without(PreferDirect).unwrap();
    let way = &staged.path().way;
    assert!(matches!(way, Way::Staged(Reason::NotPossible(_))), "{way:?}");
    assert!(staged.path().to_string().contains("cuStreamCreate"), "{}", staged.path());
    let [mut a, mut b] = connect([staged, prepare(&opened, true, small(RequireDirect)).unwrap()]);
    exchange(&mut a, &mut b, 50_000);
    exchange(&mut b, &mut a, 50_000);
}

#[test]
fn the_environment_chooses_the_path() {
    passes_alone(&["endpoint::tests::the_environment_has_messages_staged"], &[("RDMA_CUDA_PATH", "staged")]);
    passes_alone(&["endpoint::tests::the_environment_is_invalid"], &[("RDMA_CUDA_PATH", "fast")]);
}

#[test]
#[ignore = "run by the_environment_chooses_the_path"]
fn the_environment_has_messages_staged() {
    let staged = prepare(&soft(), false, small(RequireDirect)).unwrap();
    assert_eq!(staged.path().way, Way::Staged(Reason::Asked));
}

#[test]
#[ignore = "run by the_environment_chooses_the_path"]
fn the_environment_is_invalid() {
    let Err(Error::Path { reason }) = prepare(&soft(), false, small(PreferDirect)) else { panic!("it is invalid") };
    assert!(reason.contains("use direct, prefer or staged"), "{reason}");
}

#[test]
fn memory_of_another_gpu_is_refused_and_the_connection_goes_on() {
    let gpus = testing::driver().gpus().unwrap();
    let [_, other, ..] = &gpus[..] else { return rdma_test_support::skip("there is one GPU only") };
    for policy in [Staged, RequireDirect] {
        let [mut a, mut b] = connect([0, 1].map(|_| prepare(&soft(), false, small(policy)).unwrap()));
        let foreign = GpuBuffer::<u8>::new(other, 100).unwrap().slice();
        assert_eq!(a.send(&Ready::assume(foreign.clone())), Err(Error::OtherGpu));
        assert_eq!(b.recv(&foreign), Err(Error::OtherGpu));
        exchange(&mut a, &mut b, 10_000);
    }
}

/// Sends a message without memory, as only a hostile peer does.
fn send_control(end: &mut GpuEndpoint, imm: u32) {
    end.queue_pair.post_send(op::send_imm((), imm).token(u64::MAX)).unwrap();
}

#[test]
fn a_second_greeting_and_a_message_without_meaning_are_refused() {
    let greeting = 3 << 30 | 4 << 20 | 4;
    for imm in [greeting, 3 << 30, 3 << 30 | 4 << 20] {
        let [mut a, mut b] = pair([small(PreferDirect); 2]);
        send_control(&mut a, imm);
        assert_eq!(receive(&mut b, 100), Err(Error::ForeignMessage), "{imm:#x}");
    }
    let [mut a, mut b] = pair([small(PreferDirect); 2]);
    a.queue_pair.post_send(op::send(()).token(u64::MAX)).unwrap();
    assert_eq!(receive(&mut b, 100), Err(Error::ForeignMessage));
}
