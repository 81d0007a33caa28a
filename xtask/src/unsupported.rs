//! The check of the drop-in library's table of functions that the software device lacks: each
//! symbol is either implemented or in the table.

use std::collections::BTreeMap;

use crate::system::read;

/// The table, for users.
pub(crate) const TABLE: &str = "rdma-soft/dropin/UNSUPPORTED.md";
/// The function tables of the software device.
const SOURCES: [&str; 2] = ["rdma-soft/src/verbs/table.rs", "rdma-soft/src/cm/table.rs"];

/// Checks the table against the text of the list of symbols.
pub(crate) fn check(list: &str) -> Result<(), String> {
    let root = crate::root();
    let mut sources = String::new();
    for source in SOURCES {
        sources += &read(&root.join(source))?;
    }
    compare(&read(&root.join(TABLE))?, &implemented(list, &sources))
}

/// Whether the device implements each symbol, in any version of the symbol.
fn implemented<'a>(list: &'a str, sources: &str) -> BTreeMap<&'a str, bool> {
    let mut known = BTreeMap::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, kind)) = line.trim().split_once(char::is_whitespace) else { continue };
        let is_done = match kind.trim() {
            "verbs" | "cm" | "cancel" => assigns(sources, name),
            "own" | "rsocket" => true,
            _ => false,
        };
        *known.entry(name).or_default() |= is_done;
    }
    known
}

/// Whether a table assigns a function to the field with this name.
fn assigns(sources: &str, name: &str) -> bool {
    sources.lines().any(|line| line.trim().strip_prefix(name).is_some_and(|rest| rest.starts_with(": call")))
}

/// The names in the first column of the table; `*` stands for any end.
fn listed(table: &str) -> impl Iterator<Item = &str> {
    let columns = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    columns.flat_map(|(names, _)| names.split("`, `"))
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}

/// Checks that the table has all symbols that are not implemented, and no others.
fn compare(table: &str, symbols: &BTreeMap<&str, bool>) -> Result<(), String> {
    for (name, is_done) in symbols {
        let pattern = listed(table).find(|pattern| matches(pattern, name));
        match (is_done, pattern) {
            (true, Some(pattern)) => {
                return Err(format!("{TABLE} has `{pattern}`, but the device implements {name}"));
            }
            (false, None) => {
                return Err(format!("the device does not implement {name}: give its answer and the reason in {TABLE}"));
            }
            _ => (),
        }
    }
    match listed(table).find(|pattern| !symbols.keys().any(|name| matches(pattern, name))) {
        Some(pattern) => Err(format!("{TABLE} has `{pattern}`, which is no symbol of the library")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# text\nA_1.0\n    a_one   null\nA_1.1\n    a_one   verbs\n    a_two   verbs\n    \
                        b_one   errno\n    b_two   zero\n    c_one   own\n";
    const SOURCES: &str = "        a_one: call1(module::one),\n        a_two_more: call1(module::two),\n";

    #[test]
    fn a_symbol_is_implemented_or_listed() {
        let symbols = implemented(LIST, SOURCES);
        let done: Vec<_> = symbols.iter().filter(|(_, is_done)| **is_done).map(|(name, _)| *name).collect();
        assert_eq!(done, ["a_one", "c_one"]);
        let check = |table: &str| compare(table, &symbols);
        assert_eq!(check("| Function |\n| `a_two`, `b_*` | text `c_one` |\n"), Ok(()));
        for (table, culprit) in [
            ("| `b_*` | text |\n", "a_two"),
            ("| `a_two`, `b_one` | text |\n", "b_two"),
            ("| `a_*`, `b_*` | text |\n", "a_one"),
            ("| `a_two`, `b_*`, `d_*` | text |\n", "d_*"),
        ] {
            let error = check(table).unwrap_err();
            assert!(error.contains(culprit), "{error}");
        }
    }

    #[test]
    fn the_table_fits_the_library() {
        let list = read(&crate::root().join("rdma-soft/dropin/symbols.txt")).unwrap();
        assert_eq!(check(&list), Ok(()));
    }
}
