"""A `Store` of PyTorch, as the ranks of a job meet by it."""

from __future__ import annotations

import time
from datetime import timedelta

#: Seconds of one wait for a key: the store's own thread is not held longer.
_SLICE = 5.0


class Exchange:
    """What `rdma_collectives.Communicator.meet` takes as `store`."""

    def __init__(self, store):
        self._store = store

    def set(self, key, value):
        self._store.set(key, value.decode("ascii"))

    def get(self, key, seconds):
        end = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            limit = min(max(end - began, 0.01), _SLICE)
            try:
                self._store.wait([key], timedelta(seconds=limit))
            except Exception:
                # A store that is gone fails at once, and one without the key when time is over.
                if time.monotonic() - began < 0.5 * limit:
                    raise
                if time.monotonic() >= end:
                    return None
                continue
            value = self._store.get(key)
            return value.encode("ascii") if isinstance(value, str) else bytes(value)

    def delete(self, key):
        self._store.delete_key(key)
