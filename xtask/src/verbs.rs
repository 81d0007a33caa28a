//! `cargo xtask verbs`: makes the guide's page for those who come from C, from a table of what each
//! function of libibverbs and librdmacm is in `rdma`. The docs check that the items exist.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use crate::system::{at, read};

const TABLE: &str = "xtask/coverage.tsv";
const PAGE: &str = "rdma/src/guide/coming_from_c.md";
/// The page's text above the tables.
const HEAD: &str = include_str!("coming_from_c.md");
/// The declarations of the functions: exported ones, and a folder of inline ones.
const EXPORTED: &str = "rdma-sys/tests/it/abi/functions.rs";
const INLINE: &str = "rdma-sys/src/inline";
/// The sections of the page, by the first column of the table.
const SECTIONS: [(&str, &str); 2] = [("verbs", "libibverbs"), ("rdmacm", "librdmacm")];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only check that the page is what the table makes.
    #[arg(long)]
    check: bool,
}

/// A function of C.
#[derive(Debug, PartialEq, Eq)]
struct Row<'a> {
    library: &'a str,
    function: &'a str,
    meaning: Meaning<'a>,
}

/// What a function is in `rdma`.
#[derive(Debug, PartialEq, Eq)]
enum Meaning<'a> {
    /// Words, with items of the crate in braces.
    Here(&'a str),
    /// Only `rdma_sys` has the function; it concerns this subject.
    Below(&'a str),
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let root = crate::root();
    let table = read(&root.join(TABLE))?;
    let rows = parse(&table)?;
    compare(&rows, &declared(&root)?)?;
    let (page, made) = (root.join(PAGE), page(&rows));
    if !options.check {
        return std::fs::write(&page, made).map_err(at(&page));
    }
    let is_same = read(&page)? == made;
    is_same.then_some(()).ok_or_else(|| format!("{PAGE} is not what {TABLE} makes: run `cargo xtask verbs`"))
}

fn parse(table: &str) -> Result<Vec<Row<'_>>, String> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    let row = |line| {
        let malformed = || format!("{TABLE}: malformed: {line}");
        let [library, function, words] =
            <[&str; 3]>::try_from(str::split(line, '\t').collect::<Vec<_>>()).map_err(|_| malformed())?;
        let meaning = words.strip_prefix("- ").map_or(Meaning::Here(words), Meaning::Below);
        let is_known = SECTIONS.iter().any(|(name, _)| *name == library);
        is_known.then_some(Row { library, function, meaning }).ok_or_else(malformed)
    };
    lines.map(row).collect()
}

/// The functions that `rdma_sys` declares.
fn declared(root: &Path) -> Result<BTreeSet<String>, String> {
    let mut sources = read(&root.join(EXPORTED))?;
    let folder = root.join(INLINE);
    for file in std::fs::read_dir(&folder).map_err(at(&folder))? {
        sources += &read(&file.map_err(at(&folder))?.path())?;
    }
    Ok(functions(&sources))
}

/// The functions of C that a source declares. The exported function behind an inline one has an
/// underscore in front.
fn functions(source: &str) -> BTreeSet<String> {
    let names = source.split("fn ").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        rest[..end].trim_start_matches('_')
    });
    let prefixes = ["ibv_", "rdma_", "mbps_", "mult_"];
    names.filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix))).map(str::to_owned).collect()
}

/// Checks that the table has each function once, and no other.
fn compare(rows: &[Row<'_>], declared: &BTreeSet<String>) -> Result<(), String> {
    let mut listed = BTreeSet::new();
    for Row { function, .. } in rows {
        if !listed.insert((*function).to_owned()) {
            return Err(format!("{TABLE} has {function} twice"));
        }
    }
    let lacks = |side: &str, name: Option<&String>| name.map_or(Ok(()), |name| Err(format!("{side} lacks {name}")));
    lacks(TABLE, declared.difference(&listed).next())?;
    lacks("rdma-sys", listed.difference(declared).next())
}

/// The page's text.
fn page(rows: &[Row<'_>]) -> String {
    let mut page = HEAD.to_owned();
    for (library, title) in SECTIONS {
        write!(page, "\n## {title}\n\n| C | Here |\n| --- | --- |\n").expect("memory");
        for row in rows.iter().filter(|row| row.library == library) {
            let words = match row.meaning {
                Meaning::Here(words) => linked(words),
                Meaning::Below(subject) => format!("`rdma_sys` only: {subject}"),
            };
            writeln!(page, "| `{}` | {words} |", row.function).expect("memory");
        }
    }
    page
}

/// Makes links of the items in braces.
fn linked(words: &str) -> String {
    let mut text = String::new();
    for part in words.split('}') {
        let Some((before, item)) = part.split_once('{') else {
            text += part;
            continue;
        };
        write!(text, "{before}[`{item}`](crate::{item})").expect("memory");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_links() {
        assert_eq!(linked("{A::b}, or {C}s"), "[`A::b`](crate::A::b), or [`C`](crate::C)s");
        assert_eq!(linked("nothing"), "nothing");
    }

    #[test]
    fn every_function_is_listed_once() {
        let table = "# a comment\nverbs\tibv_a\t{A}\nrdmacm\trdma_b\t- windows\n";
        let rows = parse(table).unwrap();
        assert_eq!(rows[1].meaning, Meaning::Below("windows"));
        let declared = functions("pub fn _ibv_a(x); fn rdma_b: c; fn helper()");
        compare(&rows, &declared).unwrap();
        let page = page(&rows);
        assert!(
            page.contains("| `ibv_a` | [`A`](crate::A) |\n")
                && page.contains("| `rdma_b` | `rdma_sys` only: windows |\n")
        );
        assert!(compare(&rows[..1], &declared).unwrap_err().contains("lacks rdma_b"));
        assert!(compare(&rows, &functions("fn ibv_a")).unwrap_err().contains("rdma-sys lacks rdma_b"));
        assert!(parse("verbs\tibv_a\n").is_err());
    }

    #[test]
    fn the_table_is_that_of_the_bindings() {
        let root = crate::root();
        let table = read(&root.join(TABLE)).unwrap();
        compare(&parse(&table).unwrap(), &declared(&root).unwrap()).unwrap();
    }
}
