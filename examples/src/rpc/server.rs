//! The server.

use std::time::Duration;

use rdma_net::{Incoming, Listener};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::wire::{Answer, Outcome, Request};
use super::{MAX_BODY, MAX_CALLS, PAYLOAD, methods};
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
    let mut calls = JoinSet::new();
    let ended = loop {
        let message = tokio::select! {
            // Reads no call for which there is no space: the client must wait then.
            next = from.next(), if calls.len() < MAX_CALLS => unless_closed(next)?,
            Some(_) = calls.join_next() => continue,
            // The client may wait for an answer that takes long.
            () = sleep(idle), if calls.is_empty() => {
                return Err(Failure::new(format!("no call for {} s; the client was disconnected", idle.as_secs())));
            }
        };
        let Some(message) = message else { break Ok(()) };
        // Short messages are copied: one that is held keeps a receive from all other clients.
        let message = message.into_bytes(PAYLOAD as usize);
        let request = decode(&message).filter(|request: &Request<'_>| request.body.len() <= MAX_BODY);
        let Some(Request { id, time, method, body }) = request else {
            break Err(Failure::new("the call is malformed; the client was disconnected"));
        };
        let (to, body) = (to.clone(), message.slice_ref(body));
        calls.spawn(async move {
            let outcome = match timeout(time, methods::call(method, body)).await {
                Ok(Ok(result)) => Outcome::Done(result),
                Ok(Err(reason)) => Outcome::Failed(reason),
                Err(_) => Outcome::Late,
            };
            if let Ok(answer) = encode(&Answer { id, outcome }) {
                // If the connection has failed, the loop above reports it.
                let _sent = to.send(answer).await;
            }
        });
    };
    // The calls that have begun are answered, and the connection is closed then.
    calls.detach_all();
    ended
}
