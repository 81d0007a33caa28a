//! Vectors: the elements of one access of [`VECTOR`] bytes.
//!
//! Elements of four and eight bytes are loaded into their own registers. Smaller ones come as four
//! words, `%part0` to `%part3`.

use rdma_mem::Scalar;

use super::{Numbers, VECTOR, address, lines};

/// The registers of an access, each with its number, and their type in memory.
fn registers(scalar: Scalar, prefix: &str) -> String {
    let (count, kind) = match scalar.size() {
        1 | 2 => (4, "b32"),
        size => (VECTOR / size, Numbers::of(scalar).memory),
    };
    let prefix = if scalar.size() < 4 { "%part" } else { prefix };
    let names = (0..count).map(|number| format!("{prefix}{number}")).collect::<Vec<_>>().join(", ");
    format!("v{count}.{kind} {{{names}}}")
}

/// Loads a vector of the operand at `%entry` of the table: larger elements into registers with a
/// prefix.
pub(super) fn load(scalar: Scalar, prefix: &str) -> String {
    [address(), lines(&[&format!("ld.global.{}, [%address]", registers(scalar, prefix))])].join("\n")
}

/// Stores the vector of the values, which [`pack`] has packed, at `%address`.
pub(super) fn store(scalar: Scalar) -> String {
    let access = registers(scalar, "%value");
    let (kind, names) = access.split_once(' ').expect("a type and registers");
    lines(&[&format!("st.global.{kind} [%address], {names}")])
}

/// The register in which an element of a further operand is reduced.
pub(super) fn next(scalar: Scalar, lane: usize) -> String {
    if scalar.size() < 4 { "%other0".to_owned() } else { format!("%other{lane}") }
}

/// The word of an element, and the number of bits below it there.
fn place(scalar: Scalar, lane: usize) -> (usize, usize) {
    let byte = lane * scalar.size();
    (byte / 4, 8 * (byte % 4))
}

/// Takes an element out of the words.
pub(super) fn unpack(scalar: Scalar, lane: usize, to: &str) -> String {
    let (part, below) = place(scalar, lane);
    match scalar {
        Scalar::F16 => lines(&[
            &format!("shr.u32 %word, %part{part}, {below}"),
            "cvt.u16.u32 %bits, %word",
            &format!("cvt.f32.f16 {to}, %bits"),
        ]),
        // The upper half of an `f32`.
        Scalar::Bf16 if below == 0 => {
            lines(&[&format!("shl.b32 %word, %part{part}, 16"), &format!("mov.b32 {to}, %word")])
        }
        Scalar::Bf16 => lines(&[&format!("and.b32 %word, %part{part}, 0xffff0000"), &format!("mov.b32 {to}, %word")]),
        Scalar::I8 => {
            lines(&[&format!("shl.b32 %word, %part{part}, {}", 24 - below), &format!("shr.s32 {to}, %word, 24")])
        }
        Scalar::U8 => lines(&[&format!("shr.u32 %word, %part{part}, {below}"), &format!("and.b32 {to}, %word, 0xff")]),
        _ => String::new(),
    }
}

/// Puts the value of an element into the words, the elements of a word in order.
pub(super) fn pack(scalar: Scalar, lane: usize) -> String {
    let (part, below) = place(scalar, lane);
    let bits = match scalar {
        Scalar::F16 => lines(&[&format!("cvt.rn.f16.f32 %bits, %value{lane}"), "cvt.u32.u16 %word, %bits"]),
        Scalar::Bf16 => lines(&[&format!("mov.b32 %word, %value{lane}"), "shr.u32 %word, %word, 16"]),
        Scalar::I8 | Scalar::U8 => lines(&[&format!("and.b32 %word, %value{lane}, 0xff")]),
        _ => return String::new(),
    };
    let place = match below {
        0 => lines(&[&format!("mov.b32 %part{part}, %word")]),
        _ => lines(&[&format!("shl.b32 %word, %word, {below}"), &format!("or.b32 %part{part}, %part{part}, %word")]),
    };
    [bits, place].join("\n")
}
