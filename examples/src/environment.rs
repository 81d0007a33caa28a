//! Settings that the environment gives to the programs.

use std::env;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::{Failure, cli};

/// A number that the environment gives to the programs; `None` if the variable is unset or empty.
///
/// # Errors
/// If the value is no number of the range; the message names the variable and the range.
pub(crate) fn setting<T>(name: &str, range: RangeInclusive<T>) -> Result<Option<T>, Failure>
where
    T: FromStr + PartialOrd + fmt::Display,
{
    let Some(value) = env::var_os(name) else { return Ok(None) };
    number(name, &value.to_string_lossy(), range)
}

/// A value that the environment gives to the programs; `None` if the variable is unset or empty.
///
/// # Errors
/// If the value is not allowed; the message names the variable and says why.
pub(crate) fn parsed<T: FromStr<Err = String>>(name: &str) -> Result<Option<T>, Failure> {
    let Some(value) = env::var_os(name) else { return Ok(None) };
    match value.to_string_lossy().trim() {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|why: String| Failure::variable(name, text, &why)),
    }
}

fn number<T>(name: &str, value: &str, range: RangeInclusive<T>) -> Result<Option<T>, Failure>
where
    T: FromStr + PartialOrd + fmt::Display,
{
    match value.trim() {
        "" => Ok(None),
        text => cli::number_in(text, range).map(Some).map_err(|allowed| Failure::variable(name, text, &allowed)),
    }
}

/// The text that the environment gives to the programs; `None` if the variable is unset or empty.
pub(crate) fn text(name: &str) -> Option<String> {
    let value = env::var_os(name)?.to_string_lossy().trim().to_owned();
    Some(value).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Kind;

    #[test]
    fn settings_are_numbers_of_a_range() {
        let read = |value| number("RDMA_RETRY_COUNT", value, 0..=7_u8);
        assert_eq!(["", " ", "0", " 7 "].map(|value| read(value).unwrap()), [None, None, Some(0), Some(7)]);
        for value in ["8", "-1", "x", "1.5"] {
            let failure = read(value).unwrap_err();
            let said = format!("RDMA_RETRY_COUNT is \"{value}\" in the environment: give 0 to 7;");
            assert!(failure.to_string().starts_with(&said), "{failure}");
            assert_eq!(failure.kind(), Kind::Usage);
        }
    }
}
