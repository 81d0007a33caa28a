//! Tests of the engine: two engines over a fake link, with a fake clock.

mod pair;
mod statuses;
mod world;

mod counters;
mod datagram_oracle;
mod datagrams;
mod direct;
mod errors;
mod faults;
mod foreign;
mod hostile;
mod incoming;
mod oracle;
mod progress;
mod shared_receives;
mod transfers;
mod unreliable;
