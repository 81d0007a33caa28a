"""Event loops that wait for a started operation."""

from __future__ import annotations

import asyncio
import os


async def ended(work):
    """Waits for `work` in the running event loop, and returns its value."""
    if not work.is_done():
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        # A loop has one reader for a descriptor, and several tasks may wait for this operation.
        descriptor = os.dup(work.fileno())
        loop.add_reader(descriptor, lambda: future.done() or future.set_result(None))
        try:
            await future
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    return work.wait()
