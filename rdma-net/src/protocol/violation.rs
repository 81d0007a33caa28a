//! The ways in which a peer can break the protocol.

use std::fmt;

macro_rules! violations {
    ($($(#[$meta:meta])* $name:ident = $text:literal,)*) => {
        /// A message that the protocol does not allow. The connection fails with it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Violation { $($(#[$meta])* $name,)* }

        impl fmt::Display for Violation {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text,)* })
            }
        }
    };
}

violations! {
    /// The message is shorter than a header.
    TooShort = "a message is shorter than its header",
    /// The kind is none of version 2.
    UnknownKind = "a message has an unknown kind",
    /// The kind does not allow one of the flags.
    WrongFlags = "a message has flags that its kind does not allow",
    /// The payload does not begin where a payload may.
    WrongStart = "the payload of a message begins at a wrong offset",
    /// The kind has no payload, or one of another length.
    WrongPayload = "the payload of a message has a length that its kind does not allow",
    /// A field that must be 0 is not.
    Reserved = "a field that must be 0 is not",
    /// The grant went back, or past the window.
    WrongLimit = "a grant of credits is less than before, or more than the window",
    /// The peer sent data without a credit.
    NoCredit = "a data message came without a credit",
    /// An UPDATE came before the last one was answered.
    UpdateUnanswered = "a second UPDATE came before the first was answered",
    /// ECHO came although no UPDATE waits for it.
    UnexpectedEcho = "an ECHO came without an UPDATE to answer",
    /// A PING came before the last one was answered.
    PingUnanswered = "a second PING came before the first was answered",
    /// A PONG came without a PING, or with another cookie.
    UnexpectedPong = "a PONG came without a PING, or with another cookie",
    /// FIRST or an OFFER came inside a message, or a message began without FIRST.
    WrongFragment = "a fragment does not continue the message before it",
    /// LAST and the rest of the message disagree, or a fragment is empty.
    WrongRest = "the length of a fragment and the rest of its message disagree",
    /// The message is longer than this side accepts.
    TooLong = "a message is longer than this end accepts",
    /// Data came after FIN.
    DataAfterEnd = "data came after the end of the peer's data",
    /// A message came after CLOSE.
    MessageAfterClose = "a message came after CLOSE",
    /// Offers were not agreed, too many are open, an id is used twice, or the slice is empty or
    /// passes the end of the address space.
    WrongOffer = "an OFFER is not agreed or one too many, its id is in use, or its slice is no memory",
    /// The peer's device refused to read the memory that an OFFER names.
    UnreadableOffer = "an OFFER names memory that the peer does not expose",
    /// A write with immediate data came, which this side does not take.
    UnexpectedNotification = "a notification came, which this end does not take",
    /// DONE names no open offer.
    UnexpectedDone = "a DONE names no open OFFER",
}

impl std::error::Error for Violation {}
