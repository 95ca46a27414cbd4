"""Find experiment files by path, or by name in ./experiments and among the experiments that come with ddpbench."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from ddpbench.errors import RequestError, meant_path, nearest
from ddpbench.planted import is_decoy, is_planted
from ddpbench.shipped import shipped_experiments
from ddpbench.text_safety import command


def experiment_folders() -> list[Path]:
    """Return the folders to search, in order: `./experiments`, then the folder that comes with ddpbench.

    `./experiments` is left out if a different user made it, or if this user cannot access the working directory.
    """
    here, shipped = Path("experiments"), shipped_experiments()
    if not _reaches_here():
        return [shipped]
    if is_decoy(str(here)):  # its experiments would run that user's code as this user
        return [shipped]
    return [here] if here.is_dir() and here.resolve() == shipped else [here, shipped]


def known_experiments() -> dict[str, Path]:
    """Return the file of each experiment that can be given by name instead of path, keyed by name."""
    paths: dict[str, Path] = {}
    for folder in experiment_folders():
        for path in sorted(folder.glob("*.toml")):
            if path.is_file() and not is_planted(path):
                paths.setdefault(path.stem, path)
    return paths


def is_not_meant(name: str) -> bool:
    """Return whether a name refers to a known experiment rather than to a file or folder here.

    True if another user may have put the file there, or if this user cannot access the working directory.
    """
    return (is_decoy(name) or not _reaches_here()) and name in known_experiments()


def _reaches_here() -> bool:
    """Return whether the user may enter the working directory; if not, no relative path can be reached."""
    return os.access(".", os.X_OK)


def find_experiment(name: str) -> Path:
    """Return the experiment file or run directory to which `name`, a name or a path, refers.

    Raises:
        RequestError: neither an experiment nor a run directory has that name or path.
    """
    if is_not_meant(name):
        return known_experiments()[name]
    path = Path(name)
    if path.is_dir():
        from ddpbench.records.submission_dir import SubmissionDir  # `ddpbench list` does not need it

        if SubmissionDir(path).is_there:
            raise RequestError(
                f"{path} is a submission of several jobs: to follow them, run "
                f"{command('ddpbench', 'submit', path)}"
            )
        if not (path / "experiment.toml").is_file():
            raise RequestError(
                f"{path} is not a run directory, because it has no experiment.toml: give a run "
                "directory or an experiment"
            )
        return path
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            _refuse_device(path)
            near = meant_path(path, Path.is_file)
            raise RequestError(
                f"{path} does not exist{near or f'; {nearest(path.stem, known_experiments(), 0.8)}'}"
            )
        return path
    known = known_experiments()
    if name not in known:
        _refuse_device(path)
        close = difflib.get_close_matches(
            name, [file.name for file in Path().glob("*.toml")], n=1, cutoff=0.8
        )
        advice = f"did you mean the file {close[0]!r}?" if close else nearest(name, known)
        raise RequestError(f"neither a file nor an experiment has the name {name!r}; {advice}")
    return known[name]


def _refuse_device(path: Path) -> None:
    if path.exists():
        raise RequestError(f"{path} is a device, a pipe or a socket: give a file, a run directory or a name")
