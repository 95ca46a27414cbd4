"""A digest of the code that affects a run's numbers, which is the code that runs in ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

RANK_CODE = ("collectives", "features/*/rank", "measure", "strategies", "worker", "workloads")
"""Glob patterns of the folders whose code runs in a rank."""


def code_digest(packages: Iterable[str] = RANK_CODE) -> str:
    """Return a digest of the code in these folders of ddpbench.

    A run cannot be resumed after an update that changed the digest.
    """
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parent
    for folder in packages:
        for path in sorted(root.glob(f"{folder}/**/*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]
