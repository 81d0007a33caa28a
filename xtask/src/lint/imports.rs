//! What modules import, read from their text.
//!
//! Paths are read from the text, which rustfmt has formatted: those that begin with `crate`,
//! `self`, `super` or a child module. A name that a module only hands on belongs to the file it
//! comes from. A module may name those that contain it, of which it is a part. Code for tests does
//! not count.

use std::collections::{BTreeMap, BTreeSet};
use std::{fs, path::Path};

/// The texts of a crate's modules.
pub(super) type Texts = BTreeMap<String, String>;
/// The modules that each module of a crate imports.
pub(super) type Imports = BTreeMap<String, BTreeSet<String>>;
/// The paths that a crate's modules name: those that each uses, and those that it hands on.
type Paths = BTreeMap<String, [BTreeSet<String>; 2]>;

/// What the modules of each crate import; a crate is named by its folder.
pub(super) fn of_crates(root: &Path, files: &[String]) -> BTreeMap<String, Imports> {
    let mut crates = BTreeMap::<&str, Texts>::new();
    for file in files.iter().filter_map(|file| file.strip_suffix(".rs")) {
        let Some((folder, name)) = file.split_once("/src/") else { continue };
        let Ok(text) = fs::read_to_string(root.join(format!("{file}.rs"))) else { continue };
        let name = name.strip_suffix("/mod").unwrap_or(name).replace('/', "::");
        let is_root = name == "lib" || name == "main";
        let module = if is_root { "crate".to_owned() } else { format!("crate::{name}") };
        crates.entry(folder).or_default().insert(module, text);
    }
    crates.into_iter().map(|(folder, texts)| (folder.to_owned(), imports(texts))).collect()
}

/// What the modules with these texts import.
pub(super) fn imports(mut texts: Texts) -> Imports {
    let tests: Vec<_> = texts.iter_mut().flat_map(|(module, text)| remove_tests(module, text)).collect();
    texts.retain(|module, _| !tests.iter().any(|test| is_within(module, test)));
    let paths: Paths = texts.iter().map(|(module, text)| (module.clone(), paths_of(&texts, module, text))).collect();
    let targets = |(from, [used, _]): (&String, &[BTreeSet<String>; 2])| {
        let named = used.iter().flat_map(|path| named(&paths, from, path));
        let targets = named.filter_map(|path| target(&paths, from, path));
        (from.clone(), targets.map(str::to_owned).collect())
    };
    paths.iter().map(targets).collect()
}

/// The paths that a path of `from` stands for: all that a module has, if it takes all of one that
/// contains it.
fn named<'a>(paths: &'a Paths, from: &str, path: &'a String) -> Vec<&'a String> {
    let container = path.strip_suffix("::*").filter(|container| is_within(from, container));
    container.and_then(|container| paths.get(container)).map_or(vec![path], |all| all.iter().flatten().collect())
}

/// Removes comments and items for tests. Returns the modules that are for tests. What a module
/// within the file takes from `super` is the file's own.
fn remove_tests(module: &str, text: &mut String) -> Vec<String> {
    let indent_of = |line: &str| line.len() - line.trim_start().len();
    let (mut kept, mut tests) = (String::new(), Vec::new());
    // The indents of the modules within the file that a line is in.
    let mut inner: Vec<usize> = Vec::new();
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    while let Some(line) = lines.next() {
        let indent = indent_of(line);
        if !["#[cfg(test)]", "#[cfg(all(test"].iter().any(|test| line[indent..].starts_with(test)) {
            if line[indent..] == *"}" && inner.last() == Some(&indent) {
                inner.pop();
            }
            match inner.is_empty() {
                true => kept.push_str(line),
                false if line.contains("super::super") => kept.push_str(&line.replace("super::super", "self::super")),
                false => kept.push_str(&line.replace("super::", "self::")),
            }
            kept.push('\n');
            let is_module = |(before, name): (&str, &str)| before.ends_with("mod") && name.chars().all(is_of_name);
            if line.strip_suffix(" {").and_then(|line| line.rsplit_once(' ')).is_some_and(is_module) {
                inner.push(indent);
            }
            continue;
        }
        // The last line of an item begins where its attribute does.
        let is_last = |line: &&str| indent_of(line) <= indent && line.ends_with(['}', ';', ',']);
        let last = lines.find(is_last).unwrap_or_default();
        let name = last.strip_suffix(';').and_then(|item| item.rsplit_once("mod "));
        tests.extend(name.map(|(_, name)| format!("{module}::{name}")));
    }
    *text = kept;
    tests
}

/// The paths that a module uses and hands on, from the root of its crate.
fn paths_of(texts: &Texts, module: &str, text: &str) -> [BTreeSet<String>; 2] {
    let (mut used, mut handed_on) = (String::new(), String::new());
    for statement in text.split_inclusive(';') {
        let at = ["pub use ", ") use "].iter().filter_map(|begin| statement.rfind(begin)).max();
        let (before, hands_on) = statement.split_at(at.unwrap_or(statement.len()));
        used.push_str(before);
        handed_on.push_str(hands_on);
    }
    let words: BTreeSet<_> = used.split(|char| !is_of_name(char)).collect();
    let [mut used, handed_on] = [&used, &handed_on].map(|text| paths_in(texts, module, text));
    // The root hands on what it does not need; so does a module with its own parts.
    let is_needed = |path: &&String| module != "crate" && !is_within(path, module) || words.contains(last(path));
    used.extend(handed_on.iter().filter(is_needed).cloned());
    [used, handed_on]
}

/// The paths in a text of a module.
fn paths_in(texts: &Texts, module: &str, text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("::") {
        let name = text[..at].rsplit(|char| !is_of_name(char)).next().unwrap_or_default();
        let child = join(module, name);
        let begins = !name.is_empty() && !text[..at - name.len()].ends_with(':');
        if begins && (["crate", "self", "super"].contains(&name) || texts.contains_key(&child)) {
            expand(if name == "crate" { name } else { &child }, &text[at..], &mut found);
        }
    }
    found
}

/// Adds the paths that begin with `path` and go on as the text does, with braces or without.
fn expand(path: &str, text: &str, found: &mut BTreeSet<String>) {
    let Some(text) = text.strip_prefix("::") else {
        // Another name stands behind the item's, where the last name of a path is looked for.
        let alias = text.trim_start().strip_prefix("as ").and_then(|text| text.split(|char| !is_of_name(char)).next());
        found.insert(join(path, alias.unwrap_or_default()));
        return;
    };
    let mut go_on = |text: &str| {
        let text = text.trim_start();
        if text.starts_with('*') {
            found.insert(format!("{path}::*"));
            return;
        }
        let end = text.find(|char| !is_of_name(char)).unwrap_or(text.len());
        expand(&join(path, &text[..end]), &text[end..], found);
    };
    let Some(group) = text.strip_prefix('{') else { return go_on(text) };
    let (mut depth, mut begin) = (0, 0);
    for (at, char) in group.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                go_on(&group[begin..at]);
                begin = at + 1;
                if char == '}' {
                    return;
                }
            }
            _ => {}
        }
    }
}

/// The module that a path of `from` leads to. None if that is `from`, or contains it.
fn target<'a>(paths: &'a Paths, from: &str, path: &'a str) -> Option<&'a str> {
    let to = module_of(paths, path)?;
    let is_part = is_within(from, to);
    let item = path[to.len()..].split("::").nth(1).filter(|item| to != from && *item != "*");
    let of_item = |path: &&String| Some(last(path)) == item && module_of(paths, path) != Some(to);
    // What a module imports, its parts may take from it; others what it hands on.
    let [used, handed_on] = &paths[to];
    let imported = handed_on.iter().chain(used.iter().filter(|_| is_part)).find(of_item);
    match imported.filter(|imported| module_of(paths, imported).is_some_and(|other| !is_within(to, other))) {
        Some(imported) => target(paths, from, imported),
        None => Some(to).filter(|_| !is_part),
    }
}

fn last(path: &str) -> &str {
    path.rsplit("::").next().unwrap_or(path)
}

fn module_of<'a>(paths: &'a Paths, path: &str) -> Option<&'a str> {
    let is_known = |path: &&str| paths.contains_key(*path);
    let known =
        std::iter::successors(Some(path), |path| path.rsplit_once("::").map(|(parent, _)| parent)).find(is_known)?;
    paths.get_key_value(known).map(|(module, _)| module.as_str())
}

/// Whether a module is another, or a part of it.
pub(super) fn is_within(module: &str, other: &str) -> bool {
    module.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn is_of_name(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

fn join(path: &str, name: &str) -> String {
    match name {
        "self" | "" => path.to_owned(),
        "super" => path.rsplit_once("::").map_or("crate", |(parent, _)| parent).to_owned(),
        name => format!("{path}::{name}"),
    }
}
