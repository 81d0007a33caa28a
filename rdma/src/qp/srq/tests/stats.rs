//! What a shared receive queue counts.

use super::*;

/// Posted, received, in flight.
fn counts(rig: &Rig) -> (u64, u64, u32) {
    let SrqStats { posted, received, in_flight, .. } = rig.srq.stats();
    (posted, received, in_flight)
}

#[test]
fn posts_completions_and_refusals_are_counted() {
    let mut rig = Rig::new();
    assert_eq!(rig.srq.stats(), SrqStats::default());
    let names: Vec<u64> = (0..3).map(|token| rig.post(token)).collect();
    rig.complete(names[1]);
    assert_eq!(counts(&rig), (3, 0, 3), "a completion that nobody has polled");
    assert!(rig.next().is_some());
    assert_eq!(counts(&rig), (3, 1, 2));

    let other = rig.context.alloc_pd().unwrap().allocate(8).unwrap();
    rig.srq.post_recv(other, 1).unwrap_err();
    fail_post(0, libc::EINVAL, BadWr::Chain);
    rig.srq.post_recv(rig.buffer(), 1).unwrap_err();
    fail_post(0, libc::ENOMEM, BadWr::Chain);
    rig.srq.post_recv(rig.buffer(), 1).unwrap_err();
    let stats = rig.srq.stats();
    assert_eq!((stats.posted, stats.refused, stats.refused_full, stats.in_flight), (3, 3, 1, 2));

    // The device may have a receive that it does not blame.
    fail_post(1, libc::EIO, BadWr::Null);
    rig.srq.post_recv(rig.buffer(), 1).unwrap_err();
    assert_eq!(rig.srq.stats(), SrqStats { posted: 4, in_flight: 3, ..stats });
    assert_eq!(rig.srq.into_poster().stats().unwrap().posted, 4);
}

#[test]
#[allow(clippy::mem_forget, reason = "safe code may do that")]
fn a_batch_counts_what_was_posted_of_it() {
    let mut rig = Rig::new();
    for forgets in [false, true] {
        let mut batch = rig.srq.batch();
        for token in 0..3 {
            batch.push(rig.pd.allocate(16).unwrap(), token).unwrap();
        }
        if forgets {
            std::mem::forget(batch);
        } else {
            drop(batch);
        }
        assert_eq!(rig.srq.stats(), SrqStats::default(), "{forgets}");
    }
    fail_post(2, libc::EINVAL, BadWr::Chain);
    let mut batch = rig.srq.batch();
    for token in 0..5 {
        batch.push(rig.pd.allocate(16).unwrap(), token).unwrap();
    }
    drop(batch.submit().unwrap_err());
    let stats = rig.srq.stats();
    assert_eq!((stats.posted, stats.refused, stats.in_flight), (2, 3, 2));
    post_batch(&mut rig, 0..4);
    assert_eq!(counts(&rig), (6, 0, 6));
}

/// Against a count by hand, past many searches for free slots: at the start of a batch and amid it,
/// in vain, and with batches that are never posted.
#[test]
#[allow(clippy::mem_forget, reason = "safe code may do that")]
fn no_search_for_slots_miscounts() {
    let mut rig = Rig::new();
    let (mut posted, mut received, mut refused) = (0, 0, 0);
    let mut in_flight = Vec::new();
    for round in 0..400_u64 {
        let before = testing::posted_to_srq(rig.srq.as_raw()).len();
        let mut batch = rig.srq.batch();
        for token in 0..round % 5 {
            refused += u64::from(batch.push(rig.pd.allocate(8).unwrap(), token).is_err());
        }
        match round % 7 {
            0 => drop(batch),
            // Leaks its memory.
            1 => std::mem::forget(batch),
            _ => batch.submit().unwrap(),
        }
        refused += u64::from(rig.srq.post_recv(rig.buffer(), 9).is_err());
        let new: Vec<u64> = testing::posted_to_srq(rig.srq.as_raw())[before..].iter().map(|wr| wr.wr_id).collect();
        posted += new.len() as u64;
        in_flight.extend(new);
        // Now and then more receives stay than half of the slots.
        let stay = if round % 50 < 25 { 2 } else { SLOTS as usize / 2 + 3 };
        while in_flight.len() > stay {
            rig.complete(in_flight.remove(in_flight.len() / 2));
            assert!(rig.next().is_some());
            received += 1;
        }
        assert_eq!(counts(&rig), (posted, received, u32::try_from(in_flight.len()).unwrap()), "round {round}");
        assert_eq!(rig.srq.stats().refused, refused);
    }
    assert!(refused > 0 && posted > u64::from(20 * SLOTS), "{posted} posted, {refused} refused");
    let most = rig.srq.stats().most_in_flight;
    assert!((SLOTS / 2 + 1..=SLOTS).contains(&most), "{most}");
}
