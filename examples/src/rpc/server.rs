//! The server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdma_net::{Incoming, Listener};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use super::wire::{Answer, Outcome, Request};
use super::{MAX_BODY, MAX_CALLS, methods};
use crate::Failure;
use crate::message::{decode, encode};
use crate::service::{serve_all, unless_closed};

/// Serves all clients of a listener, each in a task of its own. A client is disconnected that
/// waits for no answer, and for `idle` makes no call and gets no answer.
///
/// # Errors
/// If the listener fails. A client's failure ends that client only, and is reported on standard
/// error.
pub async fn serve(listener: Listener, idle: Duration) -> Result<(), Failure> {
    serve_all(listener, "rpc", |incoming| serve_client(incoming, idle)).await
}

/// Answers the calls of a client, each in a task of its own.
async fn serve_client(incoming: Incoming, idle: Duration) -> Result<(), Failure> {
    let (to, mut from) = incoming.accept().await?.split();
    let room = Arc::new(Semaphore::new(MAX_CALLS));
    let activity = Arc::new(Activity::new());
    loop {
        // Reads no call for which there is no space: the client must wait then.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return Ok(()) };
        let Ok(next) = timeout_at(activity.last() + idle, from.next()).await else {
            // The client may wait for an answer that takes long.
            if room.available_permits() + 1 < MAX_CALLS {
                activity.renew();
                continue;
            }
            // An answer may have left since the wait began.
            if activity.last().elapsed() < idle {
                continue;
            }
            return Err(Failure::new(format!("no call for {} s; the client was disconnected", idle.as_secs())));
        };
        activity.renew();
        let Some(message) = unless_closed(next)? else { return Ok(()) };
        let request = decode(&message).filter(|request: &Request<'_>| request.body.len() <= MAX_BODY);
        let Some(Request { id, time, method, body }) = request else {
            // Dropping the receiver closes the connection once its calls have ended.
            return Err(Failure::new("the call is malformed; the client was disconnected"));
        };
        // The task gets a copy: a message that is held keeps a receive from all other clients.
        let (to, body, activity) = (to.clone(), body.to_vec(), Arc::clone(&activity));
        tokio::spawn(async move {
            let outcome = match timeout(time, methods::call(method, body)).await {
                Ok(Ok(result)) => Outcome::Done(result),
                Ok(Err(reason)) => Outcome::Failed(reason),
                Err(_) => Outcome::Late,
            };
            if let Ok(answer) = encode(&Answer { id, outcome }) {
                // If the connection has failed, the loop above reports it.
                let _sent = to.send(answer).await;
            }
            // Before the place is free: a client without a call has a time of its last one.
            activity.renew();
            drop(place);
        });
    }
}

/// The time of a client's last call or answer.
struct Activity(Mutex<Instant>);

impl Activity {
    fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}
