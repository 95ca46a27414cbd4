"""The secret key by which a job's slots recognize each other, from a file of the run directory or the environment."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping

from ddpbench.errors import RequestError, UnreadableError
from ddpbench.records.files import create_file, open_file
from ddpbench.records.rundir import RunDir
from ddpbench.text_safety import command

KEY_VARIABLE = "DDPBENCH_KEY"
SECRET_VARIABLE = "DDPBENCH_SECRET"
"""The variable with a launch's secret, by which its ranks recognize each other's messages; empty if the ranks have no
secret.

Only ranks' environments have this variable, and other users cannot read a rank's environment.
"""
_SHORTEST = 16
"""Smallest number of characters of a key in the environment. A shorter key could be guessed."""
_LONGEST_BYTES = 4096


def make_job_key(run: RunDir) -> None:
    """Write a new random key into the run directory, readable by its owner alone. An existing key is left unchanged."""
    try:
        file = create_file(run.job_key, 0o600)
    except FileExistsError:
        return
    with file:
        file.write(f"{secrets.token_hex(32)}\n".encode())


def job_key(run: RunDir, env: Mapping[str, str]) -> tuple[bytes, str]:
    """Return the digest of the job's key (empty if missing), and a clause if it is missing or others can read it.

    The environment variable DDPBENCH_KEY takes precedence over the directory's file.

    Raises:
        RequestError: DDPBENCH_KEY is too short.
    """
    if given := env.get(KEY_VARIABLE):
        if len(given) < _SHORTEST:
            raise RequestError(
                f"{KEY_VARIABLE} has {len(given)} characters: give at least {_SHORTEST}, the same on every node. "
                "`openssl rand -hex 32` prints such a key"
            )
        return hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest(), ""
    try:
        with os.fdopen(open_file(run.job_key, None), "rb") as file:
            text = file.read(_LONGEST_BYTES).strip()
            found = os.fstat(file.fileno())
    except UnreadableError as error:
        return b"", str(error)
    except OSError as error:
        return b"", f"{run.job_key} cannot be read ({error.strerror})"
    if not text:
        return b"", f"{run.job_key} is empty"
    problem = ""
    if found.st_uid != os.geteuid():
        problem = f"{run.job_key} is another user's"
    elif found.st_mode & 0o077:
        problem = f"other users can read {run.job_key}; run: {command('chmod', 600, run.job_key)}"
    return hashlib.sha256(text).digest(), problem


def launch_secret(run: RunDir, env: Mapping[str, str], launch: str) -> str:
    """Return the secret of a launch's ranks, derived from the job's key; empty if the key cannot be used.

    `launch` is a text that differs between launches.

    Raises:
        RequestError: DDPBENCH_KEY is too short.
    """
    key, problem = job_key(run, env)
    return "" if problem or not key else hmac.new(key, launch.encode(), hashlib.sha256).hexdigest()
