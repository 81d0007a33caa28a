//! Errors of the library as exceptions, which `_errors.py` defines.

use pyo3::intern;
use pyo3::prelude::*;
use rdma_collectives::{Cause, Error, ErrorKind};

/// The exception for an error.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    made(py, error).unwrap_or_else(|failure| failure)
}

fn made(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let kind = match error.kind() {
        ErrorKind::InvalidInput => "InvalidArgument",
        ErrorKind::TimedOut => "RdmaTimeout",
        _ => "RdmaError",
    };
    let class = errors(py)?.getattr(kind)?;
    let operation = error.operation().map(|operation| operation.to_string());
    let arguments = (error.to_string(), error.rank(), name(error.cause()), error.host(), operation);
    Ok(PyErr::from_value(class.call1(arguments)?))
}

/// The exception for an argument that makes no sense.
pub(crate) fn invalid(py: Python<'_>, text: &str) -> PyErr {
    exception(py, &Error::invalid(text))
}

/// The exception for a wait that ended before its operation did, which goes on.
pub(crate) fn late(py: Python<'_>, seconds: f64) -> PyErr {
    let text = format!("the operation has not ended within {seconds} s; it goes on");
    let made = errors(py).and_then(|errors| errors.getattr("RdmaTimeout")?.call1((text, None::<usize>, "wait")));
    made.map_or_else(|failure| failure, PyErr::from_value)
}

fn errors(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import(intern!(py, "rdma_collectives._errors"))
}

/// The name of a cause.
fn name(cause: &Cause) -> &'static str {
    match cause {
        Cause::Request(_) => "request",
        Cause::Verbs { .. } => "verbs",
        Cause::System { .. } => "system",
        Cause::OutOfMemory => "out_of_memory",
        Cause::InvalidInput => "invalid_input",
        Cause::Mismatch { .. } => "mismatch",
        Cause::Ended => "ended",
        Cause::Silent => "silent",
        Cause::Stalled { .. } => "stalled",
        Cause::TimedOut { .. } => "timed_out",
        Cause::Aborted => "aborted",
        Cause::Protocol => "protocol",
        _ => "other",
    }
}
