//! Device tests that may share a process with one another.

mod aio;
mod attacks;
mod cm;
mod cm_datagram;
mod cm_events;
mod cm_srq;
mod collectives;
mod control;
mod devices;
mod gpu;
mod gpu_driver;
mod hostile;
mod net_attacks;
mod net_http;
mod net_tls;
mod pollers;
mod processes;
mod random;
mod rc;
mod reconnects;
mod rsockets;
mod srq;
mod transitions;
mod uc;
mod ud;
mod ud_processes;
