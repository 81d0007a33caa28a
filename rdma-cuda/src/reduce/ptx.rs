//! The kernels, as PTX text: one for each operation and element type.
//!
//! PTX of version 6.0 for `sm_50` runs on every GPU from Maxwell on: the driver compiles it for the
//! GPU. No kernel uses a flag that flushes small numbers to zero or joins operations.

mod vector;

use rdma_mem::{Operation, Scalar};

/// Operands of one launch of a kernel.
pub(super) const MOST_OPERANDS: usize = 64;

/// The operations and the element types that have them.
pub(super) fn kernels() -> impl Iterator<Item = (Operation, Scalar)> {
    let all = Operation::ALL.into_iter().flat_map(|operation| Scalar::ALL.map(|scalar| (operation, scalar)));
    all.filter(|(operation, scalar)| operation.supports(*scalar))
}

/// The name of a kernel in the module.
pub(super) fn kernel_name(operation: Operation, scalar: Scalar) -> String {
    format!("{}_{}", operation.name(), scalar.name())
}

/// The module with all kernels.
pub(super) fn module() -> String {
    let all: String = kernels().map(|(operation, scalar)| kernel(operation, scalar)).collect();
    format!(".version 6.0\n.target sm_50\n.address_size 64\n{all}")
}

/// Bytes that a thread loads at once where addresses allow it.
pub(super) const VECTOR: usize = 16;

/// A kernel. Each thread computes every vector whose index is its own, plus a multiple of the
/// number of threads, and then so the elements after the last vector. There are no vectors where an
/// address is no multiple of [`VECTOR`].
fn kernel(operation: Operation, scalar: Scalar) -> String {
    let Numbers { register, .. } = Numbers::of(scalar);
    let (name, table, size) = (kernel_name(operation, scalar), 8 * MOST_OPERANDS, scalar.size());
    let (per_vector, value) = (VECTOR / size, "%value0");
    let reduce = |value: &str, other: &str| [combine(operation, scalar, value, other), round(scalar, value)].join("\n");
    let each = |lane: &dyn Fn(usize) -> String| (0..per_vector).map(lane).collect::<Vec<_>>().join("\n");

    let (load_first, load_next) = (load(scalar, value), load(scalar, "%other0"));
    let (reduce_element, store_element) = (reduce(value, "%other0"), store(scalar, value));
    let (load_vector, load_next_vector) = (vector::load(scalar, "%value"), vector::load(scalar, "%other"));
    let unpack = each(&|lane| vector::unpack(scalar, lane, &format!("%value{lane}")));
    let reduce_vector = each(&|lane| {
        let (value, other) = (format!("%value{lane}"), vector::next(scalar, lane));
        [vector::unpack(scalar, lane, &other), reduce(&value, &other)].join("\n")
    });
    let (pack, store_vector) = (each(&|lane| vector::pack(scalar, lane)), vector::store(scalar));
    format!(
        "
.visible .entry {name}(
    .param .u64 param_into,
    .param .align 8 .b8 param_operands[{table}],
    .param .u32 param_operand_count,
    .param .u64 param_count,
    .param .u64 param_vectors
)
{{
    .reg .pred %done, %first, %nan;
    .reg .b16 %bits;
    .reg .b32 %block, %blocks, %thread, %threads, %operand, %operands, %word, %odd;
    .reg .b32 %part<4>;
    .reg .b64 %start, %index, %stride, %count, %vectors, %offset, %into, %entry, %address;
    .reg .{register} %value<16>, %other<16>;

    ld.param.u64 %into, [param_into];
    cvta.to.global.u64 %into, %into;
    ld.param.u32 %operands, [param_operand_count];
    ld.param.u64 %count, [param_count];
    ld.param.u64 %vectors, [param_vectors];
    mov.u32 %block, %ctaid.x;
    mov.u32 %blocks, %nctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    cvt.u64.u32 %start, %thread;
    mul.wide.u32 %offset, %block, %threads;
    add.u64 %start, %start, %offset;
    mul.wide.u32 %stride, %blocks, %threads;
    mov.u64 %index, %start;

VECTOR:
    setp.ge.u64 %done, %index, %vectors;
    @%done bra REST;
    mul.lo.u64 %offset, %index, {VECTOR};
    mov.u64 %entry, param_operands;
{load_vector}
{unpack}
    mov.u32 %operand, 1;

VECTOR_OPERAND:
    setp.ge.u32 %done, %operand, %operands;
    @%done bra VECTOR_STORE;
    add.u64 %entry, %entry, 8;
{load_next_vector}
{reduce_vector}
    add.u32 %operand, %operand, 1;
    bra VECTOR_OPERAND;

VECTOR_STORE:
    add.u64 %address, %into, %offset;
{pack}
{store_vector}
    add.u64 %index, %index, %stride;
    bra VECTOR;

REST:
    mul.lo.u64 %offset, %vectors, {per_vector};
    add.u64 %index, %start, %offset;

ELEMENT:
    setp.ge.u64 %done, %index, %count;
    @%done bra END;
    mul.lo.u64 %offset, %index, {size};
    mov.u64 %entry, param_operands;
{load_first}
    mov.u32 %operand, 1;

OPERAND:
    setp.ge.u32 %done, %operand, %operands;
    @%done bra STORE;
    add.u64 %entry, %entry, 8;
{load_next}
{reduce_element}
    add.u32 %operand, %operand, 1;
    bra OPERAND;

STORE:
    add.u64 %address, %into, %offset;
{store_element}
    add.u64 %index, %index, %stride;
    bra ELEMENT;

END:
    ret;
}}
"
    )
}

/// The instructions' types for an element type.
struct Numbers {
    /// The type in which elements are computed.
    register: &'static str,
    /// The type of an element in memory.
    memory: &'static str,
    /// Chooses the rounding of sums and products.
    rounding: &'static str,
    /// Chooses the lower half of a product.
    half: &'static str,
}

impl Numbers {
    fn of(scalar: Scalar) -> Self {
        let float = |register, memory| Self { register, memory, rounding: ".rn", half: "" };
        let integer = |register, memory| Self { register, memory, rounding: "", half: ".lo" };
        match scalar {
            Scalar::F16 | Scalar::Bf16 => float("f32", "b16"),
            Scalar::F32 => float("f32", "f32"),
            Scalar::F64 => float("f64", "f64"),
            Scalar::I8 => integer("s32", "s8"),
            Scalar::U8 => integer("u32", "u8"),
            Scalar::I32 => integer("s32", "s32"),
            Scalar::U32 => integer("u32", "u32"),
            Scalar::I64 => integer("s64", "s64"),
            Scalar::U64 => integer("u64", "u64"),
        }
    }
}

/// Joins instructions to lines.
fn lines(instructions: &[&str]) -> String {
    instructions.iter().map(|instruction| format!("    {instruction};")).collect::<Vec<_>>().join("\n")
}

/// Computes the address of what a thread loads of the operand at `%entry` of the table.
fn address() -> String {
    lines(&[
        "ld.param.u64 %address, [%entry]",
        "cvta.to.global.u64 %address, %address",
        "add.u64 %address, %address, %offset",
    ])
}

/// Loads the element of the operand at `%entry` of the table.
fn load(scalar: Scalar, to: &str) -> String {
    let load = match scalar {
        Scalar::F16 => lines(&["ld.global.b16 %bits, [%address]", &format!("cvt.f32.f16 {to}, %bits")]),
        Scalar::Bf16 => lines(&[
            "ld.global.b16 %bits, [%address]",
            "cvt.u32.u16 %word, %bits",
            "shl.b32 %word, %word, 16",
            &format!("mov.b32 {to}, %word"),
        ]),
        _ => lines(&[&format!("ld.global.{} {to}, [%address]", Numbers::of(scalar).memory)]),
    };
    [address(), load].join("\n")
}

/// Reduces a value with another one.
fn combine(operation: Operation, scalar: Scalar, value: &str, other: &str) -> String {
    let Numbers { register, rounding, half, .. } = Numbers::of(scalar);
    let is_float = rounding == ".rn";
    let bitwise = |name: &str| lines(&[&format!("{name}.b{} {value}, {value}, {other}", &register[1..])]);
    let operator = match operation {
        Operation::Sum => format!("add{rounding}"),
        Operation::Prod => format!("mul{rounding}{half}"),
        Operation::Min if is_float => return choose("le", register, value, other),
        Operation::Max if is_float => return choose("ge", register, value, other),
        Operation::Min => "min".to_owned(),
        Operation::Max => "max".to_owned(),
        Operation::And | Operation::Or | Operation::Xor => return bitwise(operation.name()),
    };
    lines(&[&format!("{operator}.{register} {value}, {value}, {other}")])
}

/// Keeps a value if it compares so with another one, or if that one is a NaN.
fn choose(comparison: &str, register: &str, value: &str, other: &str) -> String {
    lines(&[
        &format!("setp.{comparison}.{register} %first, {value}, {other}"),
        &format!("setp.nan.{register} %nan, {other}, {other}"),
        "or.pred %first, %first, %nan",
        &format!("selp.{register} {value}, {value}, {other}, %first"),
    ])
}

/// Rounds a value to a number of the element type.
fn round(scalar: Scalar, value: &str) -> String {
    match scalar {
        Scalar::F16 => lines(&[&format!("cvt.rn.f16.f32 %bits, {value}"), &format!("cvt.f32.f16 {value}, %bits")]),
        // A sum of a NaN's bits could become an infinity, so the NaN gets the bit of a quiet one.
        Scalar::Bf16 => lines(&[
            &format!("mov.b32 %word, {value}"),
            "shr.u32 %odd, %word, 16",
            "and.b32 %odd, %odd, 1",
            "add.u32 %odd, %odd, 0x7fff",
            &format!("setp.nan.f32 %nan, {value}, {value}"),
            "@!%nan add.u32 %word, %word, %odd",
            "@%nan or.b32 %word, %word, 0x400000",
            "and.b32 %word, %word, 0xffff0000",
            &format!("mov.b32 {value}, %word"),
        ]),
        _ => String::new(),
    }
}

/// Stores a value, a number of the element type, at `%address`.
fn store(scalar: Scalar, value: &str) -> String {
    match scalar {
        Scalar::F16 => lines(&[&format!("cvt.rn.f16.f32 %bits, {value}"), "st.global.b16 [%address], %bits"]),
        Scalar::Bf16 => lines(&[
            &format!("mov.b32 %word, {value}"),
            "shr.u32 %word, %word, 16",
            "cvt.u16.u32 %bits, %word",
            "st.global.b16 [%address], %bits",
        ]),
        _ => lines(&[&format!("st.global.{} [%address], {value}", Numbers::of(scalar).memory)]),
    }
}

#[cfg(test)]
mod interpreter;
#[cfg(test)]
mod tests;
