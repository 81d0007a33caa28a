//! The bindings against the headers, as a C compiler sees them: every size, offset and constant.
//!
//! Headers older than the bindings lack some of them. What they lack is counted and printed; with
//! the newest headers, in the folder `RDMA_CORE_INCLUDE`, nothing may be missing.

#![cfg(not(feature = "bindgen"))]
#![allow(missing_docs, reason = "a test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    mem::offset_of,
};

use libc::{
    pthread_cond_t, pthread_mutex_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t, timespec,
};
use rdma_sys::*;
use rdma_test_support::Compiler;

#[derive(Debug)]
struct Struct {
    c: &'static str,
    size: usize,
    fields: &'static [Field],
}

#[derive(Debug)]
struct Field {
    c: &'static str,
    offset: usize,
    size: usize,
}

macro_rules! layout {
    ($($c:literal $ty:ident { $($path:literal $($field:ident).+ : $field_type:ty;)* })*) => {
        const STRUCTS: &[Struct] = &[$(Struct {
            c: $c,
            size: size_of::<$ty>(),
            fields: &[$(
                Field { c: $path, offset: offset_of!($ty, $($field).+), size: size_of::<$field_type>() },
            )*],
        },)*];
    };
}

macro_rules! enums {
    ($($name:ident)*) => {
        const ENUMS: &[(&str, usize)] = &[$((stringify!($name), size_of::<$name>()),)*];
    };
}

macro_rules! constants {
    ($($name:ident = $value:expr;)*) => {
        const CONSTANTS: &[(&str, i128)] = &[$((stringify!($name), $value as i128),)*];
    };
}

include!("layout.rs");

/// Constants in place of macros that bindgen cannot read.
const MACROS: &[(&str, i128)] = &[
    ("IBV_ACCESS_OPTIONAL_RANGE", IBV_ACCESS_OPTIONAL_RANGE as i128),
    ("IBV_QPF_GRH_REQUIRED", IBV_QPF_GRH_REQUIRED as i128),
    ("IBV_ADVISE_MR_ADVICE_PREFETCH", IBV_ADVISE_MR_ADVICE_PREFETCH.0 as i128),
    ("IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE", IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE.0 as i128),
    ("IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT", IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT.0 as i128),
    ("IBV_ADVISE_MR_FLAG_FLUSH", IBV_ADVISE_MR_FLAG_FLUSH as i128),
    ("IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM", IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM.0 as i128),
    ("IBV_FLOW_ACTION_IV_ALGO_SEQ", IBV_FLOW_ACTION_IV_ALGO_SEQ.0 as i128),
    ("IBV_FLOW_ACTION_ESP_REPLAY_NONE", IBV_FLOW_ACTION_ESP_REPLAY_NONE.0 as i128),
    ("IBV_FLOW_ACTION_ESP_REPLAY_BMP", IBV_FLOW_ACTION_ESP_REPLAY_BMP.0 as i128),
    ("IBV_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO", IBV_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO.0 as i128),
    ("IBV_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD", IBV_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD.0 as i128),
    ("IBV_FLOW_ACTION_ESP_FLAGS_TUNNEL", IBV_FLOW_ACTION_ESP_FLAGS_TUNNEL.0 as i128),
    ("IBV_FLOW_ACTION_ESP_FLAGS_TRANSPORT", IBV_FLOW_ACTION_ESP_FLAGS_TRANSPORT.0 as i128),
    ("IBV_FLOW_ACTION_ESP_FLAGS_DECRYPT", IBV_FLOW_ACTION_ESP_FLAGS_DECRYPT.0 as i128),
    ("IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT", IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT.0 as i128),
    ("IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW", IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW.0 as i128),
];

/// One line of C, and its meaning.
#[derive(Debug)]
struct Statement {
    /// The struct that it is about, if any.
    of: Option<&'static str>,
    is_size: bool,
    what: String,
    condition: String,
}

fn statements() -> Vec<Statement> {
    let mut all = Vec::new();
    for Struct { c, size, fields } in STRUCTS {
        let mut add = |is_size, what: String, condition| all.push(Statement { of: Some(c), is_size, what, condition });
        add(true, format!("sizeof({c})"), format!("sizeof({c}) == {size}"));
        for Field { c: path, offset, size } in *fields {
            let (place, offset) = if *c == "struct verbs_context" {
                // The struct grows at its beginning; distances to its end are fixed.
                let end = offset_of!(verbs_context, context);
                (format!("offsetof({c}, context) - offsetof({c}, {path})"), end - offset)
            } else {
                (format!("offsetof({c}, {path})"), *offset)
            };
            let condition = format!("{place} == {offset} && sizeof((({c} *)0)->{path}) == {size}");
            add(false, format!("{c}.{path}"), condition);
        }
    }
    let mut add =
        |what: &str, condition| all.push(Statement { of: None, is_size: false, what: what.into(), condition });
    for (name, size) in ENUMS {
        add(name, format!("sizeof(enum {name}) == {size}"));
    }
    for (name, value) in CONSTANTS.iter().chain(MACROS) {
        // C compares in the wider type; ULL is the widest that a constant has.
        let suffix = if *value > i128::from(i32::MAX) { "ULL" } else { "" };
        add(name, format!("({name}) == {value}{suffix}"));
    }
    all
}

#[test]
fn sizes_offsets_and_constants_are_those_of_the_headers() {
    let Some(compiler) = Compiler::find(concat!(env!("CARGO_TARGET_TMPDIR"), "/abi")) else { return };
    let statements = statements();
    let mut source = String::from(
        "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n#include <rdma/rdma_verbs.h>\n",
    );
    let first = source.lines().count() + 1;
    for Statement { condition, .. } in &statements {
        writeln!(source, "_Static_assert({condition}, \"\");").unwrap();
    }
    let output = compiler.run("statements", &source, &["-fsyntax-only", "-w", "-fno-diagnostics-show-caret"]).unwrap();

    let mut faults: BTreeMap<usize, String> = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stderr).lines().filter(|line| line.contains(" error: ")) {
        let number = line.split(':').nth(1).and_then(|number| number.parse::<usize>().ok());
        let index = number.and_then(|number| number.checked_sub(first)).expect("an error is in a statement's line");
        faults.entry(index).or_insert_with(|| line.to_owned());
    }
    assert_eq!(output.status.success(), faults.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));

    let (wrong, missing): (Vec<_>, Vec<_>) =
        faults.iter().partition(|(_, line)| line.contains("static assertion failed"));
    let missing: Vec<&Statement> = missing.into_iter().map(|(index, _)| &statements[*index]).collect();
    // A struct that lacks a field has another size, too.
    let grown: BTreeSet<_> = missing.iter().filter_map(|statement| statement.of).collect();
    let (excused, wrong): (Vec<_>, Vec<_>) = wrong
        .into_iter()
        .map(|(index, _)| &statements[*index])
        .partition(|statement| statement.is_size && statement.of.is_some_and(|name| grown.contains(name)));
    let wrong: Vec<_> = wrong.iter().map(|statement| &statement.condition).collect();
    assert!(wrong.is_empty(), "the headers disagree: {wrong:#?}");

    let absent: Vec<&str> = missing.iter().chain(&excused).map(|statement| statement.what.as_str()).collect();
    let (all, lacking) = (statements.len(), absent.len());
    rdma_test_support::say(&format!("abi: {} of {all} statements hold; these headers lack {lacking}", all - lacking));
    if compiler.newest() {
        assert!(absent.is_empty(), "the newest headers lack {absent:#?}");
    }
    // Headers so old, or so foreign, that little is left to compare would prove nothing.
    assert!(absent.len() * 10 < statements.len(), "these headers lack too much: {absent:#?}");
}

/// The list is generated; this notices when the bindings were changed without it.
#[test]
fn the_list_is_complete() {
    let bindings = include_str!("../../../src/bindings.rs");
    let starting = |start: &str| bindings.lines().filter(|line| line.trim_start().starts_with(start)).count();
    assert_eq!(CONSTANTS.len(), starting("pub const "));
    assert_eq!(ENUMS.len(), bindings.lines().filter(|line| line.contains("(pub ::core::ffi::c_")).count());
    let named = |line: &&str| {
        (line.starts_with("pub struct ") || line.starts_with("pub union "))
            && line.ends_with(" {")
            && !line.contains("__bindgen_ty_")
    };
    let opaque = starting("_unused: ") + starting("pub _address: ");
    assert_eq!(STRUCTS.len(), bindings.lines().filter(named).count() - opaque);
}
