//! The order of rooms: a crate's rooms import those below them only.
//!
//! ARCHITECTURE.md lists the rooms of each crate, from the bottom to the top, in a block of code
//! with the mark `rooms`. A line `! a > b` allows an import upwards.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::imports::{Imports, is_within};
use crate::system::read;

const FILE: &str = "ARCHITECTURE.md";

/// The rooms of a crate in their order, and the imports upwards that are allowed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Order {
    rooms: Vec<String>,
    upwards: BTreeSet<(String, String)>,
}

/// Lists the imports upwards of each crate, the rooms without a place and the places without a
/// room.
pub(super) fn check(root: &Path, crates: &BTreeMap<String, Imports>) -> Result<Vec<String>, String> {
    let orders = orders(&read(&root.join(FILE))?)?;
    let unknown = orders.keys().filter(|folder| !crates.contains_key(*folder));
    let mut faults: Vec<_> = unknown.map(|folder| format!("{FILE}: there is no crate {folder}")).collect();
    for (folder, imports) in crates {
        let Some(order) = orders.get(folder) else { continue };
        faults.extend(faults_of(imports, order).into_iter().map(|fault| format!("{folder}: {fault}")));
    }
    Ok(faults)
}

/// The orders that a text has in its block.
fn orders(text: &str) -> Result<BTreeMap<String, Order>, String> {
    let block = text.split_once("```rooms\n").and_then(|(_, rest)| rest.split_once("```"));
    let Some((block, _)) = block else { return Err(format!("{FILE} has no block `rooms`")) };
    let mut orders = BTreeMap::<String, Order>::new();
    let mut folder = String::new();
    for line in block.lines() {
        let wrong = || format!("{FILE}: `{line}` is no line of rooms");
        let rest = match line.split_once(':') {
            Some((name, rest)) if !line.starts_with(' ') => {
                name.clone_into(&mut folder);
                rest
            }
            _ => line,
        };
        let order = orders.entry(folder.clone()).or_default();
        if let Some(upwards) = rest.trim().strip_prefix("! ") {
            let (from, to) = upwards.split_once(" > ").ok_or_else(wrong)?;
            order.upwards.insert((from.to_owned(), to.to_owned()));
        } else if folder.is_empty() {
            return Err(wrong());
        } else {
            order.rooms.extend(rest.split_whitespace().map(str::to_owned));
        }
    }
    Ok(orders)
}

/// The faults of a crate.
fn faults_of(imports: &Imports, order: &Order) -> Vec<String> {
    // A room in another comes before it is looked for by the name of the other.
    let room_of = |module: &str| {
        let rooms = order.rooms.iter().enumerate();
        let own = rooms.filter(|(_, room)| is_within(module, &format!("crate::{}", room.replace('/', "::"))));
        own.max_by_key(|(_, room)| room.len())
    };
    let (mut faults, mut used, mut found) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (from, targets) in imports {
        let Some((at, room)) = room_of(from) else {
            if from != "crate" && !from.starts_with("crate::bin") {
                faults.insert(format!("{FILE} gives the room of {from} no place"));
            }
            continue;
        };
        found.insert(room);
        for (above, other) in targets.iter().filter_map(|to| room_of(to)).filter(|(above, _)| *above > at) {
            let upwards = (room.clone(), other.clone());
            if !order.upwards.contains(&upwards) {
                let place = order.rooms[at..above].len();
                faults.insert(format!("{from} imports {other}, {place} rooms above {room}"));
            }
            used.insert(upwards);
        }
    }
    let missing = order.rooms.iter().filter(|room| !found.contains(room));
    faults.extend(missing.map(|room| format!("{FILE} names the room {room}, which is not there")));
    let idle = order.upwards.iter().filter(|upwards| !used.contains(*upwards));
    faults.extend(idle.map(|(from, to)| format!("{FILE}: {from} does not import {to} any more")));
    faults.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::imports::imports;

    const TEXT: &str = "```rooms\nother: x\na-crate: low ring\n  a/deep high\n  ! low > high\n```\n";

    fn faults(modules: &[(&str, &str)]) -> Vec<String> {
        let texts = modules.iter().map(|(module, text)| ((*module).to_owned(), (*text).to_owned()));
        faults_of(&imports(texts.collect()), &orders(TEXT).unwrap()["a-crate"])
    }

    const LOW: (&str, &str) = ("crate::low", "use crate::high::H;");
    const RING: (&str, &str) = ("crate::ring", "use crate::low::L;");
    const DEEP: (&str, &str) = ("crate::a::deep", "use crate::ring::R;");
    const HIGH: (&str, &str) = ("crate::high", "use crate::a::deep::D;");

    #[test]
    fn imports_downwards_and_allowed_ones_are_none() {
        assert!(faults(&[LOW, RING, DEEP, HIGH]).is_empty());
    }

    #[test]
    fn what_is_out_of_order_is_said() {
        let upwards = ("crate::ring", "use crate::a::deep::D;");
        assert_eq!(faults(&[LOW, upwards, DEEP, HIGH]), ["crate::ring imports a/deep, 1 rooms above ring"]);
        let homeless = ("crate::new", "use crate::low::L;");
        assert_eq!(
            faults(&[LOW, RING, DEEP, HIGH, homeless]),
            ["ARCHITECTURE.md gives the room of crate::new no place"]
        );
        assert_eq!(faults(&[LOW, RING, HIGH]), ["ARCHITECTURE.md names the room a/deep, which is not there"]);
        let lower = ("crate::low", "");
        assert_eq!(faults(&[lower, RING, DEEP, HIGH]), ["ARCHITECTURE.md: low does not import high any more"]);
    }

    #[test]
    fn an_import_upwards_is_seen_however_it_is_written() {
        let fault = "crate::ring imports high, 2 rooms above ring";
        let root = ("crate", "pub use high::H;\npub use high::A as B;\n");
        for text in [
            "pub use crate::high::H;",
            "pub(crate) use crate::high::{self, H};",
            "use crate::H;",
            "use crate::B;",
            "use crate::{H as L};",
            "use crate::*;",
            "use super::*;",
            "fn f() {\n    crate::high::f();\n}",
            "macro_rules! m {\n    () => {\n        $crate::high::f()\n    };\n}",
        ] {
            let all = faults(&[root, LOW, ("crate::ring", text), DEEP, HIGH]);
            assert_eq!(all, [fault], "{text}");
        }
        let own = "mod inner {\n    use super::*;\n}\n";
        assert!(faults(&[root, LOW, ("crate::ring", own), DEEP, HIGH]).is_empty());
        let theirs = "mod inner {\n    use super::super::H;\n}\n";
        assert_eq!(faults(&[root, LOW, ("crate::ring", theirs), DEEP, HIGH]), [fault]);
    }

    #[test]
    fn lines_that_are_none_are_refused() {
        assert!(orders("no block").is_err());
        assert!(orders("```rooms\na: b\n  ! b and c\n```").is_err());
        assert!(orders("```rooms\n  b\n```").is_err());
    }
}
