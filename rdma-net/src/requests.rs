//! The requests of peers that wait at a listener.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use rdma::{MadeIn, Result, Verb};
use tracing::field;

use super::exchange::Request;
use super::failure::Failure;
use super::load::{self, Load, LoadShare};
use super::options::ListenOptions;
use super::protocol::{Hello, Refuse, RefuseCode};
use super::receives::{ReceivePool, Stake};
use super::waiters::Task;
use crate::panics::Panics;

/// What peers are told whose requests come too late.
const NO_MORE: &str = "the listener accepts no more connections";

/// The requests that wait at a listener.
pub(super) struct Requests {
    pub(super) options: ListenOptions,
    /// Connections of the listener, with the requests that wait.
    live: Arc<AtomicUsize>,
    seats: Vec<Seat>,
    state: Mutex<State>,
    made_in: MadeIn,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Pending>,
    waker: Option<Waker>,
    failure: Option<Failure>,
}

/// The part of a driver in a listener.
pub(super) struct Seat {
    /// The name of the node's device.
    device: String,
    pool: Option<Arc<ReceivePool>>,
    load: Arc<Load>,
    /// In the first seat of a device: how many requests have come there. Its seats take turns.
    seated: AtomicUsize,
}

impl Seat {
    pub(super) fn new(device: String, pool: Option<Arc<ReceivePool>>, load: Arc<Load>) -> Self {
        Self { device, pool, load, seated: AtomicUsize::new(0) }
    }
}

/// The number of a seat, a request's share of its load, and its part of the seat's receives.
type Seated = (usize, LoadShare, Option<Stake>);

/// A request with a valid HELLO.
pub(super) struct Pending {
    /// The number of the seat that accepts it.
    pub(super) seat: usize,
    pub(super) load: LoadShare,
    pub(super) request: Request,
    pub(super) hello: Hello,
    pub(super) ticket: Ticket,
    pub(super) stake: Option<Stake>,
}

/// A place among the connections of a listener, free again when dropped.
#[derive(Debug)]
pub(super) struct Ticket(Arc<AtomicUsize>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Requests {
    pub(super) fn new(options: ListenOptions, seats: Vec<Seat>) -> Self {
        let (live, state) = (Arc::default(), Mutex::default());
        Self { options, live, seats, state, made_in: MadeIn::default() }
    }

    /// The shared receives that no connection may use.
    #[cfg(test)]
    pub(super) fn free_receives(&self) -> i64 {
        self.pool().map_or(0, ReceivePool::free)
    }

    /// The number of requests that wait to be accepted.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.lock().queue.len()
    }

    #[cfg(test)]
    pub(super) fn pool(&self) -> Option<&ReceivePool> {
        self.seats.first()?.pool.as_deref()
    }

    /// Waits for the next request.
    pub(super) fn poll_next(&self, cx: &Context<'_>) -> Poll<Result<Pending, Failure>> {
        self.made_in.check(Verb::GetCmEvent)?;
        Task::poll(cx.waker(), true, |task| {
            let mut state = self.lock();
            if let Some(request) = state.queue.pop_front() {
                return Poll::Ready(Ok(request));
            }
            if let Some(failure) = &state.failure {
                return Poll::Ready(Err(failure.clone()));
            }
            task.leave(&mut state.waker);
            Poll::Pending
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a peer's request, or refuses it.
    pub(super) fn push(&self, request: Request) {
        let (hello, ticket, (seat, load, stake)) = match self.check(&request) {
            Ok(checked) => checked,
            Err(refuse) => return reject(request, &refuse),
        };
        let peer = request.peer_addr().map(field::display);
        tracing::debug!(name: "request_received", target: "rdma_net", peer, "a peer asks for a connection");
        let pending = Pending { seat, load, request, hello, ticket, stake };
        match self.wait_for_application(pending) {
            Ok(waker) => waker.into_iter().for_each(Waker::wake),
            Err(late) => reject(late.request, &Refuse::new(RefuseCode::Unavailable, NO_MORE)),
        }
    }

    /// Leaves a request to the application, unless the listener has ended since it was checked.
    fn wait_for_application(&self, pending: Pending) -> Result<Option<Waker>, Pending> {
        let mut state = self.lock();
        if state.failure.is_some() {
            return Err(pending);
        }
        state.queue.push_back(pending);
        Ok(state.waker.take())
    }

    fn check(&self, request: &Request) -> Result<(Hello, Ticket, Seated), Refuse> {
        let hello = Hello::from_bytes(request.hello())?;
        let (waiting, has_failed) = {
            let state = self.lock();
            (state.queue.len(), state.failure.is_some())
        };
        if has_failed {
            return Err(Refuse::new(RefuseCode::Unavailable, NO_MORE));
        }
        if waiting >= self.options.backlog {
            return Err(Refuse::new(RefuseCode::Busy, "too many requests wait"));
        }
        let ticket = Ticket(Arc::clone(&self.live));
        // The ticket is counted now, and counted off when it is dropped.
        if self.live.fetch_add(1, Ordering::AcqRel) >= self.options.max_connections {
            return Err(Refuse::new(RefuseCode::Busy, "the listener has too many connections"));
        }
        Ok((hello, ticket, self.seat(request.device_name().as_deref())?))
    }

    /// Seats a request that arrived on a device. A request over TCP names no device, and its
    /// listener has one seat.
    fn seat(&self, device: Option<&str>) -> Result<Seated, Refuse> {
        let fits = |&at: &usize| device.is_none_or(|name| self.seats[at].device == name);
        let mut seats: Vec<usize> = (0..self.seats.len()).filter(fits).collect();
        let Some(&first) = seats.first() else {
            return Err(Refuse::new(RefuseCode::Unavailable, "the listener does not serve the device of this address"));
        };
        let turn = self.seats[first].seated.fetch_add(1, Ordering::Relaxed);
        load::order(&mut seats, turn, |&at| &self.seats[at].load);
        let take = |&at: &usize| {
            let Seat { pool, load, .. } = &self.seats[at];
            let stake = match pool {
                Some(pool) => Some(pool.join()?),
                None => None,
            };
            Some((at, load.share(), stake))
        };
        let taken = seats.iter().find_map(take);
        taken.ok_or(Refuse::new(RefuseCode::Busy, "no receives are free for another connection"))
    }

    /// Ends the waits with a failure, and refuses the requests that wait or come later.
    pub(super) fn fail(&self, failure: Failure) {
        let (waiting, waker) = {
            let mut state = self.lock();
            state.failure.get_or_insert(failure);
            (std::mem::take(&mut state.queue), state.waker.take())
        };
        let mut panics = Panics::default();
        for Pending { request, .. } in waiting {
            panics.catch(|| reject(request, &Refuse::new(RefuseCode::Unavailable, NO_MORE)));
        }
        panics.catch(|| waker.into_iter().for_each(Waker::wake));
        panics.resume();
    }
}

/// Refuses a request with a reason.
pub(super) fn reject(request: Request, refuse: &Refuse) {
    let peer = request.peer_addr().map(field::display);
    let rejected = request.reject(refuse);
    tracing::debug!(
        name: "request_refused", target: "rdma_net",
        peer, code = ?refuse.code, ?rejected, "a request to connect was refused"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seats_of_each_device_take_turns() {
        let seats = ["a", "a", "b", "b"].map(|device| Seat::new(device.into(), None, Arc::default()));
        let requests = Requests::new(ListenOptions::new(), seats.into());
        let seat = |device| requests.seat(Some(device)).map(|(seat, ..)| seat).ok();
        // A peer with two NICs uses them by turns.
        let seats: Vec<_> = ["a", "b", "a", "b", "a", "b"].into_iter().filter_map(seat).collect();
        assert_eq!(seats, [0, 2, 1, 3, 0, 2]);
        assert!(requests.seat(Some("c")).is_err());
    }
}
