"""Emulate a network on this machine with network namespaces and rate-limited links. They vanish with their process.

    with Fabric(links, nodes=4, ranks_per_node=1, log=path) as fabric:
        proof = fabric.prove()
        ...  # a process enters with entering.enter(place.net_ns, place.user_ns)

`wiring` describes a network as data, and `topology` designs the network for a case's links. `holder` makes the network
in a separate process, the only one that imports pyroute2. `client` controls this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddpbench.fabric.capabilities import fabric_capabilities
    from ddpbench.fabric.client import Fabric, RankPlace, StoragePlace
    from ddpbench.fabric.proof import FabricProof, LinkProof

__all__ = ["Fabric", "FabricProof", "LinkProof", "RankPlace", "StoragePlace", "fabric_capabilities"]

_HOMES = {
    "Fabric": "client",
    "FabricProof": "proof",
    "LinkProof": "proof",
    "RankPlace": "client",
    "StoragePlace": "client",
    "fabric_capabilities": "capabilities",
}


def __getattr__(name: str) -> Any:
    # Ranks import `entering` and the holder `making`: neither should pay for the other's imports.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
