//! Text that another process has sent, and names of files, made fit for one line of a message.

use std::ffi::OsStr;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

/// Most bytes of a text; the rest is cut off.
const MOST: usize = 1000;

/// The text of a failure or a name that another process has sent.
///
/// It is cut to a bounded length, and characters that a terminal acts upon are shown as escapes:
/// line ends, control sequences, changes of direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct PeerText(String);

impl From<String> for PeerText {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<&str> for PeerText {
    fn from(text: &str) -> Self {
        let mut line = String::new();
        for character in text.chars() {
            let end = line.len();
            push_escaped(&mut line, character);
            if line.len() > MOST {
                line.truncate(end);
                line.push_str("...");
                break;
            }
        }
        Self(line)
    }
}

/// A name of the file system with the same escapes, and not cut.
pub fn escaped(name: impl AsRef<OsStr>) -> String {
    let mut line = String::new();
    name.as_ref().to_string_lossy().chars().for_each(|character| push_escaped(&mut line, character));
    line
}

/// FNV-1a hash: the standard library's hashes may differ between builds.
#[must_use]
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn push_escaped(line: &mut String, character: char) {
    match character {
        // `escape_debug` is for literals, in which these have a meaning.
        '"' | '\'' | '\\' => line.push(character),
        other => line.extend(other.escape_debug()),
    }
}

/// Reads a field of another process's as such a text.
///
/// # Errors
/// Those of the deserializer.
pub fn line<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    PeerText::deserialize(from).map(|text| text.0)
}

/// Reads a field that may be missing as [`line()`] does.
///
/// # Errors
/// Those of the deserializer.
pub fn optional_line<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Option::<PeerText>::deserialize(from).map(|text| text.map(|text| text.0))
}

impl fmt::Display for PeerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_becomes_a_line_without_control_characters() {
        let text = "no \"paper\" in C:\\tray\n\u{1b}[2J\rrank 0\u{202e}\0 für";
        let line = PeerText::from(text);
        let expected = "no \"paper\" in C:\\tray\\n\\u{1b}[2J\\rrank 0\\u{202e}\\0 für";
        assert_eq!(line.to_string(), expected);
        // Rank 0 passes texts on.
        assert_eq!(PeerText::from(expected), line);
    }

    #[test]
    fn a_long_text_is_cut() {
        for text in ["x".repeat(1 << 20), "\u{1b}".repeat(1 << 20), "ü".repeat(1 << 20)] {
            let sent = serde_json::to_string(&text).unwrap();
            let line: PeerText = serde_json::from_str(&sent).unwrap();
            assert!(line.0.len() <= MOST + 3 && line.0.ends_with("..."), "{}", line.0.len());
        }
        assert_eq!(PeerText::from("x".repeat(MOST)).0.len(), MOST);
    }
}
