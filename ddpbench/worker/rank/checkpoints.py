"""Checkpoints of model and optimizer to disk, written by rank 0 alone or by all ranks (DCP), and timed."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from ddpbench.causes import exception_words
from ddpbench.measure.blocks import Control
from ddpbench.measure.clock import Clock
from ddpbench.records import Checkpoint, explain_os_error
from ddpbench.removal import Identity, make, remove_tree

REPETITIONS = 3
"""Number of checkpoints per method in a launch."""
CheckpointMethod = Literal["plain", "dcp"]


class CheckpointError(Exception):
    """A checkpoint could not be written. The message says where, why and what to do."""


@dataclass(frozen=True, slots=True)
class Saver:
    """Writes and times one rank's part of a launch's checkpoints, in a folder per launch or per node."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    folder: Path
    rank: int
    processes: int
    clock: Clock
    control: Control
    on_checkpoint: Callable[[], None]

    def run(self) -> Iterator[Checkpoint]:
        """Write and yield `REPETITIONS` checkpoints of each method. Remove the folder at the end, also after an error.

        Raises:
            CheckpointError: a checkpoint could not be written on some rank; all ranks raise it.
        """
        import torch.distributed.checkpoint  # noqa: F401 - before anything is timed

        own: list[Identity] = []
        try:
            self._agreed(lambda: own.append(self._new_folder()))
            own += self._join()
            for index in range(REPETITIONS):
                yield self._timed("plain", index)
            for index in range(REPETITIONS):
                yield self._timed("dcp", index)
        finally:
            for made in own:  # on every rank, because each node may have its own folder
                remove_tree(self.folder, made=made)

    def _new_folder(self) -> Identity:
        """Replace the folder that a killed launch may have left, and return the new folder's identity.

        Raises:
            FileExistsError: another user has a folder of that name.
            OSError: the folder cannot be made.
        """
        remove_tree(self.folder, private=True)
        return make(self.folder, 0o700)

    def _join(self) -> list[Identity]:
        """Make the folder if this node lacks rank 0's disk, and return its identity in a list; empty on rank 0.

        Raises:
            CheckpointError: the folder cannot be made, or belongs to another user.
        """
        if self.rank == 0:
            return []
        try:
            with suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            with tempfile.TemporaryFile(dir=self.folder) as own:  # its owner is this user's ID on this disk
                status = self.folder.lstat()
                if status.st_uid != os.fstat(own.fileno()).st_uid or status.st_mode & 0o022:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                return [Identity.of(status)]
        except OSError as error:
            raise CheckpointError(sentence(self.folder, error)) from error

    def _timed(self, method: CheckpointMethod, index: int) -> Checkpoint:
        path = self.folder / f"{method}-{index}"
        self.clock.anchor()
        self.control.agree(0)
        start_ns = self.clock.now()
        write_ns = self._plain(path) if method == "plain" else self._dcp(path)
        end_ns = self.clock.now()
        self.on_checkpoint()
        size = self._size(path)
        self.control.agree(0)  # all ranks have read their files' sizes, so the files may be removed now
        if path.is_dir():
            remove_tree(path)  # ranks of one node may do so concurrently
        else:
            path.unlink(missing_ok=True)
        return Checkpoint(
            method=method, index=index, bytes=size, start_ns=start_ns, end_ns=end_ns, write_ns=write_ns
        )

    def _state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def _plain(self, path: Path) -> int | None:
        """Save as most training scripts do: rank 0 writes while the others wait. Return its time (ns), else None."""
        start_ns = self.clock.now()

        def write() -> None:
            with path.open("wb") as file:
                torch.save(self._state(), file)
                file.flush()
                os.fsync(file.fileno())

        took = self._agreed(write, start_ns)
        return took if self.rank == 0 else None

    def _agreed(self, act: Callable[[], None], start_ns: int = 0) -> int:
        """Run `act` on rank 0 while all ranks wait; return the time since `start_ns` (ns).

        Raises:
            CheckpointError: `act` failed; all ranks raise it.
        """
        failure: BaseException | None = None
        if self.rank == 0:
            try:
                act()
            except (
                OSError,
                RuntimeError,
            ) as error:  # torch's zip writer raises a RuntimeError if the disk is full
                failure = error
        took = self.clock.now() - start_ns
        number = 0 if failure is None else getattr(_cause(failure), "errno", None) or -1
        number = self.control.agree(number)  # all ranks report the same error
        if number:
            cause = failure or OSError(number, os.strerror(number) if number > 0 else "see rank 0's log")
            raise CheckpointError(sentence(self.folder, cause)) from failure
        return took

    def _dcp(self, path: Path) -> int:
        """Save by torch's distributed checkpoints (DCP), which all ranks call; return the time (ns).

        DCP writes each tensor that all ranks hold only once.

        Raises:
            CheckpointError: the checkpoint could not be written.
        """
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict_saver import save

        start_ns = self.clock.now()
        group = getattr(self.control, "group", None)  # the default group belongs to the strategy
        try:
            with warnings.catch_warnings():
                # DCP warns that it saves in this process alone, which is intended with one process.
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                alone = self.processes == 1 or not dist.is_initialized()
                save(self._state(), checkpoint_id=path, process_group=group, no_dist=alone)
        except (OSError, RuntimeError, CheckpointException) as error:
            raise CheckpointError(sentence(self.folder, error)) from error
        took = self.clock.now() - start_ns
        self.control.agree(0)
        return took

    def _size(self, path: Path) -> int:
        if not path.is_dir():
            return path.stat().st_size if self.rank == 0 else 0
        own = [file for file in path.iterdir() if file.name.startswith(f"__{self.rank}_")]
        own += [path / ".metadata"] if self.rank == 0 else []
        return sum(file.stat().st_size for file in own)


def _cause(error: BaseException) -> OSError | None:
    """Return the OSError behind `error`, or None; DCP wraps one OSError per failed rank."""
    for problem in (error, *getattr(error, "failures", {}).values()):
        cause: BaseException | None = problem[0] if isinstance(problem, tuple) else problem
        while cause is not None:
            if isinstance(cause, OSError):
                return cause
            cause = cause.__cause__ or cause.__context__
    return None


def sentence(folder: Path, error: BaseException) -> str:
    """Return a sentence that says why a checkpoint could not be written and what to do about it."""
    cause = _cause(error)
    here = next(path for path in folder.parents if path.exists())
    free = shutil.disk_usage(here).free
    if cause is not None and cause.errno == errno.EEXIST:
        reason = (
            f"{os.strerror(errno.EEXIST)}: {folder.name} exists, but this run did not make it; ddpbench leaves it "
            "there"
        )
    elif cause is not None:
        reason = explain_os_error(cause)
    elif free < 1 << 20:
        reason = "the disk is full"
    else:
        reason = exception_words(error)
    return (
        f"a checkpoint could not be written to {folder.parent}: {reason}. {free / 1e6:,.0f} MB are free there; "
        "base.checkpoint_dir names another directory for checkpoints"
    )
