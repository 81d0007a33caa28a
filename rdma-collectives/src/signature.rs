//! What an operation is, as a few words that ranks compare in the background.
//!
//! The words hold all that is equal at all ranks: the collective, the type and number of elements,
//! the reduction, the root, how the operation is done and in which kind of memory.

use crate::bootstrap::Signature;
use crate::collective::Collective;
use crate::element::{DataType, Reduction};
use crate::operation::{Executor, Request};
use crate::schedule::{Algorithm, of_identity};

/// A field of the first word: its lowest bit, and the number of bits.
type Field = (u32, u32);

const OP: Field = (0, 8);
const ELEMENT: Field = (8, 8);
const REDUCTION: Field = (16, 8);
const ALGORITHM: Field = (24, 8);
const EXECUTOR: Field = (32, 4);
const IN_SLICES: Field = (36, 1);
const IN_PLACE: Field = (37, 1);
const OUTLINE: Field = (38, 1);
const ROOT: Field = (40, 24);

/// Values of `OP` beside those of [`Collective`].
const RUN: u64 = 253;
const ALLOCATION: u64 = 254;
const SPLIT: u64 = 255;
/// Executors by their number.
const EXECUTORS: [Executor; 3] = [Executor::Fused, Executor::Reads, Executor::Steps];

/// The allocation of a tensor.
pub(crate) const OF_ALLOCATION: Signature = [ALLOCATION << OP.0, 0, 0];
/// The split of a communicator.
pub(crate) const OF_SPLIT: Signature = [SPLIT << OP.0, 0, 0];

/// The signature of an operation on tensors. `tells_place` says whether other ranks rely on where
/// this rank's input lies.
pub(crate) fn of(
    request: &Request,
    element: DataType,
    algorithm: Algorithm,
    executor: Executor,
    tells_place: bool,
) -> Signature {
    let Request { op, count, ref counts, root, in_place, reduction, .. } = *request;
    let reduction = if op.reduces() { reduction as u64 } else { 0 };
    let root = if op.has_root() { root as u64 } else { 0 };
    let fields = [
        (OP, op as u64),
        (ELEMENT, element as u64),
        (REDUCTION, reduction),
        (ALGORITHM, algorithm as u64),
        (EXECUTOR, executor as u64),
        (IN_PLACE, u64::from(in_place && tells_place)),
        (ROOT, root),
    ];
    let word = fields.into_iter().fold(0, |word, (field, value)| word | shifted(field, value));
    if counts.is_empty() {
        return [word, count as u64, 0];
    }
    let all = counts.iter().fold(0, |all: u64, &count| all.saturating_add(count as u64));
    let hash = counts.iter().fold(counts.len() as u64, |hash, &count| {
        (hash.rotate_left(7) ^ count as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    // 0 says that there are no counts.
    [word, all, hash.max(1)]
}

/// The signature of the same operation on slices of the program, which is done out of place, and in
/// pieces by executors of their own.
pub(crate) fn in_slices([word, count, counts]: Signature) -> Signature {
    let of_tensors = shifted(IN_PLACE, 1) | shifted(EXECUTOR, u64::MAX);
    [word & !of_tensors | shifted(IN_SLICES, 1), count, counts]
}

/// The signature of a schedule of the program.
pub(crate) fn of_run(identity: u64, element: DataType, reduction: Reduction) -> Signature {
    let reduces = of_identity(identity).is_none_or(|(op, _)| op.reduces());
    let reduction = if reduces { reduction as u64 } else { 0 };
    let fields = [(OP, RUN), (ELEMENT, element as u64), (REDUCTION, reduction)];
    [fields.into_iter().fold(0, |word, (field, value)| word | shifted(field, value)), identity, 0]
}

/// What an aggregator does alike, which has neither input nor output: the operation without its
/// numbers of elements, and what follows from them.
pub(crate) fn outline([word, count, _]: Signature) -> Signature {
    let kept = [OP, ELEMENT, REDUCTION, IN_SLICES, ROOT].into_iter().fold(0, |kept, of| kept | shifted(of, u64::MAX));
    let is_run = (word >> OP.0) & 0xff == RUN;
    [word & kept | shifted(OUTLINE, 1), if is_run { count } else { 0 }, 0]
}

/// The signature of the first step of an all-to-all of different lengths, in which the ranks tell
/// each other their counts.
pub(crate) fn of_counts(element: DataType, in_tensors: bool) -> Signature {
    let fields = [(OP, Collective::AllToAllV as u64), (ELEMENT, element as u64), (IN_SLICES, u64::from(!in_tensors))];
    [fields.into_iter().fold(0, |word, (field, value)| word | shifted(field, value)), 0, 0]
}

/// The signature of a barrier, which is an all-reduce.
pub(crate) fn of_barrier([word, count, counts]: Signature) -> Signature {
    [word & !shifted(OP, u64::MAX) | shifted(OP, Collective::Barrier as u64), count, counts]
}

/// Texts of two operations of which other ranks have told, with what tells them apart.
pub(crate) fn describe(pair: [Signature; 2]) -> [String; 2] {
    let is_outline = pair.iter().any(|signature| outline(*signature) == *signature);
    let pair = if is_outline { pair.map(outline) } else { pair };
    let [one, other] = pair.map(|signature| text(signature, false));
    if one != other || pair[0] == pair[1] { [one, other] } else { pair.map(|signature| text(signature, true)) }
}

fn shifted((at, bits): Field, value: u64) -> u64 {
    (value & ((1 << bits) - 1)) << at
}

fn text([word, count, counts]: Signature, is_detailed: bool) -> String {
    let field = |(at, bits): Field| (word >> at) & ((1 << bits) - 1);
    let index = |of: Field| usize::try_from(field(of)).unwrap_or(usize::MAX);
    let op = match field(OP) {
        ALLOCATION => return "the allocation of a tensor".to_owned(),
        SPLIT => return "a split of the communicator".to_owned(),
        RUN => return text_of_run(count, field(ELEMENT), field(REDUCTION), is_detailed),
        _ => Collective::ALL.get(index(OP)),
    };
    let Some(&op) = op else { return "an unknown operation".to_owned() };
    if op == Collective::Barrier && !is_detailed {
        return op.to_string();
    }
    let element = DataType::ALL.get(index(ELEMENT)).map_or("", |element| element.name());
    let in_slices = field(IN_SLICES) == 1;
    let memory = if in_slices { "slices" } else { "tensors" };
    if op == Collective::AllToAllV && counts == 0 {
        return if is_detailed { format!("{op} of {element} in {memory}") } else { format!("{op} of {element}") };
    }
    let is_outline = field(OUTLINE) == 1;
    let mut text = if is_outline { format!("{op} of {element}") } else { format!("{op} of {count} x {element}") };
    if counts != 0 {
        text.push_str(" in blocks of different lengths");
    }
    if let Some(reduction) = Reduction::ALL.get(index(REDUCTION)).filter(|_| op.reduces()) {
        text.push_str(&format!(" by {reduction}"));
    }
    if op.has_root() {
        let way = if matches!(op, Collective::Broadcast | Collective::Scatter) { "from" } else { "to" };
        text.push_str(&format!(" {way} rank {}", field(ROOT)));
    }
    if is_detailed && is_outline {
        text.push_str(&format!(" in {memory}"));
    } else if is_detailed {
        let place = if field(IN_PLACE) == 1 { " in place" } else { "" };
        let algorithm = Algorithm::ALL.get(index(ALGORITHM)).map_or("an unknown algorithm", |known| known.name());
        text.push_str(&format!(" in {memory}{place} (by {algorithm}"));
        if let Some(executor) = EXECUTORS.get(index(EXECUTOR)).filter(|_| !in_slices) {
            text.push_str(&format!(", {executor:?}").to_lowercase());
        }
        if counts != 0 {
            text.push_str(&format!(", with counts of hash {counts:016x}"));
        }
        text.push(')');
    }
    text
}

/// The text of a schedule of the program.
fn text_of_run(identity: u64, element: u64, reduction: u64, is_detailed: bool) -> String {
    let known = |index: u64| usize::try_from(index).unwrap_or(usize::MAX);
    let element = DataType::ALL.get(known(element)).map_or("", |element| element.name());
    let (mut text, reduces) = match of_identity(identity) {
        Some((op, algorithm)) => (format!("a schedule of {op} by {algorithm}, of {element}"), op.reduces()),
        None => (format!("a schedule of {element}"), true),
    };
    if let Some(reduction) = Reduction::ALL.get(known(reduction)).filter(|_| reduces) {
        text.push_str(&format!(" by {reduction}"));
    }
    if is_detailed {
        text.push_str(&format!(" (identity {identity:016x})"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(request: &Request) -> Signature {
        of(request, DataType::F32, Algorithm::Ring, Executor::Steps, true)
    }

    fn told(one: Signature, other: Signature) -> String {
        let [one, other] = describe([one, other]);
        format!("{one} | {other}")
    }

    #[test]
    fn what_differs_is_told() {
        let request = |op, count| Request::new(op, count);
        let sums = request(Collective::AllReduce, 1024);
        let own = signature(&sums);
        let broadcast = Request { root: 2, ..request(Collective::Broadcast, 16) };
        let broadcast = of(&broadcast, DataType::F64, Algorithm::Tree, Executor::Steps, false);
        assert_eq!(told(own, broadcast), "all_reduce of 1024 x f32 by sum | broadcast of 16 x f64 from rank 2");
        let ours = "all_reduce of 1024 x f32 by sum";
        let max = signature(&Request { reduction: Reduction::Max, ..sums.clone() });
        assert_eq!(told(own, max), format!("{ours} | all_reduce of 1024 x f32 by max"));
        let bf16 = of(&sums, DataType::Bf16, Algorithm::Ring, Executor::Steps, true);
        assert_eq!(told(bf16, own), format!("all_reduce of 1024 x bf16 by sum | {ours}"));
        assert_eq!(
            told(own, in_slices(own)),
            format!("{ours} in tensors (by ring, steps) | {ours} in slices (by ring)")
        );
        let in_place = signature(&Request { in_place: true, ..sums.clone() });
        assert_eq!(in_slices(own), in_slices(in_place));
        let tree = of(&sums, DataType::F32, Algorithm::Tree, Executor::Fused, true);
        assert_eq!(told(own, tree), format!("{ours} in tensors (by ring, steps) | {ours} in tensors (by tree, fused)"));
        assert!(told(own, in_place).contains("in tensors (by ring, steps) | "), "{}", told(own, in_place));
        assert!(told(own, in_place).contains("in tensors in place ("), "{}", told(own, in_place));
        assert_eq!(told(of_barrier(own), OF_ALLOCATION), "barrier | the allocation of a tensor");
        assert_eq!(told(OF_SPLIT, OF_SPLIT), "a split of the communicator | a split of the communicator");
        let counts = |counts: &[usize]| Request { counts: counts.to_vec(), ..request(Collective::Gather, 0) };
        let (one, other) = (signature(&counts(&[1, 2, 3])), signature(&counts(&[3, 2, 1])));
        let text = told(one, other);
        assert!(
            one != other && text.starts_with("gather of 6 x f32 in blocks of different lengths to rank 0"),
            "{text}"
        );
        let [one, other] = describe([one, other]);
        assert_ne!(one, other);
    }

    #[test]
    fn what_counts_for_nothing_is_not_compared() {
        let gather = Request::new(Collective::AllGather, 7);
        let other = Request { root: 1, reduction: Reduction::Max, ..gather.clone() };
        assert_eq!(signature(&gather), signature(&other));
        let in_place = Request { in_place: true, ..gather.clone() };
        let of = |request| of(request, DataType::F32, Algorithm::Ring, Executor::Steps, false);
        assert_eq!(of(&gather), of(&in_place));
    }

    #[test]
    fn words_of_no_operation_have_a_text() {
        let mut word = 1_u64;
        for _ in 0..10_000 {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            for is_detailed in [false, true] {
                assert!(!text([word, word, word], is_detailed).is_empty());
            }
        }
    }
}
