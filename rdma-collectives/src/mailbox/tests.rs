use super::*;
use crate::testing::ranks;
use crate::transport::Transport;

fn mailbox(comm: &mut Communicator) -> Mailbox {
    let rank = comm.rank();
    Mailbox::new(comm.split(0, rank).unwrap()).unwrap()
}

/// The elements of a message, which its sender, its receiver and its number tell.
fn message(from: usize, to: usize, number: usize, count: usize) -> Vec<u32> {
    (0..count).map(|index| u32::try_from(index * 64 + from * 16 + to * 4 + number).unwrap()).collect()
}

const LENGTHS: [usize; 7] = [0, 1, 3, 1000, 1024, 2049, 200_001];

#[test]
fn no_message_waits_for_another_in_whatever_order_they_are_posted() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(3, transport, move |mut comm, _| {
            let (mailbox, rank) = (mailbox(&mut comm), comm.rank());
            let peers = || (0..3).filter(|&peer| peer != rank);
            for count in LENGTHS {
                // The last message of a rank is received first.
                let mut came = Vec::new();
                for peer in peers() {
                    for number in (0..3).rev() {
                        let receive = mailbox.recv(vec![0; count], Some(peer), number as u64).unwrap();
                        came.push((peer, number, receive));
                    }
                }
                let sent: Vec<_> = peers()
                    .flat_map(|peer| (0..3).map(move |number| (peer, number)))
                    .map(|(peer, number)| {
                        mailbox.send(message(rank, peer, number, count), peer, number as u64).unwrap()
                    })
                    .collect();
                for (peer, number, receive) in came {
                    let (elements, from) = receive.wait().unwrap();
                    assert_eq!(from, peer);
                    assert!(elements == message(peer, rank, number, count), "{transport}: {count}");
                }
                for sent in sent {
                    sent.wait().unwrap();
                }
            }
            mailbox.finish();
        });
    }
}

#[test]
fn messages_of_one_tag_come_in_order_and_from_any_rank() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(3, transport, move |mut comm, _| {
            let (mailbox, rank) = (mailbox(&mut comm), comm.rank());
            if rank > 0 {
                let sent: Vec<_> =
                    (0..4).map(|number| mailbox.send(message(rank, 0, number, 5000), 0, 7).unwrap()).collect();
                for sent in sent {
                    sent.wait().unwrap();
                }
            } else {
                let mut next = [0; 3];
                for _ in 0..8 {
                    let (elements, from) = mailbox.recv(vec![0; 5000], None, 7).unwrap().wait().unwrap();
                    assert_eq!(elements, message(from, 0, next[from], 5000));
                    next[from] += 1;
                }
                assert_eq!(next, [0, 4, 4]);
            }
            mailbox.finish();
        });
    }
}

#[test]
fn a_message_of_another_length_fails_at_its_receiver_alone() {
    ranks(2, Transport::Auto, |mut comm, _| {
        let (mailbox, rank) = (mailbox(&mut comm), comm.rank());
        if rank == 0 {
            for count in [10, 10_000] {
                mailbox.send(vec![1_u8; count], 1, 0).unwrap().wait().unwrap();
            }
            mailbox.send(vec![7_u8; 3], 1, 0).unwrap().wait().unwrap();
        } else {
            for count in [9, 20_000] {
                let error = mailbox.recv(vec![0_u8; count], Some(0), 0).unwrap().wait().unwrap_err();
                assert!(error.to_string().starts_with("rank 0 sent 10"), "{error}");
                assert_eq!(error.memory.unwrap(), vec![0; count]);
            }
            assert_eq!(mailbox.recv(vec![0_u8; 3], None, 0).unwrap().wait().unwrap(), (vec![7; 3], 0));
        }
        mailbox.finish();
    });
}

#[test]
fn a_mailbox_that_is_dropped_fails_its_messages() {
    ranks(2, Transport::Auto, |mut comm, group| {
        let mailbox = mailbox(&mut comm);
        let never = mailbox.recv(vec![0_u8; 3], Some(1 - comm.rank()), 0).unwrap();
        drop(mailbox);
        let error = never.wait().unwrap_err();
        assert_eq!(error.memory, Some(vec![0; 3]));
        group.barrier("the end of the mailboxes").unwrap();
    });
}

#[test]
fn the_end_of_the_job_ends_the_messages_with_the_reason() {
    crate::testing::start(2, Transport::Auto, |mut comm, mut group| {
        let (mailbox, rank) = (mailbox(&mut comm), comm.rank());
        if rank == 1 {
            group.barrier("the receive").unwrap();
            comm.aborter().abort("no paper");
            return;
        }
        let never = mailbox.recv(vec![0_u8; 3], Some(1), 0).unwrap();
        group.barrier("the receive").unwrap();
        let error = never.wait().unwrap_err().error;
        assert!(error.to_string().contains("no paper"), "{error}");
        let later = mailbox.send(vec![0_u8; 3], 1, 0).unwrap().wait().unwrap_err();
        assert!(later.to_string().contains("no paper"), "{later}");
    });
}

#[test]
fn messages_that_nobody_can_receive_are_refused() {
    ranks(2, Transport::Auto, |mut comm, _| {
        let (mailbox, rank) = (mailbox(&mut comm), comm.rank());
        let refused = |peer| mailbox.send(vec![1_u8], peer, 0).unwrap_err().to_string();
        assert_eq!(refused(2), "rank 2 is not below the number of ranks, 2");
        assert_eq!(refused(rank), format!("rank {rank} is this one: a message is for another"));
        assert!(mailbox.recv(vec![1_u8], Some(rank), 0).is_err());
        mailbox.finish();
    });
}

#[test]
fn no_piece_ends_inside_of_an_element() {
    for ranks in 1..=4096 {
        let piece = piece(ranks);
        assert!(piece % ALIGNMENT == 0 && (PIECES.0..=PIECES.1).contains(&piece), "{ranks}: {piece}");
    }
}
