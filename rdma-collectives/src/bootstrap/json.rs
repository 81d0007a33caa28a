//! Values of the programs as JSON text, which is decoded where the type of the value is known: a
//! tree of untyped values takes twelve times the memory of its text.

use std::fmt;

use serde::de::{DeserializeOwned, Deserializer as _, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// A value as JSON text.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Json(Box<RawValue>);

impl Json {
    pub(super) fn of(value: &impl Serialize) -> serde_json::Result<Self> {
        to_raw_value(value).map(Self)
    }

    /// Bytes of the text.
    pub(super) fn len(&self) -> usize {
        self.0.get().len()
    }

    /// The elements of an array of `count` elements, each decoded by itself; the error is the index
    /// of an element of another type, or `None` if the value is no such array.
    pub(super) fn elements<T: DeserializeOwned>(&self, count: usize) -> Result<Vec<T>, Option<usize>> {
        let text = serde_json::Deserializer::from_str(self.0.get()).deserialize_seq(Elements(count));
        let text = text.ok().filter(|elements| elements.len() == count).ok_or(None)?;
        let decode =
            |(index, element): (usize, &RawValue)| serde_json::from_str(element.get()).map_err(|_| Some(index));
        text.into_iter().enumerate().map(decode).collect()
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

/// Splits an array of at most so many elements.
struct Elements(usize);

impl<'de> Visitor<'de> for Elements {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an array of {} elements", self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = array.next_element()? {
            if elements.len() == self.0 {
                return Err(A::Error::custom("too many elements"));
            }
            elements.push(element);
        }
        Ok(elements)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_array_of_the_right_length_is_decoded() {
        let value = |value: serde_json::Value| Json::of(&value).unwrap();
        assert_eq!(value(json!([1, 2])).elements(2), Ok(vec![1, 2]));
        assert_eq!(value(json!([1, "x", 3])).elements::<u8>(3), Err(Some(1)));
        for (wrong, count) in [(json!([1, 2]), 1), (json!([1, 2]), 3), (json!(7), 1), (json!({"a": 1}), 1)] {
            assert_eq!(value(wrong).elements::<u8>(count), Err(None));
        }
    }

    #[test]
    fn a_deep_value_overflows_no_stack() {
        let deep = format!("[{}{}]", "[".repeat(1 << 20), "]".repeat(1 << 20));
        let deep: Json = serde_json::from_str(&deep).unwrap();
        assert_eq!(deep.elements::<serde_json::Value>(1), Err(Some(0)));
        assert_eq!(deep.elements::<Vec<u8>>(1), Err(Some(0)));
    }
}
