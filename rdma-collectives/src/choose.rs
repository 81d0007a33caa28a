//! Chooses an algorithm by a table of operation, size, ranks, hosts and transport.
//!
//! A table is a JSON file: `{"entries": [ENTRY, ...]}`, of which the first entry that applies
//! counts. An entry has the keys `op` and `algorithm`, and where it is limited `up_to_bytes`,
//! `up_to_ranks`, `up_to_hosts` and `transport`. The algorithm `auto` stands for the choice without
//! a table, for example because of an implementation that is no schedule. The program `tune`
//! measures such a table.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Error;
use crate::schedule::{Algorithm, Collective, Unsupported};
use crate::transport::Transport;

/// A collective on some ranks, for which an algorithm is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The collective.
    pub op: Collective,
    /// The size in nccl-tests' table: the larger one of input and output.
    pub bytes: u64,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of hosts.
    pub hosts: usize,
    /// The way in which ranks reach each other's memory.
    pub transport: Transport,
}

/// The algorithm of a collective up to some size, number of ranks and number of hosts. A bound that
/// is missing holds for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "AnyEntry")]
pub struct TableEntry {
    /// The collective.
    pub op: Collective,
    /// Most bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to_bytes: Option<u64>,
    /// Most ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to_ranks: Option<usize>,
    /// Most hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to_hosts: Option<usize>,
    /// The transport.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// The algorithm; `None`, in the file `auto`, is the choice without a table.
    #[serde(serialize_with = "write_algorithm")]
    pub algorithm: Option<Algorithm>,
}

/// An entry as it stands in a file, whose algorithm may not do its collective.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnyEntry {
    op: Collective,
    up_to_bytes: Option<u64>,
    up_to_ranks: Option<usize>,
    up_to_hosts: Option<usize>,
    transport: Option<Transport>,
    #[serde(deserialize_with = "read_algorithm")]
    algorithm: Option<Algorithm>,
}

impl TryFrom<AnyEntry> for TableEntry {
    type Error = String;

    fn try_from(any: AnyEntry) -> Result<Self, String> {
        let AnyEntry { op, up_to_bytes, up_to_ranks, up_to_hosts, transport, algorithm } = any;
        match algorithm {
            Some(algorithm) if !algorithm.collectives().contains(&op) => {
                Err(Unsupported::Algorithm { op, algorithm }.to_string())
            }
            Some(Algorithm::InNetwork) => Err(
                "in-network needs aggregators, which start only if it is asked for by name: a table cannot choose it"
                    .to_owned(),
            ),
            _ if transport == Some(Transport::Auto) => Err("the transport of an entry is shm, verbs or tcp".to_owned()),
            _ => Ok(Self { op, up_to_bytes, up_to_ranks, up_to_hosts, transport, algorithm }),
        }
    }
}

/// The name of an algorithm, or of the choice without a table.
#[must_use]
pub fn algorithm_name(algorithm: Option<Algorithm>) -> &'static str {
    algorithm.map_or("auto", Algorithm::name)
}

fn write_algorithm<S: Serializer>(algorithm: &Option<Algorithm>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(algorithm_name(*algorithm))
}

fn read_algorithm<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Algorithm>, D::Error> {
    let name = String::deserialize(deserializer)?;
    if name == "auto" {
        return Ok(None);
    }
    let unknown = || serde::de::Error::custom(format!("there is no algorithm {name}"));
    Algorithm::named(&name).map(Some).ok_or_else(unknown)
}

/// A table of algorithms, whose first entry that applies counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlgorithmTable {
    /// The entries.
    pub entries: Vec<TableEntry>,
}

/// The algorithm of a collective that is done by a schedule: that of the table, or else of a
/// built-in table, in which every collective has an entry.
#[must_use]
pub fn choose(point: &Point, table: &AlgorithmTable) -> Algorithm {
    let built_in = || BUILT_IN.iter().find(|entry| entry.applies(point))?.algorithm;
    let named = table.find(point).and_then(|entry| entry.algorithm);
    named.or_else(built_in).unwrap_or(Algorithm::Direct)
}

impl TableEntry {
    const fn new(op: Collective, algorithm: Algorithm) -> Self {
        let algorithm = Some(algorithm);
        Self { op, up_to_bytes: None, up_to_ranks: None, up_to_hosts: None, transport: None, algorithm }
    }

    const fn bytes(self, most: u64) -> Self {
        Self { up_to_bytes: Some(most), ..self }
    }

    const fn ranks(self, most: usize) -> Self {
        Self { up_to_ranks: Some(most), ..self }
    }

    /// For ranks of one host that share memory.
    const fn shm(self) -> Self {
        Self { up_to_hosts: Some(1), transport: Some(Transport::Shm), ..self }
    }

    const fn one_host(self) -> Self {
        Self { up_to_hosts: Some(1), ..self }
    }

    fn applies(&self, point: &Point) -> bool {
        self.op == point.op
            && self.up_to_bytes.is_none_or(|most| point.bytes <= most)
            && self.up_to_ranks.is_none_or(|most| point.ranks <= most)
            && self.up_to_hosts.is_none_or(|most| point.hosts <= most)
            && self.transport.is_none_or(|transport| point.transport == transport)
    }
}

impl AlgorithmTable {
    /// The first entry that applies.
    #[must_use]
    pub fn find(&self, point: &Point) -> Option<&TableEntry> {
        self.entries.iter().find(|entry| entry.applies(point))
    }

    /// Reads a table from a file.
    ///
    /// # Errors
    /// The file cannot be read or is no table, or an algorithm does not do its collective; the
    /// message has the line.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let failure = |cause: String, advice: &str| {
            Error::new(format!("cannot read the table of algorithms {}: {cause}{advice}", path.display()))
        };
        let text = fs::read_to_string(path).map_err(|error| failure(error.to_string(), "; give another path"))?;
        Self::parse(&text).map_err(|cause| failure(cause, "; correct it, or let tune write another"))
    }

    /// Writes the table to a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string());
        let written = text.and_then(|text| replace(path, &(text + "\n")).map_err(|error| error.to_string()));
        let failure = |cause| {
            Error::new(format!("cannot write the table of algorithms {}: {cause}; give another path", path.display()))
        };
        written.map_err(failure)
    }

    fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}

/// Replaces the contents of a file, which stay as they are if the disk is full.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // The file that a link names, not the link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // A device or a pipe cannot be replaced, nor a file in a folder that cannot be written to.
    let is_replaceable = path.is_file() || !path.exists();
    let Some(mut file) = is_replaceable.then(|| File::create(&new).ok()).flatten() else {
        return fs::write(path, text);
    };
    if let Ok(old) = fs::metadata(&path) {
        let _kept = file.set_permissions(old.permissions());
    }
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&new, &path));
    if written.is_err() {
        let _left = fs::remove_file(&new);
    }
    written
}

/// Sizes up to which the number of messages counts more than their length.
const SHORT: u64 = 64 << 10;

/// The algorithms without a measured table: few messages for short operations; for long ones each
/// element once over each link, and few of them between hosts. Direct reads of shared memory need
/// no messages.
const BUILT_IN: [TableEntry; 36] = {
    use Algorithm as A;
    use Collective as C;
    [
        TableEntry::new(C::AllReduce, A::Direct).bytes(SHORT / 4).ranks(4),
        TableEntry::new(C::AllReduce, A::RecursiveDoubling).bytes(SHORT),
        TableEntry::new(C::AllReduce, A::TwoStep).one_host().ranks(16),
        TableEntry::new(C::AllReduce, A::Ring).one_host(),
        TableEntry::new(C::AllReduce, A::HalvingDoubling).bytes(1 << 20),
        TableEntry::new(C::AllReduce, A::Hierarchical),
        TableEntry::new(C::AllGather, A::Direct).shm(),
        TableEntry::new(C::AllGather, A::Direct).ranks(4),
        TableEntry::new(C::AllGather, A::Bruck).bytes(SHORT),
        TableEntry::new(C::AllGather, A::Direct).one_host(),
        TableEntry::new(C::AllGather, A::Hierarchical),
        TableEntry::new(C::ReduceScatter, A::Direct).shm(),
        TableEntry::new(C::ReduceScatter, A::Direct).ranks(4),
        TableEntry::new(C::ReduceScatter, A::HalvingDoubling).bytes(SHORT),
        TableEntry::new(C::ReduceScatter, A::Direct).one_host(),
        TableEntry::new(C::ReduceScatter, A::Hierarchical),
        TableEntry::new(C::AllToAll, A::Direct).shm(),
        TableEntry::new(C::AllToAll, A::Direct).bytes(SHORT),
        TableEntry::new(C::AllToAll, A::Pairwise),
        TableEntry::new(C::AllToAllV, A::Direct).shm(),
        TableEntry::new(C::AllToAllV, A::Direct).bytes(SHORT),
        TableEntry::new(C::AllToAllV, A::Pairwise),
        TableEntry::new(C::Broadcast, A::Direct).shm(),
        TableEntry::new(C::Broadcast, A::Binomial).bytes(SHORT),
        TableEntry::new(C::Broadcast, A::TwoStep).one_host(),
        TableEntry::new(C::Broadcast, A::Tree),
        TableEntry::new(C::Reduce, A::Direct).shm().bytes(SHORT),
        TableEntry::new(C::Reduce, A::Binomial).bytes(SHORT),
        TableEntry::new(C::Reduce, A::TwoStep).one_host(),
        TableEntry::new(C::Reduce, A::Tree),
        TableEntry::new(C::Gather, A::Direct),
        TableEntry::new(C::Scatter, A::Direct),
        TableEntry::new(C::SendRecv, A::Direct),
        TableEntry::new(C::HyperCube, A::RecursiveDoubling),
        TableEntry::new(C::Barrier, A::Bruck).one_host(),
        TableEntry::new(C::Barrier, A::Hierarchical),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    fn point(op: Collective, bytes: u64, ranks: usize, hosts: usize) -> Point {
        Point { op, bytes, ranks, hosts, transport: Transport::Shm }
    }

    #[test]
    fn every_choice_does_its_collective() {
        let none = AlgorithmTable::default();
        for &op in Collective::ALL {
            for bytes in [0, 1, SHORT, SHORT + 1, u64::MAX] {
                for (ranks, hosts) in [(1, 1), (2, 1), (2, 2), (8, 1), (64, 1), (64, 8)] {
                    let algorithm = choose(&point(op, bytes, ranks, hosts), &none);
                    assert!(algorithm.collectives().contains(&op), "{algorithm} for {op}");
                }
            }
            let most = point(op, u64::MAX, usize::MAX, usize::MAX);
            assert!(BUILT_IN.iter().any(|entry| entry.applies(&most)), "{op}");
        }
    }

    #[test]
    fn no_built_in_entry_is_hidden_by_an_earlier_one() {
        for (index, entry) in BUILT_IN.iter().enumerate() {
            let most = |bound: Option<usize>| bound.unwrap_or(usize::MAX);
            let (bytes, ranks) = (entry.up_to_bytes.unwrap_or(u64::MAX), most(entry.up_to_ranks));
            let point = point(entry.op, bytes, ranks, most(entry.up_to_hosts));
            let point = Point { transport: entry.transport.unwrap_or(Transport::Verbs), ..point };
            assert_eq!(BUILT_IN.iter().position(|other| other.applies(&point)), Some(index));
        }
    }

    #[test]
    fn the_first_entry_that_applies_counts() {
        let entry = TableEntry::new(Collective::AllReduce, Algorithm::Tree);
        let verbs = TableEntry { transport: Some(Transport::Verbs), algorithm: None, ..entry };
        let ring = TableEntry { algorithm: Some(Algorithm::Ring), ..entry };
        let table = AlgorithmTable { entries: vec![verbs, entry.bytes(100), entry.ranks(3), ring] };
        let shm = |bytes, ranks| point(Collective::AllReduce, bytes, ranks, 1);
        let chosen = |bytes, ranks| choose(&shm(bytes, ranks), &table);
        assert_eq!(chosen(100, 8), Algorithm::Tree);
        assert_eq!(chosen(101, 3), Algorithm::Tree);
        assert_eq!(chosen(101, 4), Algorithm::Ring);
        assert_eq!(table.find(&Point { transport: Transport::Verbs, ..shm(1, 2) }), Some(&verbs));
        assert_eq!(choose(&point(Collective::SendRecv, 5, 3, 1), &table), Algorithm::Direct);
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let path = std::env::temp_dir().join(format!("rdma-table-{}.json", std::process::id()));
        let mut table = AlgorithmTable { entries: BUILT_IN.to_vec() };
        let auto = TableEntry { transport: Some(Transport::Verbs), algorithm: None, ..BUILT_IN[0] };
        table.entries.push(auto);
        table.write(&path).unwrap();
        assert_eq!(AlgorithmTable::read(&path).unwrap(), table);
        fs::remove_file(&path).unwrap();
        let missing = AlgorithmTable::read(&path).unwrap_err().to_string();
        assert!(missing.contains("rdma-table") && missing.contains("No such file"), "{missing}");
    }

    #[test]
    fn a_wrong_table_is_refused_with_the_line() {
        for (text, cause) in [
            ("nonsense", "at line 1"),
            ("{\n\"entries\": [\n", "at line 3"),
            (r#"{"program": "all_reduce", "results": []}"#, "unknown field `program`, expected `entries` at line 1"),
            (r#"{"entries": [], "more": 1}"#, "unknown field `more`"),
            (
                "{\"entries\": [\n{\"op\": \"all_to_all\", \"algorithm\": \"ring\"}]}",
                "use one of direct, pairwise at line 2",
            ),
            ("{\"entries\": [\n\n{\"op\": \"reduce\", \"algorithm\": \"magic\"}]}", "no algorithm magic at line 3"),
            (r#"{"entries": [{"op": "magic", "algorithm": "ring"}]}"#, "unknown variant `magic`"),
            (r#"{"entries": [{"op": "reduce", "algorithm": "ring", "transport": "auto"}]}"#, "is shm, verbs or tcp"),
        ] {
            let refused = AlgorithmTable::parse(text).unwrap_err();
            assert!(refused.contains(cause), "{text}: {refused}");
        }
        let entry = r#"{"op": "all_reduce", "algorithm": "halving-doubling"}"#;
        let table = AlgorithmTable::parse(&format!(r#"{{"entries": [{entry}]}}"#)).unwrap();
        assert_eq!(table.entries, [TableEntry::new(Collective::AllReduce, Algorithm::HalvingDoubling)]);
    }

    #[test]
    fn a_table_that_cannot_be_written_stays_as_it_was() {
        rdma_test_support::passes_alone(&["choose::tests::tables_beyond_a_limit"], &[]);
    }

    /// Runs in a process of its own, whose files have a limit.
    #[test]
    #[ignore = "run by a_table_that_cannot_be_written_stays_as_it_was"]
    fn tables_beyond_a_limit() {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        use nix::sys::signal::{SigSet, Signal};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.json");
        let entries =
            |count| AlgorithmTable { entries: vec![TableEntry::new(Collective::AllReduce, Algorithm::Ring); count] };
        entries(1).write(&path).unwrap();
        // Otherwise the signal ends the process.
        SigSet::from(Signal::SIGXFSZ).thread_block().unwrap();
        let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, 1000, hard).unwrap();
        let written = entries(100).write(&path);
        setrlimit(Resource::RLIMIT_FSIZE, soft, hard).unwrap();
        assert!(written.unwrap_err().to_string().contains("cannot write the table of algorithms"));
        assert_eq!(AlgorithmTable::read(&path).unwrap(), entries(1));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
