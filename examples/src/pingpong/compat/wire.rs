//! The messages of the C programs over TCP: lines with addresses in each direction, and a
//! confirmation from the client.

use std::fmt;

use rdma::{Endpoint, Gid, Lid, Mtu};

/// Length of a line: `LID:QPN:PSN:GID` with 4, 6, 6 and 32 hexadecimal digits, and the NUL that
/// ends a C string.
pub(super) const LINE: usize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1;

/// Number of lines that each side of `ibv_srq_pingpong` sends: those after the addresses of its
/// queue pairs are [`Address::NONE`].
pub(super) const SHARED_LINES: usize = 256;

/// The client's answer to the server's lines, with its NUL.
pub(super) const DONE: [u8; 5] = *b"done\0";

/// The address of a queue pair, as a line carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) lid: Lid,
    pub(super) qpn: u32,
    pub(super) psn: u32,
    /// `None` is all zeros on the wire: the program was started without a GID index.
    pub(super) gid: Option<Gid>,
}

impl Address {
    /// The place of a queue pair that a side does not have.
    const NONE: Self = Self { lid: Lid(0), qpn: 0, psn: 0, gid: None };

    /// The address of a local endpoint; with `by_lid` it has no GID, as in `ibv_rc_pingpong`
    /// without a GID index.
    pub(super) fn of(endpoint: &Endpoint, by_lid: bool) -> Self {
        let gid = endpoint.gid.filter(|_| !by_lid);
        Self { lid: endpoint.lid, qpn: endpoint.qpn, psn: endpoint.psn, gid }
    }

    /// The endpoint to connect to. The line lacks the MTU, which both sides get as an option, and
    /// the number of reads that the peer serves. No reads are sent, so that number does not matter.
    pub(super) fn endpoint(&self, mtu: Mtu) -> Endpoint {
        let endpoint = Endpoint::new(self.qpn, self.psn, mtu).lid(self.lid);
        self.gid.map_or(endpoint, |gid| endpoint.gid(gid))
    }

    fn to_line(self) -> [u8; LINE] {
        let gid = u128::from_be_bytes(self.gid.unwrap_or_default().to_bytes());
        let text = format!("{:04x}:{:06x}:{:06x}:{gid:032x}\0", self.lid.0, self.qpn & 0xff_ffff, self.psn & 0xff_ffff);
        let mut line = [0; LINE];
        line.copy_from_slice(text.as_bytes());
        line
    }

    /// Parses a peer's line; the error says what is wrong with it.
    fn from_line(line: &[u8]) -> Result<Self, String> {
        let strange = || format!("it sent {:?} and no address", Quoted(line));
        let [text @ .., 0] = line else { return Err(strange()) };
        let mut fields = text.split(|&byte| byte == b':');
        let mut field = |digits: usize| fields.next().and_then(|field| hexadecimal(field, digits));
        let numbers = (field(4), field(6), field(6), field(32), field(0));
        let (Some(lid), Some(qpn), Some(psn), Some(gid), None) = numbers else { return Err(strange()) };
        let short = |number: u128| u32::try_from(number).unwrap_or(u32::MAX);
        let (qpn, gid) = (short(qpn), Gid::from_bytes(gid.to_be_bytes()));
        if qpn == 0 {
            return Err("it has queue pair number 0, which no connection can have".to_owned());
        }
        let lid = Lid(u16::try_from(lid).unwrap_or(u16::MAX));
        Ok(Self { lid, qpn, psn: short(psn), gid: (!gid.is_zero()).then_some(gid) })
    }
}

/// The message of a side that sends `count` lines, with these addresses in the first of them.
pub(super) fn to_lines(addresses: &[Address], count: usize) -> Vec<u8> {
    let none = std::iter::repeat(&Address::NONE);
    addresses.iter().chain(none).take(count).flat_map(|address| address.to_line()).collect()
}

/// Parses a peer's lines, and returns the addresses before the empty places; the error says what is
/// wrong with a line.
pub(super) fn from_lines(lines: &[u8]) -> Result<Vec<Address>, String> {
    let none = Address::NONE.to_line();
    let mut lines: Vec<&[u8]> = lines.chunks(LINE).collect();
    // A peer has at least one queue pair.
    while lines.len() > 1 && lines.last().is_some_and(|line| *line == none) {
        lines.pop();
    }
    lines.into_iter().map(Address::from_line).collect()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gid = self.gid.unwrap_or_default();
        write!(f, "LID {:#06x}, QPN {:#08x}, PSN {:#08x}, GID {gid}", self.lid.0, self.qpn, self.psn)
    }
}

/// Parses a number with exactly `digits` hexadecimal digits.
fn hexadecimal(field: &[u8], digits: usize) -> Option<u128> {
    // The check is needed: `from_str_radix` would accept a sign.
    let all_digits = field.len() == digits && field.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(field).ok().filter(|_| all_digits)?;
    u128::from_str_radix(text, 16).ok()
}

/// Formats the beginning of a peer's message so that it is safe for a terminal.
pub(super) struct Quoted<'a>(pub(super) &'a [u8]);

impl fmt::Debug for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0[..self.0.len().min(24)].escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        let gid = "::ffff:10.9.0.1".parse().unwrap();
        Address { lid: Lid(0x1a), qpn: 0x11, psn: 0x7b_1c2d, gid: Some(gid) }
    }

    /// Compares with the line that `ibv_rc_pingpong` of rdma-core 44 sends for this address.
    #[test]
    fn the_line_is_that_of_the_c_program() {
        let line = address().to_line();
        assert_eq!(&line[..], b"001a:000011:7b1c2d:00000000000000000000ffff0a090001\0");
        assert_eq!(Address::from_line(&line), Ok(address()));
        let by_lid = Address { gid: None, ..address() };
        assert_eq!(&by_lid.to_line()[..], b"001a:000011:7b1c2d:00000000000000000000000000000000\0");
        assert_eq!(Address::from_line(&by_lid.to_line()), Ok(by_lid));
    }

    #[test]
    fn the_extremes_fit() {
        let gid = Gid::from_bytes(std::array::from_fn(|i| 0xf0 | u8::try_from(i).unwrap()));
        let most = Address { lid: Lid(0xffff), qpn: 0xff_ffff, psn: 0xff_ffff, gid: Some(gid) };
        assert_eq!(&most.to_line()[..], b"ffff:ffffff:ffffff:f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff\0");
        assert_eq!(Address::from_line(&most.to_line()), Ok(most));
        let least = Address { lid: Lid(0), qpn: 1, psn: 0, gid: None };
        assert_eq!(Address::from_line(&least.to_line()), Ok(least));
    }

    #[test]
    fn garbage_is_refused_and_quoted() {
        let good = address().to_line();
        // Replaces each byte of a valid line in turn: the parser refuses all results but other
        // digits.
        for at in 0..LINE {
            for byte in [0, b':', b'g', b'+', b' ', 0x80, 0xff] {
                let mut bad = good;
                bad[at] = byte;
                assert!(bad == good || Address::from_line(&bad).is_err(), "byte {at} is {byte}");
            }
        }
        let mut web = [b' '; LINE];
        web[..16].copy_from_slice(b"GET / HTTP/1.1\r\n");
        let complaint = Address::from_line(&web).unwrap_err();
        assert!(complaint.contains("GET / HTTP/1.1\\r\\n"), "{complaint}");
        assert!(Address::from_line(&[0; LINE]).is_err());
        assert!(Address::from_line(&[0xff; LINE]).unwrap_err().is_ascii());
    }

    #[test]
    fn empty_places_follow_the_addresses() {
        let addresses = [address(), Address { qpn: 0x12, ..address() }];
        let lines = to_lines(&addresses, SHARED_LINES);
        assert_eq!(lines.len(), 13_312);
        assert_eq!(&lines[2 * LINE..3 * LINE], b"0000:000000:000000:00000000000000000000000000000000\0");
        assert_eq!(from_lines(&lines), Ok(addresses.to_vec()));
        let full = [address(); SHARED_LINES];
        assert_eq!(from_lines(&to_lines(&full, SHARED_LINES)), Ok(full.to_vec()));
        // An empty place before an address, and no address at all.
        let gap = [address(), Address::NONE, address()];
        assert!(from_lines(&to_lines(&gap, SHARED_LINES)).unwrap_err().contains("number 0"));
        assert!(from_lines(&to_lines(&[], SHARED_LINES)).unwrap_err().contains("number 0"));
    }

    #[test]
    fn a_queue_pair_numbered_0_is_refused() {
        let nobody = Address { qpn: 0, ..address() };
        assert!(Address::from_line(&nobody.to_line()).unwrap_err().contains("number 0"));
    }
}
