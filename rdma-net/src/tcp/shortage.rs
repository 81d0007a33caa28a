//! A descriptor that is set aside, to refuse peers when no other is left: without an answer they
//! would wait for their whole timeout.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use rdma::Result;

use super::wire::{self, Kind, MAX_FRAME};
use crate::protocol::{Refuse, RefuseCode};
use crate::wait::{self, spare_descriptor};

/// A descriptor that is open for no purpose but to be closed.
pub(super) struct Spare(Option<wait::Spare>);

impl Spare {
    pub(super) fn new() -> Result<Self> {
        spare_descriptor().map(Some).map(Self)
    }

    /// Refuses the peers that wait at a listener, up to `limit`, if accept(2) has failed for lack
    /// of descriptors.
    pub(super) fn refuse_peers(&mut self, listener: &TcpListener, limit: usize, error: &io::Error) {
        if !matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
            return;
        }
        // Each peer's socket takes the place of the spare, and of the socket before it. Another
        // thread may take the place first: then the peers wait until the next try.
        self.0 = None;
        for _ in 0..limit {
            match listener.accept() {
                Ok((stream, _)) => refuse(stream),
                Err(_) => break,
            }
        }
        self.0 = spare_descriptor().ok();
    }
}

fn refuse(mut stream: TcpStream) {
    if stream.set_nonblocking(true).is_err() {
        return;
    }
    // A socket that is closed with unread bytes resets the connection.
    let _nothing = stream.read(&mut [0; MAX_FRAME]);
    let refuse = Refuse::new(RefuseCode::Busy, "the node has no descriptor for another connection");
    let _gone = stream.write(&wire::encode(Kind::Refuse, &refuse.to_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_learn_that_no_descriptor_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let peers = [(); 3].map(|()| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let mut spare = Spare::new().unwrap();
        spare.refuse_peers(&listener, 8, &io::Error::from_raw_os_error(libc::ENOMEM));
        spare.refuse_peers(&listener, 8, &io::Error::from_raw_os_error(libc::EMFILE));
        assert!(spare.0.is_some(), "for the next shortage");
        for mut peer in peers {
            let mut bytes = Vec::new();
            peer.read_to_end(&mut bytes).unwrap();
            let (kind, len) = wire::decode(&bytes).unwrap().unwrap();
            let refuse = Refuse::from_bytes(wire::body(&bytes[..len])).unwrap();
            assert_eq!((kind, refuse.code), (Kind::Refuse, RefuseCode::Busy));
        }
    }
}
