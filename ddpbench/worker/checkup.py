"""Print as JSON what torch reports about itself on this machine (`python -m ddpbench.worker.checkup`).

It starts faster than a rank because it doesn't import torch._dynamo.
"""

from __future__ import annotations

import json
import warnings
from typing import Any


def check_up() -> dict[str, Any]:
    """Return torch's versions, backends and devices, and the warnings raised while reading them.

    Raises:
        ImportError: torch cannot be imported.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # torch explains in a warning why CUDA cannot be used
        facts = _facts()
    # Torch's own deprecations don't concern the user.
    facts["warnings"] = [
        str(warning.message) for warning in caught if not issubclass(warning.category, DeprecationWarning)
    ]
    return facts


def _facts() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    build = {
        "torch": torch.__version__,
        "cuda_build": torch.version.cuda,
        "rocm_build": torch.version.hip,
        "distributed": dist.is_available(),
    }
    if not dist.is_available():
        return build
    from ddpbench.worker.probe import describe

    mpi, why_no_mpi = _mpi()
    return {
        **build,
        **describe(),
        "mpi": mpi,
        "why_no_mpi": why_no_mpi,
        "built_in": {
            "gloo": dist.is_gloo_available(),
            "nccl": dist.is_nccl_available(),
            "mpi": dist.is_mpi_available(),
            "ucc": dist.is_ucc_available(),
        },
        "rpc": hasattr(torch._C, "_rpc_init"),  # what rpc.is_available() checks, without importing it
        "driver_cuda": _driver_cuda(torch),
        "architectures": list(torch.cuda.get_arch_list()),
        "other_devices": [
            kind
            for kind, here in (
                ("xpu", hasattr(torch, "xpu") and torch.xpu.is_available()),
                ("mps", torch.backends.mps.is_available()),
            )
            if here
        ],
    }


def _mpi() -> tuple[str | None, str]:
    """Return the MPI library's version and `""`, or None and the reason why ranks cannot use it."""
    from ddpbench.errors import MachineError
    from ddpbench.worker.mpi.library import checked_version

    try:
        return checked_version(), ""
    except MachineError as error:
        return None, str(error)


def _driver_cuda(torch: Any) -> str | None:
    ask = getattr(torch._C, "_cuda_getDriverVersion", None)
    number = ask() if ask is not None else 0
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


if __name__ == "__main__":
    print(json.dumps(check_up()))  # noqa: T201
