"""Find out in a child process whether this machine can make a fabric, for `ddpbench doctor`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from ddpbench.helper_process import child_environment

_TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FabricCapabilities:
    """The parts of a fabric that can be made here; `reasons` says, by field name, why a part cannot be made."""

    privileged: bool
    """True if this process may make network namespaces: as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN."""
    user_namespaces: bool
    """True if network namespaces can also be made without privilege, in a user namespace."""
    veth: bool
    bridge: bool
    tbf: bool
    netem: bool
    """True if latency and loss can be emulated; a fabric without them does not need netem."""
    reasons: dict[str, str]

    @property
    def works(self) -> bool:
        """Return whether a fabric without latency and loss can be made."""
        return (self.privileged or self.user_namespaces) and self.veth and self.bridge and self.tbf


def fabric_capabilities() -> FabricCapabilities:
    """Try to make each part of a fabric once, in a child process, and return which succeeded.

    The parts end with the child process. Takes under 0.3 s; never raises.
    """
    if sys.platform != "linux":
        return _nothing(f"an emulated network needs the network namespaces of Linux; this is {sys.platform}")
    try:
        tried = subprocess.run(
            [sys.executable, "-P", "-m", "ddpbench.fabric", "--capabilities"],
            env=child_environment(),
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            timeout=_TIMEOUT_S,
        )
        return FabricCapabilities(**json.loads(tried.stdout))
    except (OSError, ValueError, TypeError, subprocess.TimeoutExpired) as error:
        return _nothing(f"the process that tries it did not answer: {type(error).__name__}: {error}")


def _nothing(reason: str) -> FabricCapabilities:
    fields = ("privileged", "user_namespaces", "veth", "bridge", "tbf", "netem")
    return FabricCapabilities(**dict.fromkeys(fields, False), reasons=dict.fromkeys(fields, reason))
