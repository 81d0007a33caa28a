//! Tests of the engine: two engines over a fake link, with a fake clock.

mod world;

mod direct;
mod errors;
mod hostile;
mod oracle;
mod progress;
mod transfers;
