use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use rdma::{DeviceSelector, ExposedRegion, RemoteAccess};

use super::*;
use crate::bootstrap::Watch;
use crate::shm::HostSlice;
use crate::wait::Patience;

/// Links to ranks whose messages are given, and which take messages only while this rank waits.
struct Script {
    incoming: Vec<VecDeque<HostSlice>>,
    posted: Vec<(usize, Vec<u32>, HostSlice)>,
    taken: HashSet<u64>,
    pauses: usize,
}

impl Links for Script {
    type Slice = HostSlice;

    fn piece(&self) -> usize {
        16
    }

    fn post(&mut self, to: usize, message: HostSlice) -> Result<Ticket, Error> {
        self.posted.push((to, Vec::new(), message));
        Ok(Ticket { to, number: self.posted.len() as u64 })
    }

    fn is_taken(&mut self, ticket: Ticket) -> Result<bool, Error> {
        Ok(self.taken.contains(&ticket.number))
    }

    fn arrived(&mut self, from: usize, length: usize) -> Result<Option<HostSlice>, Error> {
        let piece = self.incoming[from].front().cloned();
        assert!(piece.as_ref().is_none_or(|piece| piece.len() == length));
        Ok(piece)
    }

    fn release(&mut self, from: usize) -> Result<(), Error> {
        self.incoming[from].pop_front().map(drop).ok_or_else(|| Error::new("released too much"))
    }

    fn pause(&mut self, wait: &mut Wait) -> Result<(), Error> {
        self.pauses += 1;
        let number = self.taken.len();
        let Some((_, elements, message)) = self.posted.get_mut(number) else {
            return Patience::new(Watch::new(), true, Duration::ZERO).pause(wait).map(drop);
        };
        elements.resize(message.len() / 4, 0);
        message.registered(0)?.copy_out(0, bytemuck::cast_slice_mut(elements))?;
        self.taken.insert(number as u64 + 1);
        Ok(())
    }
}

struct Bed {
    region: ExposedRegion,
    memory: Memory<HostSlice>,
    script: Script,
}

impl Bed {
    /// Input, output and scratch of 8 elements each, which count up from 0.
    fn new() -> Self {
        let selector: DeviceSelector = "soft0".parse().unwrap();
        let pd = rdma::open(&selector).unwrap().context.alloc_pd().unwrap();
        let region = pd.allocate_exposed(4096, RemoteAccess::WRITE).unwrap();
        let values: Vec<u32> = (0..24).collect();
        region.copy_in(0, bytemuck::cast_slice(&values)).unwrap();
        let place = |place: usize| HostSlice::from(region.slice(place * 32..(place + 1) * 32).unwrap());
        let memory = Memory { input: place(0), output: place(1), scratch: place(2) };
        let incoming = vec![VecDeque::new(); 3];
        let script = Script { incoming, posted: Vec::new(), taken: HashSet::new(), pauses: 0 };
        Self { region, memory, script }
    }

    /// Gives a message from a rank, as its pieces.
    fn message(&mut self, from: usize, at: usize, elements: &[u32]) {
        for (index, piece) in elements.chunks(4).enumerate() {
            let at = 1024 + 64 * at + 16 * index;
            self.region.copy_in(at, bytemuck::cast_slice(piece)).unwrap();
            self.script.incoming[from].push_back(self.region.slice(at..at + 4 * piece.len()).unwrap().into());
        }
    }

    fn run(&mut self, steps: Vec<Step>) -> Result<Traffic, Error> {
        let schedule = Schedule { scratch: 8, steps, ..Schedule::default() };
        let mut blocks = Blocks::new();
        Execution::new(&mut self.script, &mut blocks, &self.memory, Reduction::Sum).run::<u32>(&schedule)
    }

    fn output(&self) -> Vec<u32> {
        let mut elements = vec![0; 8];
        self.memory.output.registered(0).unwrap().copy_out(0, bytemuck::cast_slice_mut(&mut elements)).unwrap();
        elements
    }
}

fn span(place: Place, elements: Range<usize>) -> Span {
    Span { place, elements }
}

fn local(place: Place, elements: Range<usize>) -> Source {
    Source::Local(span(place, elements))
}

#[test]
fn messages_of_several_pieces_are_reduced_with_local_elements() {
    let mut bed = Bed::new();
    bed.message(1, 0, &[10, 20, 30, 40, 50, 60]);
    bed.message(2, 1, &[100, 200, 300, 400, 500, 600]);
    let sources = vec![Source::Message { from: 1 }, local(Place::Input, 1..7), Source::Message { from: 2 }];
    let traffic = bed.run(vec![Step::Combine { sources, into: span(Place::Output, 2..8) }]).unwrap();
    assert_eq!(traffic, Traffic { sent: 0, received: 48 });
    assert_eq!(bed.output(), [8, 9, 111, 222, 333, 444, 555, 666]);
    assert!(bed.script.incoming.iter().all(VecDeque::is_empty));
}

#[test]
fn elements_are_not_overwritten_before_they_are_taken() {
    let mut bed = Bed::new();
    // Input and output in the same memory.
    bed.memory.input = bed.memory.output.clone();
    bed.message(1, 0, &[70, 71]);
    let steps = vec![
        Step::Send { to: 2, span: span(Place::Input, 0..4) },
        Step::Send { to: 1, span: span(Place::Scratch, 0..1) },
        Step::Combine { sources: vec![Source::Message { from: 1 }], into: span(Place::Output, 3..5) },
    ];
    assert_eq!(bed.run(steps).unwrap(), Traffic { sent: 20, received: 8 });
    assert_eq!(bed.output(), [8, 9, 10, 70, 71, 13, 14, 15]);
    let (to, sent, _) = &bed.script.posted[0];
    assert_eq!((*to, &sent[..]), (2, &[8, 9, 10, 11][..]));
    // The end waits for the other message.
    assert_eq!((bed.script.taken.len(), bed.script.pauses), (2, 2));
}

#[test]
fn empty_messages_are_sent_and_awaited() {
    let mut bed = Bed::new();
    let (nothing, awaited) = (span(Place::Scratch, 0..0), bed.memory.scratch.part(0..0).unwrap());
    bed.script.incoming[2].push_back(awaited);
    let sources = vec![Source::Message { from: 2 }];
    bed.run(vec![Step::Send { to: 1, span: nothing.clone() }, Step::Combine { sources, into: nothing }]).unwrap();
    assert_eq!(bed.script.posted.len(), 1);
    assert!(bed.script.incoming[2].is_empty());
}

#[test]
fn a_rank_that_sends_nothing_is_named() {
    let mut bed = Bed::new();
    let sources = vec![Source::Message { from: 2 }];
    let failure = bed.run(vec![Step::Combine { sources, into: span(Place::Output, 0..1) }]).unwrap_err();
    assert!(failure.to_string().contains("waiting for rank 2 to send a message"), "{failure}");
}

#[test]
fn a_reduction_that_the_type_lacks_is_refused_before_anything_is_sent() {
    let mut bed = Bed::new();
    let steps = vec![Step::Send { to: 1, span: span(Place::Input, 0..4) }];
    let (schedule, mut blocks) = (Schedule { scratch: 8, steps, ..Schedule::default() }, Blocks::new());
    let execution = Execution::new(&mut bed.script, &mut blocks, &bed.memory, Reduction::And);
    let refused = execution.run::<f32>(&schedule).unwrap_err().to_string();
    assert_eq!(refused, "the bitwise reduction and is for integers, not for f32");
    assert!(bed.script.posted.is_empty());
}

#[test]
fn elements_beyond_the_memory_are_refused() {
    let step = Step::Combine { sources: vec![local(Place::Input, 0..9)], into: span(Place::Output, 0..9) };
    assert!(Bed::new().run(vec![step]).is_err());
}
