//! The client: the side that pings.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdma::cm::blocking;
use rdma::transport::Rc;
use rdma::{Context, ExposedRegion, RemoteAccess};
use serde_json::json;

use super::session::{Arrival, Nudge, Session};
use super::{Advert, Settings, ping_text};
use crate::Failure;
use crate::waiting::Waiting;
use rdma_collectives::connect::End;

/// Timeout of resolving the address and the route: rdmacm-utils' value.
const RESOLUTION: Duration = Duration::from_secs(2);

/// Connects to a server, pings it, and disconnects; returns the number of pings.
///
/// # Errors
/// If the connection cannot be made or breaks, or if a wrong text came back.
pub fn run(
    context: &Context,
    settings: &Settings,
    server: SocketAddr,
    source: Option<SocketAddr>,
) -> Result<u64, Failure> {
    let unreachable = |failure: Failure| failure.context(format_args!("cannot connect to {server}"));
    let waiting = Waiting::for_peer(server);
    let route = blocking::resolve::<Rc>(context, source, server, RESOLUTION).map_err(|e| unreachable(e.into()))?;
    settings.step(format_args!("address and route of {server} are resolved"));
    let how = (&settings.options(), settings.patience());
    let mut session = Session::open(context, End::Active(route), "the server", how).map_err(unreachable)?;
    drop(waiting);
    let text = session.region(settings.size, RemoteAccess::READ)?;
    let answer = session.region(settings.size, RemoteAccess::WRITE)?;
    settings.step(format_args!("connected to {server}"));
    if context.capabilities().active_side_sends_first {
        session.nudge_by(Nudge::Write);
    }
    let (begun, mut number) = (Instant::now(), 0);
    while settings.count.is_none_or(|count| count == 0 || number < count) {
        ping(settings, &mut session, number, &text, &answer).map_err(|e| e.context(format_args!("ping {number}")))?;
        number += 1;
    }
    let seconds = begun.elapsed().as_secs_f64();
    settings.step(format_args!("disconnecting"));
    session.disconnect();
    let report = json!({ "side": "client", "server": server.to_string(), "size": settings.size, "seconds": seconds });
    settings.report(context, number, report)?;
    Ok(number)
}

fn ping(
    settings: &Settings,
    session: &mut Session,
    number: u64,
    text: &ExposedRegion,
    answer: &ExposedRegion,
) -> Result<(), Failure> {
    let expected = ping_text(number, settings.size);
    text.copy_in(0, &expected)?;
    for region in [text, answer] {
        session.send(Advert::of(&region.remote(..)?)?.to_bytes())?;
        go_ahead(session)?;
    }
    let mut came = vec![0; settings.size];
    answer.copy_out(0, &mut came)?;
    if settings.validate {
        if let Some(at) = came.iter().zip(&expected).position(|(came, expected)| came != expected) {
            return Err(Failure::new(format!("data mismatch: byte {at} of {} is another one", came.len())));
        }
    }
    Ok(settings.show("ping data", &came)?)
}

/// Waits for the server's "go ahead".
fn go_ahead(session: &mut Session) -> Result<(), Failure> {
    match session.next()? {
        // The contents of the server's messages are undefined.
        Arrival::Message(_) => Ok(()),
        Arrival::Gone => Err(Failure::new("the server has disconnected")),
        Arrival::Data => Err(Failure::new("a transfer of ours has ended, and there was none")),
    }
}
