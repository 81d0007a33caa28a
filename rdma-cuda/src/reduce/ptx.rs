//! The kernels, as PTX text: one for each operation and element type.
//!
//! PTX of version 6.0 for `sm_50` runs on every GPU from Maxwell on: the driver compiles it for the
//! GPU. No kernel uses a flag that flushes small numbers to zero or joins operations.

use rdma_mem::{Operation, Scalar};

/// Operands of one launch of a kernel.
pub(super) const MOST_OPERANDS: usize = 64;

/// The name of a kernel in the module.
pub(super) fn kernel_name(operation: Operation, scalar: Scalar) -> String {
    format!("{operation:?}_{scalar:?}").to_lowercase()
}

/// The module with all kernels.
pub(super) fn module() -> String {
    let all = Operation::ALL.iter().flat_map(|&operation| Scalar::ALL.map(|scalar| kernel(operation, scalar)));
    format!(".version 6.0\n.target sm_50\n.address_size 64\n{}", all.collect::<String>())
}

/// A kernel. Each thread computes every element whose index is its own, plus a multiple of the
/// number of threads.
fn kernel(operation: Operation, scalar: Scalar) -> String {
    let Numbers { register, .. } = Numbers::of(scalar);
    let (name, table, size) = (kernel_name(operation, scalar), 8 * MOST_OPERANDS, scalar.size());
    let (load_first, load_next) = (load(scalar, "%value"), load(scalar, "%other"));
    let (combine, round, store) = (combine(operation, scalar), round(scalar), store(scalar));
    format!(
        "
.visible .entry {name}(
    .param .u64 param_into,
    .param .align 8 .b8 param_operands[{table}],
    .param .u32 param_operand_count,
    .param .u64 param_count
)
{{
    .reg .pred %done, %first, %nan;
    .reg .b16 %bits;
    .reg .b32 %block, %blocks, %thread, %threads, %operand, %operands, %word, %odd;
    .reg .b64 %index, %stride, %count, %offset, %into, %entry, %address;
    .reg .{register} %value, %other;

    ld.param.u64 %into, [param_into];
    cvta.to.global.u64 %into, %into;
    ld.param.u32 %operands, [param_operand_count];
    ld.param.u64 %count, [param_count];
    mov.u32 %block, %ctaid.x;
    mov.u32 %blocks, %nctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    cvt.u64.u32 %index, %thread;
    mul.wide.u32 %offset, %block, %threads;
    add.u64 %index, %index, %offset;
    mul.wide.u32 %stride, %blocks, %threads;

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
{combine}
{round}
    add.u32 %operand, %operand, 1;
    bra OPERAND;

STORE:
    add.u64 %address, %into, %offset;
{store}
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

/// Loads the element of the operand at `%entry` of the table.
fn load(scalar: Scalar, to: &str) -> String {
    let address = lines(&[
        "ld.param.u64 %address, [%entry]",
        "cvta.to.global.u64 %address, %address",
        "add.u64 %address, %address, %offset",
    ]);
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
    format!("{address}\n{load}")
}

/// Reduces `%value` with `%other`.
fn combine(operation: Operation, scalar: Scalar) -> String {
    let Numbers { register, rounding, half, .. } = Numbers::of(scalar);
    let is_float = rounding == ".rn";
    let operator = match operation {
        Operation::Sum => format!("add{rounding}"),
        Operation::Prod => format!("mul{rounding}{half}"),
        Operation::Min if is_float => return choose("le", register),
        Operation::Max if is_float => return choose("ge", register),
        Operation::Min => "min".to_owned(),
        Operation::Max => "max".to_owned(),
    };
    lines(&[&format!("{operator}.{register} %value, %value, %other")])
}

/// Keeps `%value` if it compares so with `%other`, or if `%other` is a NaN.
fn choose(comparison: &str, register: &str) -> String {
    lines(&[
        &format!("setp.{comparison}.{register} %first, %value, %other"),
        &format!("setp.nan.{register} %nan, %other, %other"),
        "or.pred %first, %first, %nan",
        &format!("selp.{register} %value, %value, %other, %first"),
    ])
}

/// Rounds `%value` to a number of the element type.
fn round(scalar: Scalar) -> String {
    match scalar {
        Scalar::F16 => lines(&["cvt.rn.f16.f32 %bits, %value", "cvt.f32.f16 %value, %bits"]),
        // A sum of a NaN's bits could become an infinity, so the NaN gets the bit of a quiet one.
        Scalar::Bf16 => lines(&[
            "mov.b32 %word, %value",
            "shr.u32 %odd, %word, 16",
            "and.b32 %odd, %odd, 1",
            "add.u32 %odd, %odd, 0x7fff",
            "setp.nan.f32 %nan, %value, %value",
            "@!%nan add.u32 %word, %word, %odd",
            "@%nan or.b32 %word, %word, 0x400000",
            "and.b32 %word, %word, 0xffff0000",
            "mov.b32 %value, %word",
        ]),
        _ => String::new(),
    }
}

/// Stores `%value`, a number of the element type, at `%address`.
fn store(scalar: Scalar) -> String {
    match scalar {
        Scalar::F16 => lines(&["cvt.rn.f16.f32 %bits, %value", "st.global.b16 [%address], %bits"]),
        Scalar::Bf16 => lines(&[
            "mov.b32 %word, %value",
            "shr.u32 %word, %word, 16",
            "cvt.u16.u32 %bits, %word",
            "st.global.b16 [%address], %bits",
        ]),
        _ => lines(&[&format!("st.global.{} [%address], %value", Numbers::of(scalar).memory)]),
    }
}

#[cfg(test)]
mod interpreter;
#[cfg(test)]
mod tests;
