//! A rule for modules: at most two files import one another in a circle.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::Imports;

/// Most files of a circle.
const MOST: usize = 2;

/// Lists the circles of each crate.
pub(super) fn check(crates: &BTreeMap<String, Imports>) -> Vec<String> {
    let fault = |folder, circle: Vec<String>| format!("{folder}: a circle of imports: {}", circle.join(", "));
    let faults = |(folder, imports)| circles(imports).into_iter().map(move |circle| fault(folder, circle));
    crates.iter().flat_map(faults).collect()
}

/// The circles of more than [`MOST`] modules.
fn circles(imports: &Imports) -> BTreeSet<Vec<String>> {
    let reached: BTreeMap<&str, _> = imports.keys().map(|from| (from.as_str(), reached(imports, from))).collect();
    let circle = |(of, seen): (&&str, &BTreeSet<&str>)| {
        seen.iter().filter(|other| reached[*other].contains(of)).map(|module| (*module).to_owned()).collect()
    };
    reached.iter().map(circle).filter(|circle: &Vec<_>| circle.len() > MOST).collect()
}

/// The modules that a module imports, and those that these import, and so on.
fn reached<'a>(imports: &'a Imports, from: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(at) = next.pop() {
        next.extend(imports[at].iter().map(String::as_str).filter(|to| seen.insert(*to)));
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::imports::imports;

    fn circles_of(modules: &[(&str, &str)]) -> Vec<Vec<String>> {
        let texts = modules.iter().map(|(module, text)| ((*module).to_owned(), (*text).to_owned()));
        circles(&imports(texts.collect())).into_iter().collect()
    }

    const ROOT: (&str, &str) = ("crate", "mod a;\npub use a::A;\nmod b;\nmod c;\n");
    const A: (&str, &str) = ("crate::a", "use super::b::{\n    self, B,\n};\n");
    const B: (&str, &str) = ("crate::b", "use crate::{c::C, error::E};\n");

    #[test]
    fn three_files_are_a_circle_however_they_import() {
        let all = ["crate::a", "crate::b", "crate::c"].map(str::to_owned).to_vec();
        for text in ["use crate::a::A;", "use super::A;", "fn f() {\n    crate::a::f();\n}"] {
            assert_eq!(circles_of(&[ROOT, A, B, ("crate::c", text)]), std::slice::from_ref(&all), "{text}");
        }
    }

    #[test]
    fn two_files_comments_and_tests_are_none() {
        let tests = "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n// crate::a::A\n#[cfg(test)]\nmod t;\n";
        assert!(circles_of(&[ROOT, A, B, ("crate::c", tests), ("crate::c::t", "use crate::a::A;")]).is_empty());
        assert!(circles_of(&[ROOT, A, B, ("crate::c", "use super::b::B;")]).is_empty());
    }
}
