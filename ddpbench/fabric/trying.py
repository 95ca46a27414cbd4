"""Try to make each part of a fabric, in namespaces that end with this process, and print the results."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from pyroute2 import IPRoute

from ddpbench.errors import FabricError
from ddpbench.fabric.making import (
    add_bridge,
    add_pair,
    delay,
    enter_user_namespace,
    inside,
    make_spaces,
    privileged,
    shape,
)

_LOOPBACK = 1


def print_capabilities() -> None:
    """Print the fields of `FabricCapabilities` as a JSON object, then end this process."""
    reasons: dict[str, str] = {}
    found = {"privileged": privileged()}
    if not found["privileged"]:
        reasons["privileged"] = "this process lacks CAP_SYS_ADMIN or CAP_NET_ADMIN"
    reason = _in_a_child(_without_privilege)
    found["user_namespaces"] = not reason
    if reason:
        reasons["user_namespaces"] = reason
    trials: dict[str, Callable[[IPRoute], object]] = {
        "veth": lambda netlink: add_pair(netlink, "a", {"ifname": "b"}),
        "bridge": lambda netlink: add_bridge(netlink, "c"),
        "tbf": lambda netlink: shape(netlink, _LOOPBACK, 1e9, 65536),
        "netem": lambda netlink: delay(netlink, _LOOPBACK, 1e-3, 0.0),
    }
    try:
        spaces = make_spaces(1)
    except FabricError as error:
        found |= dict.fromkeys(trials, False)
        reasons |= dict.fromkeys(trials, str(error))
    else:
        with inside(spaces, 0) as netlink:
            for name, attempt in trials.items():
                try:
                    attempt(netlink)
                    found[name] = True
                except FabricError as error:
                    found[name] = False
                    reasons[name] = str(error)
    print(json.dumps({**found, "reasons": reasons}), flush=True)  # noqa: T201
    os._exit(0)


def _without_privilege() -> None:
    enter_user_namespace()
    make_spaces(1)


def _in_a_child(attempt: Callable[[], object]) -> str:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        reason = "the process that tried it ended"
        try:
            attempt()
            reason = ""
        except FabricError as error:
            reason = str(error)
        finally:
            os.write(write, reason.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        reason = pipe.read()
    os.waitpid(pid, 0)
    return reason
