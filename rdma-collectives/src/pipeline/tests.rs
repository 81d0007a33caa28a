use super::*;

/// Whether messages of a step go into the right neighbour's scratch memory.
fn uses_scratch(plan: &Pipeline, step: usize) -> bool {
    step < plan.world - 1
}

/// Runs the schedules of all ranks with vectors in place of memory, and checks that at most
/// `slots` scratch messages are unread.
fn play(world: usize, count: usize, chunk: usize, lead: usize) {
    let plans: Vec<Pipeline> = (0..world).map(|r| Pipeline::new(r, world, count, chunk, lead)).collect();
    let input = |rank: usize, i: usize| (i * 31 + rank * 7) as u64 % 1000;
    let mut out = vec![vec![u64::MAX; count]; world];
    // The messages in flight from each rank's left neighbour.
    let mut wires: Vec<std::collections::VecDeque<(Message, Vec<u64>)>> = vec![Default::default(); world];
    let order = |plan: &Pipeline| (0..plan.ticks()).flat_map(|t| plan.messages(t)).collect::<Vec<_>>();
    let mut orders: Vec<Vec<Message>> = plans.iter().map(|p| order(p).into_iter().rev().collect()).collect();
    let slots = (lead + 1) * (world - 1);
    let mut received = vec![Vec::new(); world];
    loop {
        let mut moved = false;
        for rank in 0..world {
            let plan = &plans[rank];
            let Some(&next) = orders[rank].last() else { continue };
            let right = (rank + 1) % world;
            let unread = wires[right].iter().filter(|(m, _)| uses_scratch(plan, m.step)).count();
            if uses_scratch(plan, next.step) && unread >= slots {
                continue;
            }
            let data = if next.step == 0 {
                plan.sent(next).map(|i| input(rank, i)).collect()
            } else {
                // The next message to send determines the expected message: the one of the step
                // before.
                let Some((message, mut data)) = wires[rank].pop_front() else { continue };
                received[rank].push(message);
                assert_eq!(message, Message { step: next.step - 1, ..next }, "world {world}");
                let place = plan.received(message);
                assert_eq!(place, plan.sent(next));
                match plan.action(message.step) {
                    Action::Reduce => place.zip(&mut data).for_each(|(i, d)| *d += input(rank, i)),
                    Action::Finish => {
                        place.clone().zip(&mut data).for_each(|(i, d)| *d += input(rank, i));
                        out[rank][place].copy_from_slice(&data);
                    }
                    Action::Forward => out[rank][place].copy_from_slice(&data),
                    Action::Keep => panic!("nothing passes on what is kept"),
                }
                data
            };
            orders[rank].pop();
            wires[right].push_back((next, data));
            moved = true;
        }
        // Takes out results that are only kept, whenever one is next.
        for rank in 0..world {
            while let Some((m, _)) = wires[rank].front() {
                if plans[rank].action(m.step) != Action::Keep {
                    break;
                }
                let Some((m, data)) = wires[rank].pop_front() else { break };
                received[rank].push(m);
                out[rank][plans[rank].received(m)].copy_from_slice(&data);
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    assert!(orders.iter().all(Vec::is_empty), "stuck: world {world} count {count} chunk {chunk} lead {lead}");
    for rank in 0..world {
        let sent = order(&plans[(rank + world - 1) % world]);
        assert_eq!(received[rank], sent, "messages arrive in the order of the left neighbour's schedule");
        for (i, value) in out[rank].iter().enumerate() {
            assert_eq!(*value, (0..world).map(|r| input(r, i)).sum::<u64>(), "rank {rank} element {i}");
        }
    }
}

#[test]
fn every_rank_ends_with_the_sum() {
    for world in 2..=7 {
        for count in [1, 2, 15, 16, 17, 100, 1000, 4099] {
            for chunk in [1, 16, 50, 4096] {
                for lead in [1, 2, 3] {
                    play(world, count, chunk, lead);
                }
            }
        }
    }
}

#[test]
fn segments_cover_the_elements_once() {
    for (world, count, chunk) in [(2, 1000, 64), (3, 7, 64), (4, 1 << 20, 4096), (5, 12345, 100)] {
        let plan = Pipeline::new(0, world, count, chunk, 1);
        let mut covered: Vec<usize> = (0..plan.blocks)
            .flat_map(|block| (0..world).map(move |segment| (block, segment)))
            .flat_map(|(block, segment)| plan.segment(block, segment))
            .collect();
        covered.sort_unstable();
        assert!(covered.into_iter().eq(0..count));
    }
}
