//! Parses bindgen's output.

// Needed for its feature `span-locations`, which keeps the source of each item.
use proc_macro2 as _;
use quote::ToTokens;
use syn::{Fields, FieldsNamed, ImplItem, Item, spanned::Spanned};

/// The definitions of a generated file, in file order.
#[derive(Debug, Default)]
pub(crate) struct Items {
    /// Constants, including those of enums.
    pub(crate) constants: Vec<Constant>,
    /// Structs and unions with fields.
    pub(crate) records: Vec<Record>,
    /// The names of enums, each of which is a newtype around an integer.
    pub(crate) enums: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Constant {
    /// The enum to which the constant belongs, if any.
    pub(crate) of: Option<String>,
    pub(crate) name: String,
}

#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) is_union: bool,
    /// The name and the type of each field.
    pub(crate) fields: Vec<(String, String)>,
}

impl Items {
    /// Parses a generated file.
    pub(crate) fn parse(source: &str) -> Result<Self, String> {
        let file = syn::parse_file(source).map_err(|error| format!("bindgen's output: {error}"))?;
        let mut items = Self::default();
        file.items.iter().try_for_each(|item| items.add(item))?;
        Ok(items)
    }

    /// Finds the struct or union with that name.
    pub(crate) fn record(&self, name: &str) -> Option<&Record> {
        self.records.iter().find(|record| record.name == name)
    }

    fn add(&mut self, item: &Item) -> Result<(), String> {
        match item {
            Item::Use(_) | Item::Type(_) => {}
            Item::Impl(block) if block.trait_.is_some() => {}
            Item::Const(item) => self.constants.push(Constant { of: None, name: item.ident.to_string() }),
            Item::Impl(block) => {
                for item in &block.items {
                    let ImplItem::Const(item) = item else { return Err(unknown(item)) };
                    let (of, name) = (Some(text(&block.self_ty)), item.ident.to_string());
                    self.constants.push(Constant { of, name });
                }
            }
            Item::Struct(item) => match &item.fields {
                Fields::Unnamed(fields) if fields.unnamed.len() == 1 => self.enums.push(item.ident.to_string()),
                Fields::Named(fields) => self.records.push(record(&item.ident, false, fields)),
                _ => return Err(unknown(item)),
            },
            Item::Union(item) => self.records.push(record(&item.ident, true, &item.fields)),
            _ => return Err(unknown(item)),
        }
        Ok(())
    }
}

fn unknown(item: &impl ToTokens) -> String {
    format!("cannot read this part of bindgen's output: {}", item.to_token_stream())
}

fn record(name: &syn::Ident, is_union: bool, fields: &FieldsNamed) -> Record {
    let field = |field: &syn::Field| Some((field.ident.as_ref()?.to_string(), text(&field.ty)));
    Record { name: name.to_string(), is_union, fields: fields.named.iter().filter_map(field).collect() }
}

/// The source of a type in one canonical spelling, independent of rustfmt's line breaks.
fn text(item: &(impl ToTokens + Spanned)) -> String {
    let source = item.span().source_text().unwrap_or_else(|| item.to_token_stream().to_string());
    let line = source.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace("( ", "(").replace("< ", "<").replace(", )", ")").replace(", >", ">")
}
