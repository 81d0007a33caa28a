"""Exceptions. The native module makes them."""

from __future__ import annotations


class RdmaError(RuntimeError):
    """An operation cannot go on.

    `rank` is the rank of the job that failed, or for which this one waited in vain; `None` if it is
    this rank, not known, or not one alone. `cause` is the reason as a word that every rank gets,
    such as "ended", "silent", "stalled", "timed_out", "mismatch" or "aborted". `host` is the name
    of the rank's host, and `operation` the operation that failed, where they are known.
    """

    def __init__(
        self,
        text: str,
        rank: int | None = None,
        cause: str = "other",
        host: str | None = None,
        operation: str | None = None,
    ) -> None:
        super().__init__(text)
        self.rank = rank
        self.cause = cause
        self.host = host
        self.operation = operation

    def __reduce__(self):
        return type(self), (str(self), self.rank, self.cause, self.host, self.operation)


class InvalidArgument(RdmaError, ValueError):
    """An argument makes no sense, alone or beside those of other ranks."""


class RdmaTimeout(RdmaError, TimeoutError):
    """Time is over: of a wait, whose operation goes on, or of an operation, whose job has ended."""
