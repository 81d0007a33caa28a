//! Chooses an algorithm by a table of operation, size, ranks and hosts.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::schedules::{Algorithm, Collective};
use crate::Failure;

/// The algorithm of a collective up to some size, number of ranks and number of hosts. A bound that
/// is missing holds for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableEntry {
    /// The collective.
    pub op: Collective,
    /// Most bytes: the size in nccl-tests' table, the larger one of input and output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_bytes: Option<u64>,
    /// Most ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_ranks: Option<usize>,
    /// Most hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_hosts: Option<usize>,
    /// The algorithm.
    pub algorithm: Algorithm,
}

/// A table of algorithms, whose first entry that applies counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlgorithmTable {
    /// The entries.
    pub entries: Vec<TableEntry>,
}

/// The algorithm of a collective: that of the table, or else of a built-in table, in which every
/// collective has an entry.
#[must_use]
pub fn choose(op: Collective, bytes: u64, ranks: usize, hosts: usize, table: &AlgorithmTable) -> Algorithm {
    let mut entries = table.entries.iter().chain(&BUILT_IN);
    let entry = entries.find(|entry| entry.applies(op, bytes, ranks, hosts));
    entry.map_or(Algorithm::Direct, |entry| entry.algorithm)
}

impl TableEntry {
    const fn new(op: Collective, algorithm: Algorithm) -> Self {
        Self { op, up_to_bytes: None, up_to_ranks: None, up_to_hosts: None, algorithm }
    }

    const fn bytes(self, most: u64) -> Self {
        Self { up_to_bytes: Some(most), ..self }
    }

    const fn ranks(self, most: usize) -> Self {
        Self { up_to_ranks: Some(most), ..self }
    }

    const fn one_host(self) -> Self {
        Self { up_to_hosts: Some(1), ..self }
    }

    fn applies(&self, op: Collective, bytes: u64, ranks: usize, hosts: usize) -> bool {
        self.op == op
            && self.up_to_bytes.is_none_or(|most| bytes <= most)
            && self.up_to_ranks.is_none_or(|most| ranks <= most)
            && self.up_to_hosts.is_none_or(|most| hosts <= most)
    }
}

impl AlgorithmTable {
    /// Reads a table from a JSON file.
    ///
    /// # Errors
    /// The file cannot be read or is no table, or an algorithm does not do its collective.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let failure =
            |cause: String| Failure::new(format!("cannot read the table of algorithms {}: {cause}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| failure(error.to_string()))?;
        Self::parse(&text).map_err(failure)
    }

    /// Writes the table to a JSON file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string());
        let written = text.and_then(|text| std::fs::write(path, text + "\n").map_err(|error| error.to_string()));
        let failure = |cause| Failure::new(format!("cannot write the table of algorithms {}: {cause}", path.display()));
        written.map_err(failure)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let table: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        for (index, TableEntry { op, algorithm, .. }) in table.entries.iter().enumerate() {
            if !algorithm.collectives().contains(op) {
                return Err(format!("entry {index}: {algorithm} is no algorithm for {op}"));
            }
        }
        Ok(table)
    }
}

/// Sizes up to which the number of messages counts more than their length.
const SHORT: u64 = 64 << 10;

/// The algorithms without a measured table: few messages for short operations; for long ones each
/// element once over each link, and few of them between hosts.
const BUILT_IN: [TableEntry; 30] = {
    use Algorithm as A;
    use Collective as C;
    [
        TableEntry::new(C::AllReduce, A::Direct).bytes(SHORT / 4).ranks(4),
        TableEntry::new(C::AllReduce, A::RecursiveDoubling).bytes(SHORT),
        TableEntry::new(C::AllReduce, A::TwoStep).one_host().ranks(16),
        TableEntry::new(C::AllReduce, A::Ring).one_host(),
        TableEntry::new(C::AllReduce, A::HalvingDoubling).bytes(1 << 20),
        TableEntry::new(C::AllReduce, A::Hierarchical),
        TableEntry::new(C::AllGather, A::Direct).ranks(4),
        TableEntry::new(C::AllGather, A::Bruck).bytes(SHORT),
        TableEntry::new(C::AllGather, A::Direct).one_host(),
        TableEntry::new(C::AllGather, A::Hierarchical),
        TableEntry::new(C::ReduceScatter, A::Direct).ranks(4),
        TableEntry::new(C::ReduceScatter, A::HalvingDoubling).bytes(SHORT),
        TableEntry::new(C::ReduceScatter, A::Direct).one_host(),
        TableEntry::new(C::ReduceScatter, A::Hierarchical),
        TableEntry::new(C::AllToAll, A::Direct).bytes(SHORT),
        TableEntry::new(C::AllToAll, A::Pairwise),
        TableEntry::new(C::AllToAllV, A::Direct).bytes(SHORT),
        TableEntry::new(C::AllToAllV, A::Pairwise),
        TableEntry::new(C::Broadcast, A::Binomial).bytes(SHORT),
        TableEntry::new(C::Broadcast, A::TwoStep).one_host(),
        TableEntry::new(C::Broadcast, A::Tree),
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
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_choice_does_its_collective() {
        let none = AlgorithmTable::default();
        for &op in Collective::value_variants() {
            for bytes in [0, 1, SHORT, SHORT + 1, u64::MAX] {
                for (ranks, hosts) in [(1, 1), (2, 1), (2, 2), (8, 1), (64, 1), (64, 8)] {
                    let algorithm = choose(op, bytes, ranks, hosts, &none);
                    assert!(algorithm.collectives().contains(&op), "{algorithm} for {op}");
                }
            }
            assert!(BUILT_IN.iter().any(|entry| entry.applies(op, u64::MAX, usize::MAX, usize::MAX)), "{op}");
        }
    }

    #[test]
    fn no_built_in_entry_is_hidden_by_an_earlier_one() {
        for (index, entry) in BUILT_IN.iter().enumerate() {
            let most = |bound: Option<usize>| bound.unwrap_or(usize::MAX);
            let (bytes, ranks) = (entry.up_to_bytes.unwrap_or(u64::MAX), most(entry.up_to_ranks));
            let first =
                BUILT_IN.iter().position(|other| other.applies(entry.op, bytes, ranks, most(entry.up_to_hosts)));
            assert_eq!(first, Some(index));
        }
    }

    #[test]
    fn the_first_entry_that_applies_counts() {
        let entry = TableEntry::new(Collective::AllReduce, Algorithm::Tree);
        let table = AlgorithmTable {
            entries: vec![entry.bytes(100), entry.ranks(3), TableEntry { algorithm: Algorithm::Ring, ..entry }],
        };
        let chosen = |bytes, ranks| choose(Collective::AllReduce, bytes, ranks, 1, &table);
        assert_eq!(chosen(100, 8), Algorithm::Tree);
        assert_eq!(chosen(101, 3), Algorithm::Tree);
        assert_eq!(chosen(101, 4), Algorithm::Ring);
        assert_eq!(choose(Collective::SendRecv, 5, 3, 1, &table), Algorithm::Direct);
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let path = std::env::temp_dir().join(format!("rdma-table-{}.json", std::process::id()));
        let table = AlgorithmTable { entries: BUILT_IN.to_vec() };
        table.write(&path).unwrap();
        assert_eq!(AlgorithmTable::read(&path).unwrap(), table);
        std::fs::remove_file(&path).unwrap();
        let missing = AlgorithmTable::read(&path).unwrap_err().to_string();
        assert!(missing.contains("rdma-table") && missing.contains("No such file"), "{missing}");
    }

    #[test]
    fn a_wrong_table_is_refused() {
        let refused = |text: &str| AlgorithmTable::parse(text).unwrap_err();
        let entry = r#"{"op": "alltoall", "up_to_bytes": 5, "algorithm": "ring"}"#;
        assert_eq!(refused(&format!(r#"{{"entries": [{entry}]}}"#)), "entry 0: ring is no algorithm for alltoall");
        assert!(
            refused(r#"{"entries": [{"op": "all_reduce", "algorithm": "magic"}]}"#).contains("unknown variant `magic`")
        );
        assert!(refused(r#"{"entries": [], "more": 1}"#).contains("unknown field `more`"));
        let entry = r#"{"op": "all_reduce", "algorithm": "halving-doubling"}"#;
        let table = AlgorithmTable::parse(&format!(r#"{{"entries": [{entry}]}}"#)).unwrap();
        assert_eq!(table.entries, [TableEntry::new(Collective::AllReduce, Algorithm::HalvingDoubling)]);
    }
}
