//! The list for rdma-sys' ABI test: every struct, field, enum and constant of the bindings, once in
//! Rust and once in C.

use std::fmt::Write as _;

use super::{
    generate,
    items::{Items, Record},
};

/// The text of `rdma-sys/tests/it/abi/layout.rs`.
pub(crate) fn layout(items: &Items, version: &str) -> String {
    let mut text = generate::header("What the ABI test compares: layouts and constants", version);
    text.push_str("layout! {\n");
    // Nested types have no name in C: the test compares them through the field that holds them.
    for record in items.records.iter().filter(|record| !record.name.contains("__bindgen_ty_")) {
        if record.fields.iter().any(|(name, _)| is_opaque(name)) {
            continue;
        }
        let kind = if record.is_union { "union" } else { "struct" };
        let _ = writeln!(text, "    \"{kind} {0}\" {0} {{", record.name);
        fields(&mut text, items, record, &Path::default());
        text.push_str("    }\n");
    }
    text.push_str("}\n\nenums! {\n");
    for name in &items.enums {
        let _ = writeln!(text, "    {name}");
    }
    text.push_str("}\n\nconstants! {\n");
    for constant in &items.constants {
        let name = &constant.name;
        let _ = match &constant.of {
            Some(of) => writeln!(text, "    {name} = {of}::{name}.0;"),
            None => writeln!(text, "    {name} = {name};"),
        };
    }
    text.push_str("}\n");
    text
}

/// Whether a field stands for the contents of a type that the headers declare and do not define.
pub(crate) fn is_opaque(field: &str) -> bool {
    matches!(field, "_unused" | "_address")
}

/// The path of a field in its struct, in both languages.
#[derive(Debug, Default, Clone)]
struct Path {
    rust: String,
    c: String,
}

impl Path {
    fn join(&self, name: &str) -> Self {
        let join = |path: &str, name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let rust = join(&self.rust, name);
        if name.starts_with("__bindgen_anon_") {
            return Self { rust, c: self.c.clone() };
        }
        // bindgen appends an underscore to a Rust keyword.
        let c = if matches!(name, "type_" | "priv_") { &name[..name.len() - 1] } else { name };
        Self { rust, c: join(&self.c, c) }
    }
}

fn fields(text: &mut String, items: &Items, record: &Record, path: &Path) {
    for (name, ty) in &record.fields {
        let path = path.join(name);
        if !name.starts_with("__bindgen_anon_") {
            let _ = writeln!(text, "        \"{}\" {} : {ty};", path.c, path.rust);
        }
        if let Some(inner) = items.record(ty).filter(|inner| inner.name.contains("__bindgen_ty_")) {
            fields(text, items, inner, &path);
        }
    }
}
