use super::*;
use crate::messages::Transfer;
use crate::testing::{start_tuned, tuning};
use crate::transport::Transport;

/// Rank 0 loses the connection to rank 2, after a notice of it has come that nobody has looked at:
/// as when a device flushes the receives of a rank whose peer has done its part and gone.
#[test]
fn only_who_needs_a_peer_that_has_gone_fails() {
    for by_messages in [false, true] {
        let tuning = Tuning { transport: Transport::Verbs, watch_memory: false, by_messages, ..tuning() };
        start_tuned(3, tuning, move |comm, mut group| {
            let mut comm = comm.unwrap();
            comm.barrier().unwrap();
            group.barrier("the end of the operation").unwrap();
            let fabric = &mut comm.fabrics[0];
            if group.rank() == 2 {
                let notices = fabric.notices;
                let peer = peer(&mut fabric.peers, 0).unwrap();
                peer.notify(notices, Lane::Ring, true).unwrap();
                let last = peer.counts.posted;
                // It is then in the completion queue of rank 0.
                fabric.wait_complete(0, last).unwrap();
            }
            group.barrier("the notice").unwrap();
            match group.rank() {
                0 => {
                    let number = peer(&mut fabric.peers, 2).unwrap().counts.received[Lane::Ring as usize] + 1;
                    peer(&mut fabric.peers, 2).unwrap().qp.set_error().unwrap();
                    fabric.wait_for(2, Lane::Ring, number).unwrap();
                    let failed = fabric.wait_for(2, Lane::Ring, number + 1).unwrap_err();
                    assert!(failed.is_effect() && failed.to_string().contains("a message from rank 2"), "{failed}");
                    assert!(fabric.has_sent(2, Lane::Ring, number).unwrap());
                    fabric.has_sent(2, Lane::Ring, number + 1).unwrap_err();
                    fabric.notify(2, Lane::FreeSlots).unwrap();

                    let mut came = [0_u8; 3];
                    comm.exchange(&mut [Transfer::send(&[1, 2, 3], 1), Transfer::recv(&mut came, 1)]).unwrap();
                    assert_eq!(came, [4, 5, 6]);
                    assert_eq!(comm.recv_any(&mut came).unwrap(), 1);
                    assert_eq!(came, [7, 8, 9]);
                    assert!(comm.recv(&mut came, 2).unwrap_err().is_effect());
                }
                1 => {
                    let mut came = [0_u8; 3];
                    comm.exchange(&mut [Transfer::send(&[4, 5, 6], 0), Transfer::recv(&mut came, 0)]).unwrap();
                    assert_eq!(came, [1, 2, 3]);
                    comm.send(&[7_u8, 8, 9], 0).unwrap();
                }
                _ => {}
            }
            group.conclude(Ok(())).unwrap();
        });
    }
}
