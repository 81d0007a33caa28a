//! The double binary tree: two trees over the same ranks, each for one half of the bytes.
//!
//! In the first tree, rank 0 is the root and the others form a binary search tree: a rank whose
//! lowest set bit is `b` has its parent `b` places to the left or to the right, where the lowest
//! set bit is larger. Odd ranks are leaves. The second tree is the first one mirrored, or rotated
//! by one rank if the number of ranks is odd, so that no rank has more than three children in both:
//! a rank sends and receives about as much as every other.

use std::ops::Range;

/// The parent of a rank in the first tree; `None` for rank 0.
fn parent(ranks: usize, rank: usize) -> Option<usize> {
    if rank == 0 {
        return None;
    }
    let bit = rank & rank.wrapping_neg();
    let left = rank - bit;
    let right = rank + bit;
    // Exactly one of the two neighbours at this distance has `2 bit` as its lowest set bit.
    let up = if left & (2 * bit) != 0 { left } else { right };
    Some(if up < ranks { up } else { left })
}

/// The parent of a rank in the second tree; `None` for its root.
fn second_parent(ranks: usize, rank: usize) -> Option<usize> {
    parent(ranks, place(ranks, rank)).map(|up| rank_at(ranks, up))
}

/// The rank of the first tree whose place a rank has in the second tree.
fn place(ranks: usize, rank: usize) -> usize {
    if ranks % 2 == 0 { ranks - 1 - rank } else { (rank + ranks - 1) % ranks }
}

/// The rank at a place of the second tree.
fn rank_at(ranks: usize, place: usize) -> usize {
    if ranks % 2 == 0 { ranks - 1 - place } else { (place + 1) % ranks }
}

/// The number of edges from the deepest leaf to the root, at most.
pub(super) fn depth(ranks: usize) -> usize {
    ranks.next_power_of_two().ilog2() as usize
}

/// The latency from the deepest leaf to the root: the sum, over the levels of the trees, of the
/// largest latency between a child and its parent.
pub(super) fn path(ranks: usize, latency: impl Fn(usize, usize) -> f64) -> f64 {
    let mut levels = [0.0_f64; usize::BITS as usize];
    for child in 1..ranks {
        let Some(up) = parent(ranks, child) else { continue };
        let second = latency(rank_at(ranks, child), rank_at(ranks, up));
        let level = &mut levels[child.trailing_zeros() as usize];
        *level = level.max(latency(child, up)).max(second);
    }
    levels.iter().sum()
}

/// The edges of both trees whose child is one of the given ranks, as pairs of child and parent.
pub(super) fn edges(ranks: usize, children: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    children.flat_map(move |child| {
        [parent(ranks, child), second_parent(ranks, child)].into_iter().flatten().map(move |up| (child, up))
    })
}

/// The larger number of messages out of, or into, a group of consecutive ranks.
///
/// Edges into a group are as many as its ranks have children elsewhere; they are found from the
/// parents' side, so that a group costs time in proportion to its length.
pub(super) fn crossing(ranks: usize, group: &Range<usize>, both_ways: bool) -> usize {
    let up = edges(ranks, group.clone()).filter(|(_, parent)| !group.contains(parent)).count();
    let down = children(ranks, group.clone()).filter(|(child, _)| !group.contains(child)).count();
    if both_ways { up + down } else { up.max(down) }
}

/// The number of messages between ranks of a group.
pub(super) fn inside(ranks: usize, group: &Range<usize>, both_ways: bool) -> usize {
    let up = edges(ranks, group.clone()).filter(|(_, parent)| group.contains(parent)).count();
    if both_ways { 2 * up } else { up }
}

/// The most messages that a rank of a group sends to, or receives from, others of the group.
pub(super) fn port(ranks: usize, group: &Range<usize>, both_ways: bool) -> usize {
    let of = |rank: usize| {
        let up = edges(ranks, rank..rank + 1).filter(|(_, parent)| group.contains(parent)).count();
        let down = children(ranks, rank..rank + 1).filter(|(child, _)| group.contains(child)).count();
        if both_ways { up + down } else { up.max(down) }
    };
    group.clone().map(of).max().unwrap_or(0)
}

/// The edges of both trees whose parent is one of the given ranks, as pairs of child and parent.
fn children(ranks: usize, parents: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    parents.flat_map(move |up| {
        let first = first_children(ranks, up).map(move |child| (child, up));
        first.chain(first_children(ranks, place(ranks, up)).map(move |child| (rank_at(ranks, child), up)))
    })
}

/// The children of a rank in the first tree: candidates are at the distance of each power of two
/// below the rank's lowest set bit.
fn first_children(ranks: usize, up: usize) -> impl Iterator<Item = usize> {
    let limit = if up == 0 { ranks.next_power_of_two() } else { up & up.wrapping_neg() };
    let distances = (0..usize::BITS).map(|bit| 1_usize << bit).take_while(move |&distance| distance < limit);
    let candidates = distances.flat_map(move |distance| [up.checked_sub(distance), up.checked_add(distance)]);
    candidates.flatten().filter(move |&child| child < ranks && parent(ranks, child) == Some(up))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_trees_reach_their_root() {
        for ranks in 1..=130 {
            for up in [parent, second_parent] {
                let roots = (0..ranks).filter(|&rank| up(ranks, rank).is_none()).count();
                assert_eq!(roots, 1, "{ranks}");
                for rank in 0..ranks {
                    let hops = std::iter::successors(Some(rank), |&at| up(ranks, at)).count() - 1;
                    assert!(hops <= depth(ranks), "{rank} of {ranks}: {hops}");
                }
            }
        }
    }

    #[test]
    fn ranks_with_two_children_are_leaves_in_the_other_tree() {
        for ranks in 2..=130 {
            let count = |up: fn(usize, usize) -> Option<usize>, rank| {
                (0..ranks).filter(|&child| up(ranks, child) == Some(rank)).count()
            };
            for rank in 0..ranks {
                let (first, second) = (count(parent, rank), count(second_parent, rank));
                assert!(first <= 2 && second <= 2 && first + second <= 3, "{rank} of {ranks}");
            }
        }
    }

    #[test]
    fn children_are_the_reverse_of_parents() {
        for ranks in 1..=70 {
            let mut down: Vec<_> = children(ranks, 0..ranks).collect();
            let mut up: Vec<_> = edges(ranks, 0..ranks).collect();
            down.sort_unstable();
            up.sort_unstable();
            assert_eq!(down, up, "{ranks}");
        }
    }
}
