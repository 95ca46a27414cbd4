"""The process that makes and holds a fabric (an emulated network). The fabric ends when this process ends.

The process communicates over an inherited socket, with one JSON object per line:

    from the controlling side   {"do": "make", "wiring": ..., "store_port": ...}
                                {"do": "carry", "flows": [...], "settle_s": ..., "window_s": ..., "windows": ...}
    to it                       {"event": "up", "privileged": ..., "net": [descriptors], "user": descriptor or null}
                                {"event": "carried", "windows": [[[space, name, bytes, drops, ns], ...], ...]}
                                {"event": "refused", "reason": ...}

The process ends when the socket closes or its parent dies, however the parent dies.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  sockets import it late, when a new user namespace may not let them read it
import json
import os
import socket
import sys
import time
import traceback
from typing import Any

from ddpbench.errors import FabricError
from ddpbench.fabric import store
from ddpbench.fabric.counting import Counters
from ddpbench.fabric.entering import CLONE_NEWNET, setns
from ddpbench.fabric.making import Spaces, delay, ends, inside, make, make_spaces, prompt
from ddpbench.fabric.traffic import TrafficLoad
from ddpbench.fabric.wiring import TcpFlow, Wiring
from ddpbench.guard import die_with_parent


class Holder:
    """Answers the requests of a fabric's client, one at a time, in one thread."""

    def __init__(self, connection: socket.socket, parent: int) -> None:
        self._connection = connection
        self._parent = parent
        self._wiring: Wiring | None = None
        self._spaces = Spaces((), None)

    def serve(self) -> None:
        """Answer requests until the connection closes."""
        with self._connection.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                asked = json.loads(line)
                try:
                    answer = self._make(asked) if asked["do"] == "make" else self._carry(asked)
                except FabricError as error:
                    answer = {"event": "refused", "reason": str(error)}
                except Exception as error:
                    traceback.print_exc()
                    sys.stderr.flush()
                    reason = f"the fabric could not be made: {type(error).__name__}: {error}"
                    answer = {"event": "refused", "reason": reason}
                self._connection.sendall(json.dumps(answer).encode() + b"\n")

    def _make(self, asked: dict[str, Any]) -> dict[str, Any]:
        wiring = Wiring.from_json(asked["wiring"])
        self._spaces = make_spaces(wiring.spaces)
        if self._spaces.user is not None:
            die_with_parent(self._parent)  # new credentials may have undone it
        make(wiring, self._spaces)
        self._wiring = wiring
        if wiring.store is not None:
            self._start_store(wiring.store, asked["store_port"])
        return {
            "event": "up",
            "privileged": self._spaces.user is None,
            "net": self._spaces.net,
            "user": self._spaces.user,
        }

    def _start_store(self, space: int, port: int) -> None:
        setns(self._spaces.net[space], CLONE_NEWNET)
        listener = store.listening(port)
        parent = os.getpid()
        if os.fork() == 0:
            try:
                die_with_parent(parent)
                self._connection.close()
                store.serve(listener)
            except Exception:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(1)
        listener.close()

    def _carry(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._wiring is not None
        flows = [TcpFlow(**flow) for flow in asked["flows"]]
        self._set_delays(on=False)
        windows: list[list[tuple[int, str, int, int, int]]] = []
        with Counters(self._wiring, self._spaces) as counters, TrafficLoad(flows, self._spaces):
            time.sleep(asked["settle_s"])
            for number in range(asked["windows"] + 1):
                if number:
                    time.sleep(asked["window_s"])
                counts = counters.read()
                windows.append([(space, name, *values) for (space, name), values in counts.items()])
        self._set_delays(on=True)
        return {"event": "carried", "windows": windows}

    def _set_delays(self, *, on: bool) -> None:
        """Switch latency and loss. They are off during a proof, because TCP does not reach a lossy link's rate."""
        wiring = self._wiring
        assert wiring is not None
        if not (wiring.latency_s or wiring.loss):
            return
        for space in range(wiring.spaces):
            with inside(self._spaces, space) as netlink:
                indexes = {link.get("ifname"): link["index"] for link in netlink.get_links()}
                for cable, port in ends(wiring, space):
                    if cable.delayed and cable.rate is not None:
                        if on:
                            delay(netlink, indexes[port.name], wiring.latency_s, wiring.loss)
                        else:
                            prompt(netlink, indexes[port.name])
