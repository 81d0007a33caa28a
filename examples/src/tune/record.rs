//! Measured times, and the entries of a table that they lead to.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use rdma_collectives::{Algorithm, AlgorithmTable, Collective, TableEntry, Transport};

/// The share of the time of the choice without a table that another algorithm must save to get an
/// entry: less may be chance.
const GAIN: f64 = 0.05;

/// The measured times of a collective of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) op: Collective,
    pub(super) ranks: usize,
    pub(super) hosts: usize,
    pub(super) transport: Transport,
    pub(super) bytes: usize,
    /// The time of the choice without a table, in microseconds.
    pub(super) auto: f64,
    /// The times of the algorithms, in microseconds.
    pub(super) times: Vec<(Algorithm, f64)>,
}

impl Record {
    /// The fastest algorithm and its time; `None` is the choice without a table.
    pub(super) fn best(&self) -> (Option<Algorithm>, f64) {
        let fastest = self.times.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        match fastest {
            Some(&(algorithm, time)) if time < self.auto * (1.0 - GAIN) => (Some(algorithm), time),
            _ => (None, self.auto),
        }
    }

    fn entry(&self, up_to_bytes: Option<u64>) -> TableEntry {
        TableEntry {
            op: self.op,
            up_to_bytes,
            up_to_ranks: Some(self.ranks),
            up_to_hosts: Some(self.hosts),
            transport: Some(self.transport),
            algorithm: self.best().0,
        }
    }

    /// Whether both belong to the same job.
    fn is_beside(&self, other: &Self) -> bool {
        let job = |record: &Self| (record.op, record.ranks, record.hosts, record.transport);
        job(self) == job(other)
    }
}

/// The entries for records that are sorted by job and size. The largest size stands for all larger
/// ones, and between two sizes the border is their geometric mean.
fn entries(records: &[Record]) -> Vec<TableEntry> {
    let jobs = records.chunk_by(Record::is_beside);
    let of_job = |records: &[Record]| -> Vec<TableEntry> {
        let runs: Vec<&[Record]> = records.chunk_by(|a, b| a.best().0 == b.best().0).collect();
        let border = |index: usize| {
            let (last, next) = (runs[index].last()?, runs.get(index + 1)?.first()?);
            u64::try_from((last.bytes as u128 * next.bytes as u128).isqrt()).ok()
        };
        runs.iter().enumerate().map(|(index, run)| run[0].entry(border(index))).collect()
    };
    jobs.flat_map(of_job).collect()
}

/// Puts records into a table: they replace the entries for the same collective, ranks, hosts and
/// transport. Entries for few ranks and hosts come first, as the others apply to these too.
pub(super) fn merge(table: &mut AlgorithmTable, records: &[Record]) {
    let job = |entry: &TableEntry| (entry.op, entry.up_to_ranks, entry.up_to_hosts, entry.transport);
    let new = entries(records);
    table.entries.retain(|old| !new.iter().any(|new| job(new) == job(old)));
    table.entries.extend(new);
    table.entries.sort_by(order);
}

/// The order of entries in a table. A bound that is missing comes last.
fn order(a: &TableEntry, b: &TableEntry) -> Ordering {
    let bounds = |entry: &TableEntry| {
        let (hosts, ranks) = (entry.up_to_hosts.unwrap_or(usize::MAX), entry.up_to_ranks.unwrap_or(usize::MAX));
        (entry.op, hosts, entry.transport.is_none(), entry.transport, ranks, entry.up_to_bytes.unwrap_or(u64::MAX))
    };
    bounds(a).cmp(&bounds(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_collectives::{Point, choose};

    fn record(ranks: usize, bytes: usize, auto: f64, ring: f64, tree: f64) -> Record {
        let times = vec![(Algorithm::Ring, ring), (Algorithm::Tree, tree)];
        Record { op: Collective::AllReduce, ranks, hosts: 1, transport: Transport::Shm, bytes, auto, times }
    }

    #[test]
    fn an_algorithm_must_be_clearly_faster() {
        assert_eq!(record(2, 8, 10.0, 9.6, 11.0).best(), (None, 10.0));
        assert_eq!(record(2, 8, 10.0, 9.0, 8.0).best(), (Some(Algorithm::Tree), 8.0));
    }

    #[test]
    fn equal_winners_of_neighbouring_sizes_are_one_entry() {
        let records = [
            record(2, 16, 10.0, 5.0, 9.0),
            record(2, 64, 10.0, 5.0, 9.0),
            record(2, 256, 10.0, 20.0, 20.0),
            record(4, 16, 10.0, 10.0, 5.0),
        ];
        let found: Vec<_> = entries(&records).iter().map(|e| (e.up_to_ranks, e.up_to_bytes, e.algorithm)).collect();
        let expected = [
            (Some(2), Some(128), Some(Algorithm::Ring)),
            (Some(2), None, None),
            (Some(4), None, Some(Algorithm::Tree)),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn new_entries_replace_those_of_the_same_job_only() {
        let general = TableEntry { up_to_ranks: None, up_to_hosts: None, ..record(2, 8, 9.0, 1.0, 2.0).entry(None) };
        let mut table = AlgorithmTable { entries: vec![general] };
        merge(&mut table, &[record(4, 8, 9.0, 9.0, 1.0)]);
        merge(&mut table, &[record(2, 8, 9.0, 9.0, 1.0)]);
        merge(&mut table, &[record(2, 8, 9.0, 9.0, 9.0)]);
        assert_eq!(table.entries.len(), 3);
        let chosen = |ranks, hosts| {
            let point = Point { op: Collective::AllReduce, bytes: 8, ranks, hosts, transport: Transport::Shm };
            (table.find(&point).unwrap().algorithm, choose(&point, &table))
        };
        assert_eq!(chosen(2, 1).0, None);
        assert_eq!(chosen(3, 1), (Some(Algorithm::Tree), Algorithm::Tree));
        assert_eq!(chosen(5, 1), (Some(Algorithm::Ring), Algorithm::Ring));
        assert_eq!(chosen(2, 2), (Some(Algorithm::Ring), Algorithm::Ring));
    }
}
