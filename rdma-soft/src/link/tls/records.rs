//! The records of TLS 1.3 on a connection whose handshake is over (RFC 8446, section 5).
//!
//! ```text
//! 23 | 3, 3 | length 2 | encrypted: bytes, their type 1 | tag 16
//! ```
//!
//! [`Records`] stands between a socket and its user: [`read`](Records::read) and
//! [`write`](Records::write) are those of the socket, for bytes in the clear. The records that the
//! kernel does not take wait here, and so do those that have arrived in part.
//!
//! The key of each direction changes after [`REKEY`] records, which a message (`KeyUpdate`) says to
//! the peer. The reader accepts that message only there, and no record without bytes, so each
//! record brings it further.

use core::fmt;
use core::ops::Range;

use graviola::aead::AesGcm;
use nix::errno::Errno;
use rustls::ConnectionTrafficSecrets;
use rustls::crypto::cipher::{Iv, Nonce};
use rustls::kernel::KernelConnection;

use crate::engine::{Gather, Source, Target};
use crate::os;
use crate::os::tcp::Tcp;

/// The most bytes in a record.
const MAX_PLAIN: usize = 1 << 14;
/// Bytes before the encrypted ones, and of the tag after them.
const HEAD: usize = 5;
const TAG: usize = 16;
/// Bytes of a key of AES-128.
const KEY: usize = 16;
/// Bytes of a record beside those that it carries.
const OVERHEAD: usize = HEAD + 1 + TAG;
const MAX_RECORD: usize = MAX_PLAIN + OVERHEAD;
/// Bytes of records that wait for the kernel.
const OUTBOUND: usize = 256 << 10;
/// Bytes of records that one call reads: a little more than a link reads at once.
const INBOUND: usize = 288 << 10;

/// Records that one key encrypts. AES-GCM allows some 2^24.
const REKEY: u64 = 1 << 22;

/// Types of records' contents.
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
/// The message that the sender's next record has its next key (RFC 8446, section 4.6.3); the peer
/// is not asked for one.
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

/// A record that the peer has not made, or that no device makes.
const FORGED: os::Error = os::Error { call: "the check of an encrypted record", errno: Errno::EBADMSG };
/// No key. The handshake admits one cipher alone, so this does not happen.
const NO_KEY: os::Error = os::Error { call: "the key of encrypted records", errno: Errno::EPROTO };

/// The secrets after those of a handshake.
pub(super) trait NextSecrets: Send + Sync {
    fn outbound(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error>;
    fn inbound(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error>;
}

impl<Data: Send + Sync> NextSecrets for KernelConnection<Data> {
    fn outbound(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        self.update_tx_secret()
    }

    fn inbound(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        self.update_rx_secret()
    }
}

/// The encryption of one connection.
pub(crate) struct Records {
    outbound: Outbound,
    inbound: Inbound,
    next: Box<dyn NextSecrets>,
    rekey: u64,
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Records")
    }
}

impl Records {
    /// The encryption with the secrets of a handshake.
    pub(super) fn new(
        outbound: (u64, ConnectionTrafficSecrets),
        inbound: (u64, ConnectionTrafficSecrets),
        next: Box<dyn NextSecrets>,
    ) -> os::Result<Self> {
        let outbound = Outbound { key: Key::new(outbound)?, bytes: zeros(OUTBOUND), sent: 0, filled: 0 };
        let inbound = Inbound {
            key: Key::new(inbound)?,
            bytes: zeros(INBOUND),
            plain: 0..0,
            read: 0,
            filled: 0,
            is_broken: false,
            is_slow: false,
        };
        Ok(Self { outbound, inbound, next, rekey: REKEY })
    }

    /// Reads no record before the bytes of the last one are taken: what has arrived and is not in
    /// the record that is being read stays in the socket. Each record costs two calls.
    pub(crate) fn read_one_by_one(&mut self) {
        self.inbound.is_slow = true;
    }

    /// Changes the keys more often than any connection does. Both sides must agree.
    #[cfg(test)]
    pub(super) fn rekey_after(&mut self, records: u64) {
        self.rekey = records;
    }

    /// Reads bytes that have arrived: 0 at the end of the connection, `EAGAIN` if there are none,
    /// `EBADMSG` if somebody has changed them on the way. `space` is not empty.
    pub(crate) fn read(&mut self, socket: &Tcp, space: &mut [u8]) -> os::Result<usize> {
        self.read_by(socket, space.len(), |at, bytes| space[at..at + bytes.len()].copy_from_slice(bytes))
    }

    /// Like [`read`](Self::read), to the target and what is behind it to the slice.
    pub(crate) fn read_to(&mut self, socket: &Tcp, target: Target<'_>, behind: &mut [u8]) -> os::Result<usize> {
        self.read_by(socket, target.len() + behind.len(), |at, bytes| {
            let (front, back) = bytes.split_at(bytes.len().min(target.len().saturating_sub(at)));
            if let Some(part) = target.part(at, front.len()) {
                part.write(Source::of(front));
            }
            let at = (at + front.len()).saturating_sub(target.len());
            behind[at..at + back.len()].copy_from_slice(back);
        })
    }

    /// Reads at most `len` bytes, and passes them to `give` with the number of those before.
    fn read_by(&mut self, socket: &Tcp, len: usize, mut give: impl FnMut(usize, &[u8])) -> os::Result<usize> {
        let inbound = &mut self.inbound;
        let mut given = 0;
        loop {
            let bytes = inbound.take(len - given);
            give(given, bytes);
            given += bytes.len();
            if given == len {
                return Ok(given);
            }
            match inbound.open(&mut *self.next, self.rekey) {
                Ok(true) => continue,
                // What came before the bad record is handled first.
                Ok(false) | Err(_) if given > 0 => return Ok(given),
                Ok(false) => {}
                Err(error) => return Err(error),
            }
            match socket.read(inbound.space())? {
                0 => return Ok(0),
                count => inbound.filled += count,
            }
        }
    }

    /// Encrypts and sends bytes of two slices in their order. Returns how many were encrypted;
    /// `EAGAIN` if none were and the kernel takes none. With empty slices, sends what waits.
    pub(crate) fn write(&mut self, socket: &Tcp, mut bytes: [&[u8]; 2]) -> os::Result<usize> {
        let outbound = &mut self.outbound;
        let mut taken = 0;
        loop {
            let count = outbound.seal(&bytes, &mut *self.next, self.rekey)?;
            if count == 0 {
                break;
            }
            taken += count;
            let first = count.min(bytes[0].len());
            bytes = [&bytes[0][first..], &bytes[1][count - first..]];
        }
        match socket.write([outbound.unsent(), &[]]) {
            Ok(count) => outbound.advance(count),
            Err(os::Error { errno: Errno::EAGAIN | Errno::EINTR, .. }) if taken > 0 => {}
            Err(error) => return Err(error),
        }
        Ok(taken)
    }

    /// Whether there is space for the records of `len` bytes.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        let each = 2 * OVERHEAD + KEY_UPDATE.len();
        self.outbound.bytes.len() - self.outbound.filled >= len + len.div_ceil(MAX_PLAIN) * each
    }

    /// Encrypts a frame from where it lies, for which [`has_room`](Self::has_room). The payload may
    /// change meanwhile. [`write`](Self::write) sends it.
    pub(crate) fn push(&mut self, head: &[u8], payload: &Gather<'_>) -> os::Result<()> {
        let Self { outbound, next, rekey, .. } = self;
        let whole = head.len() + payload.len();
        let mut at = 0;
        while at < whole {
            let len = MAX_PLAIN.min(whole - at);
            outbound.change_key(&mut **next, *rekey)?;
            outbound.append(len, DATA, |body| {
                let front = &head[at.min(head.len())..head.len().min(at + len)];
                let (first, rest) = body.split_at_mut(front.len());
                first.copy_from_slice(front);
                payload.copy_rest(at.saturating_sub(head.len()), Target::of(rest));
            })?;
            at += len;
        }
        Ok(())
    }

    /// Whether [`read`](Self::read) would return without a look at the socket.
    pub(crate) fn has_bytes(&self) -> bool {
        let inbound = &self.inbound;
        !inbound.plain.is_empty() || inbound.is_broken || inbound.whole_record().is_some()
    }

    /// Whether records wait for the kernel.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.outbound.unsent().is_empty()
    }

    /// Drops the records that wait for the kernel. The connection has ended.
    pub(crate) fn clear(&mut self) {
        (self.outbound.sent, self.outbound.filled) = (0, 0);
    }
}

fn zeros(len: usize) -> Box<[u8]> {
    vec![0; len].into_boxed_slice()
}

/// The key of one direction, and how many records have had it.
struct Key {
    key: AesGcm,
    iv: Iv,
    records: u64,
}

impl Key {
    fn new((records, secrets): (u64, ConnectionTrafficSecrets)) -> os::Result<Self> {
        let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else { return Err(NO_KEY) };
        // Of another length, `AesGcm` panics.
        if key.as_ref().len() != KEY {
            return Err(NO_KEY);
        }
        Ok(Self { key: AesGcm::new(key.as_ref()), iv, records })
    }

    /// The nonce of the next record: each number comes once with a key.
    fn nonce(&mut self) -> [u8; 12] {
        let nonce = Nonce::new(&self.iv, self.records);
        self.records += 1;
        nonce.0
    }
}

/// Records that wait for the kernel.
struct Outbound {
    key: Key,
    bytes: Box<[u8]>,
    sent: usize,
    filled: usize,
}

impl Outbound {
    fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..self.filled]
    }

    fn advance(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.filled {
            (self.sent, self.filled) = (0, 0);
        }
    }

    /// Appends a record with the first bytes of two slices. Returns how many these are, 0 without
    /// bytes or space.
    fn seal(&mut self, bytes: &[&[u8]; 2], next: &mut dyn NextSecrets, rekey: u64) -> os::Result<usize> {
        let len = (bytes[0].len() + bytes[1].len()).min(MAX_PLAIN);
        let is_due = self.key.records >= rekey;
        let more = if is_due { KEY_UPDATE.len() + OVERHEAD } else { 0 };
        if len == 0 || self.bytes.len() - self.filled < more + len + OVERHEAD {
            return Ok(0);
        }
        self.change_key(next, rekey)?;
        let first = len.min(bytes[0].len());
        self.append(len, DATA, |body| {
            body[..first].copy_from_slice(&bytes[0][..first]);
            body[first..].copy_from_slice(&bytes[1][..len - first]);
        })?;
        Ok(len)
    }

    /// Changes the key, if that is due, and tells the peer in a record, for which there is space.
    fn change_key(&mut self, next: &mut dyn NextSecrets, rekey: u64) -> os::Result<()> {
        if self.key.records >= rekey {
            self.append(KEY_UPDATE.len(), HANDSHAKE, |body| body.copy_from_slice(&KEY_UPDATE))?;
            self.key = Key::new(next.outbound().map_err(|_| NO_KEY)?)?;
        }
        Ok(())
    }

    /// Appends a record with `len` bytes, which `fill` writes. There is space for it.
    fn append(&mut self, len: usize, kind: u8, fill: impl FnOnce(&mut [u8])) -> os::Result<()> {
        let len = len + 1;
        let (head, rest) = self.bytes[self.filled..self.filled + HEAD + len + TAG].split_at_mut(HEAD);
        head.copy_from_slice(&head_of(len + TAG));
        let (body, tag) = rest.split_at_mut(len);
        let tag = tag.first_chunk_mut().ok_or(NO_KEY)?;
        fill(&mut body[..len - 1]);
        body[len - 1] = kind;
        let nonce = self.key.nonce();
        self.key.key.encrypt(&nonce, head, body, tag);
        self.filled += HEAD + len + TAG;
        Ok(())
    }
}

/// The bytes before a record of `len` bytes, which the tag covers.
fn head_of(len: usize) -> [u8; HEAD] {
    let [.., high, low] = len.to_be_bytes();
    [DATA, 3, 3, high, low]
}

/// Records that have arrived.
struct Inbound {
    key: Key,
    bytes: Box<[u8]>,
    /// Bytes of an opened record that nobody has taken.
    plain: Range<usize>,
    /// The first record that is not open, up to `filled`.
    read: usize,
    filled: usize,
    /// A record was not the peer's: no later one is opened.
    is_broken: bool,
    /// Reads stop at the end of a record.
    is_slow: bool,
}

impl Inbound {
    /// Takes opened bytes, at most `most`.
    fn take(&mut self, most: usize) -> &[u8] {
        let start = self.plain.start;
        self.plain.start += self.plain.len().min(most);
        &self.bytes[start..self.plain.start]
    }

    /// Opens the next record; false if it has not arrived whole.
    fn open(&mut self, next: &mut dyn NextSecrets, rekey: u64) -> os::Result<bool> {
        if self.is_broken {
            return Err(FORGED);
        }
        let opened = self.try_open(next, rekey);
        self.is_broken = opened.is_err();
        opened
    }

    /// The head of the next record and the length of the rest, once it has arrived whole. A record
    /// that is too long counts as whole at once.
    fn whole_record(&self) -> Option<([u8; HEAD], usize)> {
        let (head, rest) = self.bytes[self.read..self.filled].split_first_chunk::<HEAD>()?;
        let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
        (rest.len() >= len || len > MAX_RECORD - HEAD).then_some((*head, len))
    }

    fn try_open(&mut self, next: &mut dyn NextSecrets, rekey: u64) -> os::Result<bool> {
        let Some((head, len)) = self.whole_record() else { return Ok(false) };
        if head != head_of(len) || !(1 + 1 + TAG..=MAX_PLAIN + 1 + TAG).contains(&len) {
            return Err(FORGED);
        }
        let at = self.read + HEAD;
        let is_due = self.key.records >= rekey;
        let nonce = self.key.nonce();
        let (plain, tag) = self.bytes[at..at + len].split_at_mut(len - TAG);
        self.key.key.decrypt(&nonce, &head, plain, tag).map_err(|_| FORGED)?;
        let count = plain.len() - 1;
        self.read = at + len;
        match plain[count] {
            DATA if !is_due => self.plain = at..at + count,
            HANDSHAKE if is_due && plain[..count] == KEY_UPDATE => {
                self.key = Key::new(next.inbound().map_err(|_| NO_KEY)?)?;
            }
            _ => return Err(FORGED),
        }
        Ok(true)
    }

    /// The end of the head that is arriving, or of its record.
    fn end_of_part(&self) -> usize {
        match self.bytes[self.read..self.filled].first_chunk::<HEAD>() {
            None => self.read + HEAD,
            // A record that is too long was refused before.
            Some(head) => self.read + HEAD + usize::from(u16::from_be_bytes([head[3], head[4]])),
        }
    }

    /// Space for more records: never empty when no whole record is left and all opened bytes are
    /// taken. Moves a part of a record to the start.
    fn space(&mut self) -> &mut [u8] {
        if self.read == self.filled {
            (self.read, self.filled) = (0, 0);
        } else if self.bytes.len() - self.read < MAX_RECORD || self.read > self.bytes.len() / 2 {
            self.bytes.copy_within(self.read..self.filled, 0);
            (self.read, self.filled) = (0, self.filled - self.read);
        }
        let end = if self.is_slow { self.end_of_part() } else { self.bytes.len() };
        &mut self.bytes[self.filled..end]
    }
}
