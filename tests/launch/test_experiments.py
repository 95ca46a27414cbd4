"""Where experiments are looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpbench.launch.experiments import find_experiment, known_experiments, shipped_experiments


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_another_users_experiments_in_a_shared_folder_are_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """They would run that user's code: `cd /tmp; ddpbench sweep quick`."""
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "experiments"
    own.mkdir()
    (own / "quick.toml").write_text("", encoding="utf-8")
    tmp_path.chmod(mode)
    assert find_experiment("quick") == Path("experiments/quick.toml")  # the user's own
    os.chown(own, 65534, 65534)
    assert find_experiment("quick") == shipped_experiments() / "quick.toml"
    tmp_path.chmod(0o755)
    assert known_experiments()["quick"] == Path(
        "experiments/quick.toml"
    )  # only the user can have put it there
    own.rename(tmp_path / "aim")
    own.symlink_to("aim")
    tmp_path.chmod(mode)
    os.chown(own, 65534, 65534, follow_symlinks=False)
    assert find_experiment("quick") == shipped_experiments() / "quick.toml"
