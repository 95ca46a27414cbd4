"""Input fetched over a connection: as many bytes as asked for, ahead of the step, and the effect of a broken store."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading

import pytest

from ddpbench.worker.training.storage import AHEAD, StoreError, fetch, fetched


class Store:
    """A store on loopback that counts what it was asked for, and closes the connection after `most` answers."""

    def __init__(self, most: int = 1000) -> None:
        self.asked: list[int] = []
        self._most = most
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            while len(self.asked) < self._most:
                if len(head := connection.recv(8, socket.MSG_WAITALL)) < 8:
                    return
                (count,) = struct.unpack(">Q", head)
                self.asked.append(count)
                with contextlib.suppress(OSError):
                    connection.sendall(bytes(count))

    def close(self) -> None:
        self._listener.close()
        self._thread.join()


def test_every_batch_has_its_bytes_fetched_and_no_more_than_a_few_ahead() -> None:
    store = Store(most=3 + AHEAD + 1)
    batches = fetched(itertools.count(), store.address, 3_000_000)
    assert [next(batches) for _ in range(3)] == [0, 1, 2]
    batches.close()  # type: ignore[attr-defined]
    store.close()
    assert 3 <= len(store.asked) <= 3 + AHEAD + 1
    assert set(store.asked) == {3_000_000}


def test_a_store_that_hangs_up_or_is_not_there_is_said() -> None:
    store = Store(most=1)
    batches = fetched(itertools.count(), store.address, 1000)
    assert next(batches) == 0
    with pytest.raises(StoreError, match="closed the connection before sending the last 1000 bytes"):
        next(batches)
    store.close()
    with pytest.raises(StoreError, match="was not reached"):
        next(fetched(itertools.count(), store.address, 1000))


@pytest.mark.parametrize("where", ["sendall", "recv_into"])
def test_a_connection_that_is_reset_is_a_store_that_hung_up(where: str) -> None:
    """The connection is reset if the store closes it with a request unread."""

    class Connection:
        def sendall(self, _: bytes) -> None:
            self.reach("sendall")

        def recv_into(self, _: memoryview) -> int:
            self.reach("recv_into")
            return 0

        def reach(self, name: str) -> None:
            if name == where:
                raise ConnectionResetError

    with pytest.raises(StoreError, match="closed the connection before sending the last 7 bytes"):
        fetch(Connection(), 7, bytearray(4))  # type: ignore[arg-type]
