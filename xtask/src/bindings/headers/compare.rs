//! Compares the committed bindings with those of older headers: the committed ones must have every
//! older definition, unchanged. Structs may have grown.

use super::{
    items::{Items, Record},
    layout::is_opaque,
};

/// Numbers of equal definitions.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    pub(crate) constants: usize,
    pub(crate) types: usize,
    pub(crate) functions: usize,
    /// Structs that have more fields in the newer bindings, as `struct.field`.
    pub(crate) grown: Vec<String>,
}

/// The definitions that agree, or every disagreement.
pub(crate) fn compare(older: &Items, newer: &Items) -> Result<Agreement, Vec<String>> {
    let mut agreement = Agreement::default();
    let mut faults = Vec::new();
    for constant in &older.constants {
        match newer.constants.iter().find(|other| (&other.name, &other.of) == (&constant.name, &constant.of)) {
            Some(other) if other.value == constant.value => agreement.constants += 1,
            // A mask of all flags that exist grows with them.
            Some(other) if is_all_flags(&constant.value, &other.value) => {
                agreement.grown.push(constant.name.clone());
            }
            Some(other) => faults.push(format!("{} is {} here, {} there", constant.name, other.value, constant.value)),
            None => faults.push(format!("constant {} is missing", constant.name)),
        }
    }
    for record in &older.records {
        match newer.record(&record.name) {
            Some(other) => {
                let before = faults.len();
                compare_record(record, other, &mut agreement, &mut faults);
                agreement.types += usize::from(faults.len() == before);
            }
            None => faults.push(format!("type {} is missing", record.name)),
        }
    }
    let mut agree = |kind: &str, older: &[(String, String)], newer: &[(String, String)]| {
        let before = faults.len();
        for (name, old) in older {
            match newer.iter().find(|(other, _)| other == name) {
                Some((_, new)) if types_of(new) == types_of(old) => {}
                Some((_, new)) => faults.push(format!("{kind} {name} is {new} here, {old} there")),
                None => faults.push(format!("{kind} {name} is missing")),
            }
        }
        older.len() + before - faults.len()
    };
    agreement.types += agree("type", &older.enums, &newer.enums) + agree("type", &older.aliases, &newer.aliases);
    agreement.functions = agree("function", &older.functions, &newer.functions);
    if faults.is_empty() { Ok(agreement) } else { Err(faults) }
}

/// Fields may be added, at either end or in padding; no field may change, vanish or move past
/// another.
fn compare_record(older: &Record, newer: &Record, agreement: &mut Agreement, faults: &mut Vec<String>) {
    // An opaque type may get contents.
    let opaque = older.fields.iter().any(|(name, _)| is_opaque(name));
    if older.is_union != newer.is_union {
        faults.push(format!("{} is a union in one only", older.name));
    }
    let mut old = older.fields.iter().filter(|_| !opaque).peekable();
    for (name, ty) in &newer.fields {
        if let Some((_, old_ty)) = old.next_if(|(old_name, _)| old_name == name) {
            if types_of(ty) != types_of(old_ty) {
                faults.push(format!("{}.{name} is {ty} here, {old_ty} there", older.name));
            }
        } else if !is_opaque(name) {
            agreement.grown.push(format!("{}.{name}", older.name));
        }
    }
    faults.extend(old.map(|(name, _)| format!("{}.{name} is missing", older.name)));
}

/// A function's type without the names of its parameters, which mean nothing to the ABI.
fn types_of(signature: &str) -> String {
    let mut words = Vec::new();
    for word in signature.split(' ') {
        match word.strip_suffix(':') {
            // `(name:` opens the list.
            Some(name) => words.extend(name.rfind('(').map(|at| &name[..=at])),
            None => words.push(word),
        }
    }
    words.join(" ")
}

fn is_all_flags(old: &str, new: &str) -> bool {
    match (old.parse::<u64>(), new.parse::<u64>()) {
        (Ok(old), Ok(new)) => (old + 1).is_power_of_two() && (new + 1).is_power_of_two() && old > 15 && new > old,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "
        pub const A: u32 = 1;
        #[repr(C)]
        pub struct s {
            pub a: u32,
            pub call: ::core::option::Option<
                unsafe extern \"C\" fn(context: *mut s, len: usize) -> ::core::ffi::c_int,
            >,
        }
        impl e {
            pub const ONE: e =
                e(1);
        }
        pub struct e(pub ::core::ffi::c_uint);
        unsafe extern \"C\" {
            pub fn f(
                x: *mut s,
                y: u32,
            ) -> ::core::ffi::c_int;
            pub fn g();
        }
    ";

    /// The comparison of `OLD` with a copy that has `to` instead of `from`.
    fn against(from: &str, to: &str) -> Result<Agreement, Vec<String>> {
        assert!(OLD.contains(from));
        compare(&Items::parse(OLD).unwrap(), &Items::parse(&OLD.replace(from, to)).unwrap())
    }

    #[test]
    fn the_same_agrees() {
        let Agreement { constants, types, functions, grown } = against("A", "A").unwrap();
        assert_eq!((constants, types, functions, grown.len()), (2, 2, 2, 0));
    }

    #[test]
    fn growth_and_names_of_parameters_agree() {
        assert_eq!(against("pub a: u32,", "pub a: u32, pub b: u64,").unwrap().grown, ["s.b"]);
        assert!(against("y: u32", "z: u32").is_ok());
        assert!(against("len: usize", "length: usize").is_ok());
    }

    #[test]
    fn every_other_change_is_a_fault() {
        for (from, to) in [
            ("A: u32 = 1", "A: u32 = 2"),
            ("A: u32", "B: u32"),
            ("e(1)", "e(2)"),
            ("pub a: u32,", ""),
            ("pub a: u32,", "pub a: u64,"),
            ("len: usize", "len: u32"),
            ("(pub ::core::ffi::c_uint)", "(pub ::core::ffi::c_int)"),
            ("y: u32", "y: u64"),
            ("pub fn g();", ""),
            ("pub struct s", "pub union s"),
        ] {
            assert!(against(from, to).is_err(), "{from} -> {to}");
        }
        // A field that moves past another.
        let moved = OLD.replace("pub a: u32,", "").replace("            >,\n", "            >,\n pub a: u32,\n");
        assert!(compare(&Items::parse(OLD).unwrap(), &Items::parse(&moved).unwrap()).is_err());
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        assert!(Items::parse("pub trait T {}").is_err());
    }
}
