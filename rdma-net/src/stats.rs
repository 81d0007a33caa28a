//! What connections and nodes have done.
//!
//! A connection counts under its lock, which each message takes in any case. A node adds the counts
//! of its connections when it is asked, and keeps the sums of those that have ended.

use rdma::CqStats;

/// What a connection has done since it was made: [`Connection::stats`](crate::Connection::stats).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// Messages that were sent or begun. Each write of a [`Stream`](crate::Stream) to the device is
    /// a message. Only grows.
    pub sent: u64,
    /// Bytes of these messages, without headers. Only grows.
    pub sent_bytes: u64,
    /// Messages that have arrived, in whole, for the application. Only grows.
    pub received: u64,
    /// Bytes of these messages. Only grows.
    pub received_bytes: u64,
    /// One-sided operations of [`Remote`](crate::Remote) that were posted. Only grows.
    pub operations: u64,
    /// Sends that had to wait: the peer had no receive for them (no credit), this side's send
    /// queue was full, or other tasks were first. Only grows.
    pub send_waits: u64,
    /// The messages of one fragment that could be sent now: credits of the peer, as far as this
    /// side's send queue has free slots. Goes up and down, between 0 and the smaller window of the
    /// two sides; 0 once the connection has ended.
    pub credits: u32,
    /// Messages that have arrived, or are offered, and that the application has not taken. Goes up
    /// and down.
    pub unread: usize,
    /// The most that `unread` has been: a high-water mark.
    pub most_unread: usize,
}

impl ConnectionStats {
    /// Counts a message that was sent.
    pub(super) fn count_sent(&mut self, bytes: usize) {
        self.sent += 1;
        self.sent_bytes += bytes as u64;
    }

    /// Counts a message that has arrived.
    pub(super) fn count_received(&mut self, bytes: usize) {
        self.received += 1;
        self.received_bytes += bytes as u64;
    }

    /// Notes how many messages the application has not taken.
    pub(super) fn note_unread(&mut self, unread: usize) {
        self.most_unread = self.most_unread.max(unread);
    }

    /// Adds those of another connection. Of the high-water marks, the larger counts.
    pub(super) fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.operations += other.operations;
        self.send_waits += other.send_waits;
        self.credits += other.credits;
        self.unread += other.unread;
        self.most_unread = self.most_unread.max(other.most_unread);
    }
}

/// What a node has done since its creation: [`Node::stats`](crate::Node::stats).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStats {
    /// Connections that were made and have not ended: [`Node::connections`](crate::Node). Goes up
    /// and down.
    pub connections: usize,
    /// Connections that were made or begun. Only grows.
    pub opened: u64,
    /// Connections that have ended. Only grows.
    pub ended: u64,
    /// Those of the ended connections that neither side has closed: they have failed. Only grows.
    pub failed: u64,
    /// The sums over all connections, ended ones included; of high-water marks, the largest.
    pub traffic: ConnectionStats,
    /// The sums over the completion queues of the node's drivers; of high-water marks, the largest.
    pub completions: CqStats,
}

impl NodeStats {
    /// Counts a connection that has ended.
    pub(super) fn count_ended(&mut self, has_failed: bool, stats: &ConnectionStats) {
        self.ended += 1;
        self.failed += u64::from(has_failed);
        // The counts of the present state go with the connection.
        self.traffic.add(&ConnectionStats { credits: 0, unread: 0, ..*stats });
    }

    /// Adds those of another driver.
    pub(super) fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.opened += other.opened;
        self.ended += other.ended;
        self.failed += other.failed;
        self.traffic.add(&other.traffic);
        self.completions = self.completions + other.completions;
    }
}
