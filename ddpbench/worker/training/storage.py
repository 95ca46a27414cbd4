"""Input over the network: each batch's bytes are fetched from an emulated store before the batch's step."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

from ddpbench.host_names import connect
from ddpbench.strategies.trees import tensors

AHEAD = 2
"""Number of batches fetched in advance, equal to the default of a DataLoader's worker (prefetch_factor)."""
_CHUNK_BYTES = 1 << 20
T = TypeVar("T")


class StoreError(OSError):
    """The store could not be reached, or did not send all requested bytes."""


def fetch(connection: socket.socket, count: int, into: bytearray) -> None:
    """Request `count` bytes from the store and receive them in chunks, each overwriting the buffer `into`.

    Raises:
        StoreError: the store closed the connection.
    """
    view = memoryview(into)
    try:
        connection.sendall(struct.pack(">Q", count))
        while count and (got := connection.recv_into(view[: min(count, len(into))])):
            count -= got
    except ConnectionError:  # the store closed the connection before it read our request
        pass
    if count:
        raise StoreError(f"the store closed the connection before sending the last {count} bytes")


def batch_bytes_of(batch: Any) -> int:
    """Return the total size of a batch's tensors (bytes)."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(batch))


def fetched(batches: Iterator[T], address: str, batch_bytes: int) -> Iterator[T]:
    """Yield the batches, each after `batch_bytes` bytes have arrived from the store at `address` (`10.0.0.1:7000`).

    A thread fetches up to `AHEAD` batches in advance, so that input and gradients share the link.

    Raises:
        StoreError: the store cannot be reached or closes the connection.
    """
    ready: queue.Queue[Exception | None] = queue.Queue(maxsize=AHEAD)
    host, _, port = address.rpartition(":")
    try:
        connection = connect(host, int(port), 60)
    except OSError as error:
        raise StoreError(f"the store at {address} was not reached: {error}") from None
    connection.settimeout(None)

    closed = threading.Event()

    def run() -> None:
        buffer = bytearray(min(batch_bytes, _CHUNK_BYTES) or 1)
        try:
            while not closed.is_set():
                fetch(connection, batch_bytes, buffer)
                ready.put(None)
        except OSError as error:
            ready.put(error)

    thread = threading.Thread(target=run, name="store", daemon=True)
    thread.start()
    try:
        for batch in batches:
            problem = ready.get()
            if problem is not None:
                raise problem
            yield batch
    finally:
        closed.set()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        while thread.is_alive():  # the thread may wait for room in the queue
            with contextlib.suppress(queue.Empty):
                ready.get(timeout=0.01)
        connection.close()
