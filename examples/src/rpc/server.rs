//! The server.

use std::sync::Arc;

use rdma::net::{FailureKind, Incoming, Listener};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::wire::{Answer, Outcome, Request};
use super::{MAX_BODY, MAX_CALLS, methods};
use crate::Failure;
use crate::failure::say;

/// Serves all clients of a listener, each in a task of its own.
///
/// # Errors
/// If the listener fails. A client's failure ends that client only, and is reported on standard
/// error.
pub async fn serve(mut listener: Listener) -> Result<(), Failure> {
    loop {
        let incoming = listener.accept().await?;
        let peer = incoming.peer_addr();
        tokio::spawn(async move {
            if let Err(failure) = serve_client(incoming).await {
                let peer = peer.map_or_else(|| "a client".to_owned(), |peer| peer.to_string());
                say(&format!("rpc: {peer}: {failure}"));
            }
        });
    }
}

/// Answers the calls of a client, each in a task of its own.
async fn serve_client(incoming: Incoming) -> Result<(), Failure> {
    let (to, mut from) = incoming.accept().await?.split();
    let room = Arc::new(Semaphore::new(MAX_CALLS));
    loop {
        // Reads no call for which there is no room: the client must wait then.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return Ok(()) };
        let message = match from.next().await {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(failure) if failure.kind() == FailureKind::Closed => return Ok(()),
            Err(failure) => return Err(failure.into()),
        };
        let request = Request::from_bytes(&message).filter(|request| request.body.len() <= MAX_BODY);
        let Some(Request { id, time, method, body }) = request else {
            // Dropping the receiver closes the connection once its calls have ended.
            return Err(Failure::new("the call is malformed; the client was disconnected"));
        };
        // The task gets a copy: a message that is held keeps a receive from all other clients.
        let (to, body) = (to.clone(), body.to_vec());
        tokio::spawn(async move {
            let outcome = match timeout(time, methods::call(method, body)).await {
                Ok(Ok(result)) => Outcome::Done(result),
                Ok(Err(reason)) => Outcome::Failed(reason),
                Err(_) => Outcome::Late,
            };
            // If the connection has failed, the loop above reports it.
            let _sent = to.send(Answer { id, outcome }.to_bytes()).await;
            drop(place);
        });
    }
}
