//! The links to other hosts, and their part of a turn.
//!
//! They stand beside the links within the host, so a process without such links has one comparison
//! more in an empty poll. The functions here are cold for that reason: they do not grow the loops
//! over the links within the host. With such links, a system call outweighs the call of a function.

use std::time::Duration;

use super::{COPY_BUDGET, SHARE, State, number};
use crate::engine::{Engine, Header, LinkId, PeerId, Source, Target, Time, Transmit};
use crate::link::stream::{Ended, Handler, Stream};
use crate::log::log;
use crate::os;

/// Looks at empty sockets in a row after which the next looks are farther apart.
const STEP: u32 = 256;
/// Polls between two looks: of the first [`STEP`] looks, of the next ones, and so on.
const POLLS: [u64; 5] = [0, 7, 63, 1023, 4095];

/// Nanoseconds between two looks whether peers take what was sent to them.
const CARE: u64 = 1_000_000_000;

/// When polls look at the sockets of other hosts, each of which is a system call: all polls at
/// first, and few once nothing has come for long. The agent looks too, every tick.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// Polls before the next look.
    polls: u64,
    /// Looks since something was found.
    in_vain: u32,
}

impl Looks {
    /// Whether this poll looks. After a look that is due, the next one is in `u64::MAX` polls,
    /// until a look tells what it has found: so a process without links to other hosts counts, too,
    /// and an empty poll has one branch for both questions.
    #[inline]
    pub(super) const fn is_due(&mut self) -> bool {
        let (polls, is_due) = self.polls.overflowing_sub(1);
        self.polls = polls;
        is_due
    }

    /// A look or a transmission has found work.
    fn found(&mut self) {
        *self = Self::default();
    }

    /// A look has found nothing.
    fn found_nothing(&mut self) {
        self.polls = *POLLS.get((self.in_vain / STEP) as usize).unwrap_or(&POLLS[POLLS.len() - 1]);
        self.in_vain = self.in_vain.saturating_add(1);
    }
}

/// The engine, for the frames of one link.
struct Frames<'a> {
    engine: &'a mut Engine,
    link: LinkId,
    /// The number of frames so far, where the parts of one count.
    count: &'a mut u32,
}

impl Handler for Frames<'_> {
    fn handle(&mut self, header: &Header, payload: Source<'_>) {
        *self.count = self.count.wrapping_add(1);
        self.engine.handle_frame(self.link, header, payload);
    }

    fn may_cut(&self, header: &Header, len: usize) -> bool {
        self.engine.may_cut(self.link, header, len)
    }

    fn fill(&mut self, header: &Header, len: usize, read: impl FnOnce(Target<'_>) -> usize) -> Option<usize> {
        let count = self.engine.handle_incoming(self.link, header, len, read)?;
        *self.count = self.count.wrapping_add(u32::from(count > 0));
        Some(count)
    }
}

impl State {
    /// Adds a link to a process of another host. The caller has it watched, and tells the engine.
    pub(crate) fn add_stream(&mut self, stream: Stream) -> LinkId {
        let index = self.free_number();
        if self.streams.len() <= index {
            self.streams.resize_with(index + 1, || None);
        }
        self.streams[index] = Some(stream);
        self.looks.found();
        number(index)
    }

    /// All links to other hosts.
    pub(crate) fn streams(&self) -> impl Iterator<Item = (LinkId, &Stream)> {
        let numbered = self.streams.iter().enumerate();
        numbered.filter_map(|(index, stream)| stream.as_ref().map(|stream| (number(index), stream)))
    }

    /// The link to the process of another host with this first slot.
    pub(crate) fn stream_to(&self, process: PeerId) -> Option<(LinkId, &Stream)> {
        let leads = |stream: &Stream| stream.host() == process.host && stream.far.identity.slot == process.slot;
        self.streams().find(|(_, stream)| leads(stream))
    }

    /// Ends a link to another host: everything that waits for the link fails.
    pub(crate) fn remove_stream(&mut self, id: LinkId, why: &str) {
        let Some(stream) = self.streams.get_mut(id.0 as usize).and_then(Option::take) else { return };
        while matches!(self.streams.last(), Some(None)) {
            self.streams.pop();
        }
        let (host, slot, why) = (stream.host().0, stream.far.identity.slot.0, why.to_owned());
        log!(DEBUG, host, slot, why, "link to another host down");
        self.event_loop.forget(&stream);
        self.wait_set.forget(&stream);
        self.engine.handle_link_down(id);
    }

    /// Looks whether there is something to receive from other hosts or to send to them.
    #[cold]
    pub(super) fn streams_have_news(&mut self) -> bool {
        let is_idle = self.streams.iter_mut().flatten().all(Stream::is_idle);
        // Otherwise a turn follows, which finds more than the part of a frame, or nothing.
        if is_idle {
            self.looks.found_nothing();
        }
        !is_idle
    }

    /// Whether there is work of which the kernel will not tell a thread that goes to sleep.
    pub(super) fn streams_have_work(&self) -> bool {
        self.streams.iter().flatten().any(Stream::has_work)
    }

    /// Whether frames would be lost if this process ended now.
    pub(super) fn streams_have_unsent(&self) -> bool {
        !self.streams.iter().flatten().all(Stream::is_taken)
    }

    /// Whether transmitting again on the link to another host with an index can make progress.
    pub(super) fn stream_may_continue(&self, index: usize) -> bool {
        self.streams.get(index).and_then(Option::as_ref).is_some_and(Stream::may_continue)
    }

    /// Handles inbound frames of other hosts. True if more are left.
    #[cold]
    pub(super) fn drain_streams(&mut self, budget: &mut usize) -> bool {
        let (mut more, mut frames) = (false, 0);
        for index in 0..self.streams.len() {
            more |= self.drain_stream(index, budget, &mut frames);
        }
        match more || frames != 0 {
            true => self.looks.found(),
            false => self.looks.found_nothing(),
        }
        more
    }

    /// Handles all frames of other hosts that have arrived so far, at most a turn's copies of each.
    pub(super) fn drain_streams_fully(&mut self) {
        for index in 0..self.streams.len() {
            let mut budget = COPY_BUDGET;
            if let Some(Some(stream)) = self.streams.get_mut(index) {
                stream.forget_look();
            }
            self.drain_stream(index, &mut budget, &mut 0);
        }
    }

    /// Counts the frames in `frames`.
    fn drain_stream(&mut self, index: usize, budget: &mut usize, frames: &mut u32) -> bool {
        let Some(Some(stream)) = self.streams.get_mut(index) else { return false };
        match stream.drain(budget, Frames { engine: &mut self.engine, link: number(index), count: frames }) {
            Ok(more) => {
                *budget = (*budget).max(SHARE);
                more
            }
            Err(ended) => {
                self.remove_ended(index, ended);
                false
            }
        }
    }

    /// Sends on a link to another host. True if more is left to do.
    #[cold]
    pub(super) fn transmit_on_stream(&mut self, index: usize, budget: &mut usize) -> bool {
        let Some(Some(stream)) = self.streams.get_mut(index) else { return false };
        // What is sent is often answered soon.
        self.looks.found();
        if *budget == 0 {
            stream.put_off();
            self.streams_wait = true;
            return true;
        }
        let ended = self.engine.poll_transmit(number(index), stream);
        if ended == Transmit::More {
            *budget = 0;
            self.first = index + 1;
        }
        let delivered = stream.deliver(ended);
        self.streams_wait |= stream.waits();
        let more = match delivered {
            Ok(more) => more,
            Err(ended) => {
                self.remove_ended(index, ended);
                false
            }
        };
        if self.care == Time(u64::MAX) {
            self.begin_care();
        }
        more
    }

    /// Has the agent look at the peers soon, also if it sleeps.
    #[cold]
    fn begin_care(&mut self) {
        let now = os::now();
        self.care = now.after(CARE);
        if self.alarm <= now {
            // The agent has yet to wake for this alarm, which a later one would take away.
            self.set_alarm_for_tick();
        } else if self.alarm > self.care {
            self.set_alarm(self.care);
        }
    }

    /// Looks, if it is time, whether the peers of other hosts take what was sent to them, so that
    /// those that stand still are waited for, and those whose hosts are silent are not. Returns the
    /// time to the next look; `None` if the peers have everything.
    pub(crate) fn look_after_streams(&mut self) -> Option<Duration> {
        if self.care == Time(u64::MAX) {
            return None;
        }
        let now = os::now();
        if self.care <= now {
            let mut waits = false;
            for index in 0..self.streams.len() {
                let Some(Some(stream)) = self.streams.get_mut(index) else { continue };
                match stream.waits_for_peer() {
                    Ok(more) => waits |= more,
                    Err(ended) => self.remove_ended(index, ended),
                }
            }
            self.care = if waits { now.after(CARE) } else { Time(u64::MAX) };
            self.after_call();
        }
        (self.care != Time(u64::MAX)).then(|| Duration::from_nanos(self.care.0.saturating_sub(now.0)))
    }

    fn remove_ended(&mut self, index: usize, ended: Ended) {
        let Some(Some(stream)) = self.streams.get(index) else { return };
        if ended != Ended::Closed {
            let (host, slot) = (stream.host().0, stream.far.identity.slot.0);
            log!(WARN, host, slot, "the link to a process of another host has ended: {ended}");
        }
        self.remove_stream(number(index), &ended.to_string());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_are_farther_and_farther_apart_until_one_finds_something() {
        let mut looks = Looks::default();
        let polls = |looks: &mut Looks| (0_u64..).find(|_| looks.is_due());
        for (at, expected) in POLLS.into_iter().enumerate() {
            for _ in 0..STEP {
                looks.found_nothing();
                assert_eq!(polls(&mut looks), Some(expected), "step {at}");
            }
        }
        looks.found_nothing();
        assert_eq!(polls(&mut looks), Some(4095));
        looks.found();
        assert!(looks.is_due() && !looks.is_due(), "one look is due, and says what it has found");
        looks.found();
        assert!(looks.is_due());
    }
}
