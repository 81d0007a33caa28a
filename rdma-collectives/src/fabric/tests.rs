use super::*;
use crate::bootstrap::{Roles, Terms};
use crate::messages::Transfer;
use crate::placement::run_threads;
use crate::testing::{LONG, start_tuned, tuning};
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
                    assert!(comm.send(&[1_u8], 2).unwrap_err().is_effect());

                    // A request that its device never completes, as siw does after the end.
                    let fabric = &mut comm.fabrics[0];
                    let peer = peer(&mut fabric.peers, 2).unwrap();
                    assert!(peer.deaf.is_none(), "nothing was sent");
                    peer.counts.posted += 1;
                    let number = peer.counts.posted;
                    assert!(fabric.is_sent(2, number).unwrap_err().is_effect());
                    assert!(fabric.wait_complete(2, number).unwrap_err().is_effect());
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

/// Rank 0 sends so many pieces that their receiver tells it of free slots, and goes before that.
#[test]
fn notices_that_nobody_needs_fail_nobody() {
    let tuning = Tuning { transport: Transport::Verbs, watch_memory: false, chunk: 4096, ..tuning() };
    start_tuned(3, tuning, |comm, mut group| {
        let mut comm = comm.unwrap();
        let (rank, mut came) = (group.rank(), vec![0_u8; 4 * 4096]);
        if rank == 0 {
            comm.send(&vec![7_u8; came.len()], 1).unwrap();
            drop(comm);
            return group.barrier("the end of rank 0").and_then(|()| group.conclude(Ok(()))).unwrap();
        }
        group.barrier("the end of rank 0").unwrap();
        if rank == 1 {
            comm.recv(&mut came, 0).unwrap();
            assert!(came.iter().all(|&byte| byte == 7));
        }
        // Until the failure of the notice has come.
        loop {
            let is_known = rank == 1 && peer(&mut comm.fabrics[0].peers, 0).unwrap().deaf.is_some();
            let mut other = [0_u8];
            let own = [u8::from(is_known)];
            comm.exchange(&mut [Transfer::send(&own, 3 - rank), Transfer::recv(&mut other, 3 - rank)]).unwrap();
            if own[0] + other[0] > 0 {
                break;
            }
        }
        if rank == 1 {
            comm.send(&[1_u8], 0).unwrap_err();
        }
        group.conclude(Ok(())).unwrap();
    });
}

/// Ranks 1 and 2 are connected; rank 0 is not, and takes part. On its rail it would connect in the
/// other way.
#[test]
fn a_rank_without_peers_keeps_nobody_waiting() {
    let manager = Method::Manager(Ipv4Addr::LOCALHOST.into());
    for (of_peers, of_rank_0) in
        [(Method::Endpoints, Method::Endpoints), (Method::Endpoints, manager), (manager, Method::Endpoints)]
    {
        let terms = Terms::new("test", &(), Roles::Ranks, LONG);
        let connected = run_threads(3, &terms, |group| {
            let rank = group.rank();
            let (method, peers) = if rank == 0 { (of_rank_0, vec![]) } else { (of_peers, vec![3 - rank]) };
            let rail = Rail::new(&crate::testing::soft0(), method)?;
            let patience = Patience::new(group.watch(), true, LONG);
            // Rank 0 alone wants messages, which only peers have a say in.
            let tuning = Tuning { by_messages: rank == 0, ..tuning() };
            let mut fabric = Fabric::connect(&rail, group, &peers, &tuning, patience)?;
            for &peer in &peers {
                fabric.notify(peer, Lane::Ring)?;
                fabric.wait_for(peer, Lane::Ring, 1)?;
            }
            group.barrier("the notices")?;
            Ok::<_, Error>(fabric.notices)
        });
        let notices = connected.unwrap();
        assert!(notices.iter().all(|kind| *kind != Notices::Messages), "{of_peers:?} {of_rank_0:?}: {notices:?}");
    }
}
