//! The client.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdma_net::{Node, Receiver, Sender};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::wire::{Answer, Outcome, Request};
use super::{MAX_BODY, Method};
use crate::Failure;
use crate::message::{decode, encode};
use crate::waiting::Waiting;

/// A connection to a server. Clones use the same connection, and any number of calls may be in
/// flight.
///
/// A client belongs to the runtime in which it was made: a task there hands out the answers.
#[derive(Clone, Debug)]
pub struct Client {
    to: Sender,
    calls: Arc<Calls>,
}

/// The calls that wait for their answers.
#[derive(Debug, Default)]
struct Calls(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<u32, oneshot::Sender<Outcome>>,
    last_id: u32,
    /// The reason why no further answers come.
    ended: Option<Failure>,
}

/// Connects to a server and calls one method, both in at most `time`.
///
/// # Errors
/// As for [`Client::connect`] and [`Client::call`].
pub async fn call_once(
    node: &Node,
    server: SocketAddr,
    method: Method,
    body: &[u8],
    time: Duration,
) -> Result<Vec<u8>, Failure> {
    let start = Instant::now();
    let waiting = Waiting::for_peer(server);
    let client = timeout(time, Client::connect(node, server)).await.map_err(|_| late(time))??;
    drop(waiting);
    // The deadline is the user's: an answer that is late names all of it.
    let left = time.saturating_sub(start.elapsed());
    client.call_within(method, body, left, time).await
}

impl Client {
    /// Connects to a server.
    ///
    /// # Errors
    /// If there is no server, or if it has no space for another client.
    pub async fn connect(node: &Node, server: SocketAddr) -> Result<Self, Failure> {
        let (to, from) = node.connect(server).await?.split();
        let calls = Arc::new(Calls::default());
        tokio::spawn(hand_out(from, Arc::clone(&calls)));
        Ok(Self { to, calls })
    }

    /// Calls a method, and waits for the result for at most `time`.
    ///
    /// The future may be dropped at any time; the answer is ignored then.
    ///
    /// # Errors
    /// If the time is over; the server's reason; if the connection fails.
    pub async fn call(&self, method: Method, body: &[u8], time: Duration) -> Result<Vec<u8>, Failure> {
        self.call_within(method, body, time, time).await
    }

    /// Calls a method; what is late is reported with the time that the caller was given.
    async fn call_within(
        &self,
        method: Method,
        body: &[u8],
        time: Duration,
        given: Duration,
    ) -> Result<Vec<u8>, Failure> {
        if body.len() > MAX_BODY {
            return Err(Failure::usage(format!("a call takes at most {MAX_BODY} bytes")));
        }
        let (call, answer) = Call::begin(&self.calls)?;
        let request = encode(&Request { id: call.id, time, method: method.number(), body })?;
        let ended = |_| self.calls.lock().ended.clone().unwrap_or_else(|| Failure::new("the call was given up"));
        let exchange = async {
            self.to.send(request).await?;
            answer.await.map_err(ended)
        };
        match timeout(time, exchange).await.map_err(|_| late(given))?? {
            Outcome::Done(result) => Ok(result.into()),
            Outcome::Failed(reason) => Err(Failure::new(format!("the server: {reason}"))),
            Outcome::Late => Err(late(given)),
        }
    }
}

fn late(time: Duration) -> Failure {
    Failure::unanswered(format!("no answer came within {} ms", time.as_millis()))
}

/// A call that waits. Dropping it gives its number back.
struct Call<'a> {
    calls: &'a Calls,
    id: u32,
}

impl<'a> Call<'a> {
    fn begin(calls: &'a Calls) -> Result<(Self, oneshot::Receiver<Outcome>), Failure> {
        let (done, answer) = oneshot::channel();
        let mut state = calls.lock();
        if let Some(failure) = &state.ended {
            return Err(failure.clone());
        }
        let mut id = state.last_id.wrapping_add(1);
        while state.waiting.contains_key(&id) {
            id = id.wrapping_add(1);
        }
        state.last_id = id;
        state.waiting.insert(id, done);
        Ok((Self { calls, id }, answer))
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.calls.lock().waiting.remove(&self.id);
    }
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives each answer to the call that waits for it, until the connection ends.
async fn hand_out(mut from: Receiver, calls: Arc<Calls>) {
    let failure = loop {
        let message = match from.next().await {
            Ok(Some(message)) => message,
            Ok(None) => break Failure::new("the server has ended the connection"),
            Err(failure) => break failure.into(),
        };
        let Some(Answer { id, outcome }) = decode(&message) else {
            break Failure::new("the server gave an unknown answer; it is another program or another version");
        };
        let waiting = calls.lock().waiting.remove(&id);
        // No call waits any more for an answer that comes too late.
        if let Some(waiting) = waiting {
            let _late = waiting.send(outcome);
        }
    };
    // Ends all calls, and those that begin later.
    let mut state = calls.lock();
    state.ended = Some(failure);
    state.waiting.clear();
}
