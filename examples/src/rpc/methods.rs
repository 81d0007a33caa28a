//! The methods of the service.

use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;

/// A method of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// Returns its body.
    Echo,
    /// Adds the decimal numbers of its body.
    Sum,
    /// Returns after as many milliseconds as its body says.
    Sleep,
}

impl Method {
    const ALL: [Self; 3] = [Self::Echo, Self::Sum, Self::Sleep];

    /// The number of the method in a request.
    pub(super) fn number(self) -> u8 {
        self as u8
    }
}

/// Does a call. The caller drops the future when the client's time is over.
pub(super) async fn call(method: u8, body: Bytes) -> Result<Bytes, String> {
    let method = Method::ALL.get(usize::from(method)).ok_or_else(|| format!("there is no method {method}"))?;
    match method {
        Method::Echo => Ok(body),
        Method::Sum => {
            let sum = numbers(&body)?.iter().try_fold(0u64, |sum, &number| sum.checked_add(number));
            Ok(sum.ok_or("the sum is too large")?.to_string().into())
        }
        Method::Sleep => {
            let [time] = numbers(&body)?[..] else { return Err("sleep takes one number".to_owned()) };
            tokio::time::sleep(Duration::from_millis(time)).await;
            Ok(Bytes::new())
        }
    }
}

fn numbers(body: &[u8]) -> Result<Vec<u64>, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the body is no text")?;
    let number = |word: &str| word.parse().map_err(|_| format!("{word:?} is not a number"));
    text.split_whitespace().map(number).collect()
}
