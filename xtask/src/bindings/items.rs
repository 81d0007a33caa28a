//! Reads bindgen's output back: a text of known shape, not Rust in general.

/// What a generated file defines, in its order.
#[derive(Debug, Default)]
pub(crate) struct Items {
    /// Constants, those of enums included.
    pub(crate) constants: Vec<Constant>,
    /// Structs and unions with fields.
    pub(crate) records: Vec<Record>,
    /// Enums: newtypes around an integer, with its type.
    pub(crate) enums: Vec<(String, String)>,
    /// Other names for types.
    pub(crate) aliases: Vec<(String, String)>,
    /// Functions, with everything from the parameters on.
    pub(crate) functions: Vec<(String, String)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Constant {
    /// The enum that holds it.
    pub(crate) of: Option<String>,
    pub(crate) name: String,
    /// As it is written, without the enum's name around it.
    pub(crate) value: String,
}

#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) is_union: bool,
    /// Names and types.
    pub(crate) fields: Vec<(String, String)>,
}

impl Items {
    /// Reads a file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let code: Vec<&str> =
            text.lines().map(str::trim).filter(|line| !line.starts_with("//") && !line.starts_with("#[")).collect();
        let mut items = Self::default();
        for item in split(&code.join(" "), &[';', '}']) {
            items.add(item.trim())?;
        }
        Ok(items)
    }

    /// The struct or union of that name.
    pub(crate) fn record(&self, name: &str) -> Option<&Record> {
        self.records.iter().find(|record| record.name == name)
    }

    fn add(&mut self, item: &str) -> Result<(), String> {
        let unknown = || format!("cannot read this part of bindgen's output: {item}");
        if matches!(item, "" | ";") || item.starts_with("use ") || item.starts_with("impl Default for ") {
            return Ok(());
        }
        if let Some(constant) = item.strip_prefix("pub const ") {
            self.constants.push(constant_of(None, constant).ok_or_else(unknown)?);
        } else if let Some(alias) = item.strip_prefix("pub type ") {
            let (name, target) = alias.trim_end_matches(';').split_once(" = ").ok_or_else(unknown)?;
            self.aliases.push((name.into(), target.into()));
        } else if let Some(implementation) = item.strip_prefix("impl ") {
            let (name, body) = body_of(implementation).ok_or_else(unknown)?;
            if name.contains(" for ") {
                return Ok(());
            }
            for constant in split(body, &[';']) {
                let constant = constant.trim().strip_prefix("pub const ").ok_or_else(unknown)?;
                self.constants.push(constant_of(Some(name), constant).ok_or_else(unknown)?);
            }
        } else if item.starts_with("unsafe extern") {
            let (_, body) = body_of(item).ok_or_else(unknown)?;
            for function in split(body, &[';']) {
                let function = function.trim().trim_end_matches(';').strip_prefix("pub fn ").ok_or_else(unknown)?;
                let (name, signature) = function.split_once('(').ok_or_else(unknown)?;
                self.functions.push((name.into(), tidy(signature)));
            }
        } else if let Some((repr, name)) = item.strip_suffix(");").and_then(|item| {
            let (name, repr) = item.strip_prefix("pub struct ")?.split_once("(pub ")?;
            Some((repr, name))
        }) {
            self.enums.push((name.into(), repr.into()));
        } else if item.starts_with("pub struct ") || item.starts_with("pub union ") {
            let (head, body) = body_of(item).ok_or_else(unknown)?;
            let (kind, name) = head.trim_start_matches("pub ").split_once(' ').ok_or_else(unknown)?;
            let fields = split(body, &[','])
                .map(|field| {
                    let field = field.trim().trim_end_matches(',');
                    let (name, ty) = field.trim_start_matches("pub ").split_once(": ")?;
                    Some((name.to_owned(), tidy(ty)))
                })
                .collect::<Option<_>>()
                .ok_or_else(unknown)?;
            self.records.push(Record { name: name.into(), is_union: kind == "union", fields });
        } else {
            return Err(unknown());
        }
        Ok(())
    }
}

/// `NAME: TYPE = VALUE;`
fn constant_of(of: Option<&str>, text: &str) -> Option<Constant> {
    let (name, rest) = text.trim_end_matches(';').split_once(": ")?;
    let (_, value) = rest.split_once('=')?;
    let value = value.trim();
    let value = match value.split_once('(') {
        Some((_, inner)) => inner.trim_end_matches(')'),
        None => value,
    };
    Some(Constant { of: of.map(Into::into), name: name.into(), value: value.into() })
}

/// `head { body }`
fn body_of(text: &str) -> Option<(&str, &str)> {
    let (head, rest) = text.split_once('{')?;
    Some((head.trim(), rest.strip_suffix('}')?.trim()))
}

/// A type or signature in one spelling, however rustfmt broke its lines.
fn tidy(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace("( ", "(").replace(", )", ")").replace(", >", ">")
}

/// Cuts `text` after each of `ends` that stands outside all brackets; a closing brace counts as an end where its
/// opening one stood outside.
fn split<'a>(text: &'a str, ends: &'a [char]) -> impl Iterator<Item = &'a str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut depth = 0i32;
        let mut before = ' ';
        for (index, c) in rest.char_indices() {
            match c {
                '(' | '[' | '{' | '<' => depth += 1,
                ')' | ']' | '}' => depth -= 1,
                '>' if before != '-' => depth -= 1,
                _ => {}
            }
            before = c;
            if depth == 0 && ends.contains(&c) {
                let (piece, tail) = rest.split_at(index + 1);
                rest = tail;
                return Some(piece);
            }
        }
        let piece = std::mem::take(&mut rest).trim();
        (!piece.is_empty()).then_some(piece)
    })
}
