//! `symbol!`: an exported symbol with a version, which Rust has no attribute for.
//!
//! The symbol is a jump, so that it needs no signature: the arguments stay where the caller has put
//! them. x86_64 needs no register for it, and aarch64 uses x16, which a call may overwrite.

/// `symbol!(label, "name@version", target)`, where the target is
///
/// - `table TABLE, type, field`: the function in a field of a table,
/// - `function path`: a function,
/// - `data`: no function but eight zero bytes.
///
/// `@@` instead of `@` makes the version the default.
macro_rules! symbol {
    ($label:literal, $version:literal, table $table:path, $type:ty, $field:ident) => {
        symbol! {
            $label, $version,
            x86_64: ["jmp qword ptr [rip + {table} + {offset}]"],
            aarch64: ["adrp x16, {table} + {offset}", "ldr x16, [x16, :lo12:{table} + {offset}]", "br x16"],
            table = sym $table, offset = const std::mem::offset_of!($type, $field)
        }
    };
    ($label:literal, $version:literal, function $function:path) => {
        symbol! {
            $label, $version, x86_64: ["jmp {function}"], aarch64: ["b {function}"], function = sym $function
        }
    };
    ($label:literal, $version:literal, data) => {
        std::arch::global_asm!(
            ".pushsection .bss.soft_symbol, \"aw\", %nobits",
            ".balign 8",
            concat!(".globl soft_symbol_", $label),
            concat!(".type soft_symbol_", $label, ", %object"),
            concat!(".size soft_symbol_", $label, ", 8"),
            concat!("soft_symbol_", $label, ": .zero 8"),
            concat!(".symver soft_symbol_", $label, ", ", $version),
            ".popsection",
        );
    };
    (
        $label:literal, $version:literal, x86_64: [$($x86:literal),*], aarch64: [$($arm:literal),*],
        $($operands:tt)*
    ) => {
        #[cfg(target_arch = "x86_64")]
        symbol!(@text $label, $version, [$($x86),*], $($operands)*);
        #[cfg(target_arch = "aarch64")]
        symbol!(@text $label, $version, [$($arm),*], $($operands)*);
    };
    (@text $label:literal, $version:literal, [$($instruction:literal),*], $($operands:tt)*) => {
        std::arch::global_asm!(
            ".pushsection .text.soft_symbol, \"ax\", %progbits",
            ".balign 16",
            concat!(".globl soft_symbol_", $label),
            concat!(".type soft_symbol_", $label, ", %function"),
            concat!("soft_symbol_", $label, ":"),
            $($instruction,)*
            concat!(".size soft_symbol_", $label, ", . - soft_symbol_", $label),
            concat!(".symver soft_symbol_", $label, ", ", $version),
            ".popsection",
            $($operands)*
        );
    };
}
