//! Tests of the engine: two engines over a fake link, with a fake clock.

mod world;

mod errors;
mod progress;
mod transfers;
