"""Identity: the facts that refuse a resume, all of which are named."""

from __future__ import annotations

import subprocess
from itertools import permutations
from pathlib import Path

import pytest

from ddpbench.command_line import carrying_out
from ddpbench.errors import IdentityError, InUseError, RequestError
from ddpbench.launch.interleave.sides import git
from ddpbench.machine.claim import claimed
from ddpbench.machine.hardware import Hardware
from ddpbench.machine.identity import (
    check_identity,
    git_commit,
    machine_record,
    nodes_record,
    planned_record,
    sources_of,
)
from ddpbench.spec import Case, PlannedCase
from ddpbench.spec.differences import SEED, settings_apart

PROBE = {"torch": "2.9", "python": "3.11", "cuda": None, "nccl": None, "cpu_capability": "AVX2", "gpus": []}
HARDWARE = Hardware(cores=(0, 1), physical=2, quota=None, gpu_addresses=(), cpu_model="One")


def record(toml: str = "x", workload: str = "mlp:small", **probe: object) -> dict[str, object]:
    case = PlannedCase(case=Case(workload=workload, strategy="ddp"))
    return machine_record(HARDWARE, {**PROBE, **probe}, toml, [case])


def test_equal_identities_pass_whatever_the_context() -> None:
    one, two = record(), record()
    two["context"] = {"host": "elsewhere"}
    check_identity(one, two, Path("run"))


def test_every_difference_is_named() -> None:
    with pytest.raises(IdentityError) as caught:
        check_identity(record(), record("y", torch="2.10"), Path("run"))
    assert "torch: '2.9' before, '2.10' now" in str(caught.value)
    assert "experiment_digest: the experiment file changed\n" in str(caught.value) + "\n"
    assert "--out" in str(caught.value)


def test_a_program_that_calls_ddpbench_has_its_own_command_line_kept_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "--token=secret"])
    assert "secret" not in repr((record(), planned_record(["a"], 1, 1)))
    with carrying_out("ddpbench", words=["sweep", "my file.toml"]):
        assert record()["context"]["command"] == "ddpbench sweep 'my file.toml'"  # type: ignore[index]
    assert record()["context"]["command"] is None  # type: ignore[index]


def test_what_digests_are_of_is_told_in_words() -> None:
    apart = {
        "experiment_digest": settings_apart("a = 1\n[b]\nc = [1]\n", "a = 1\n[b]\nc = [2]\nd = 'x'\n"),
        "workload_digest": sources_of(["mlp:small", "train.py:Mine", "train.py:Other", "replay:a.json"]),
    }
    with pytest.raises(IdentityError) as caught:
        check_identity(record(), record("y", workload="gpt:nano"), Path("run"), apart)
    message = str(caught.value)
    assert "the experiment file changed: b.c: [1] before, [2] now; b.d: unset before, 'x' now" in message
    assert "a workload or strategy, or its source changed: replay:a.json or train.py" in message
    many = settings_apart("\n".join(f"k{n} = 1" for n in range(5)), "k0 = 1\nother = 2")
    assert many.count(" before, ") == 3
    assert many.endswith("; and 2 more settings")
    assert settings_apart("name = 'a'\nb = 1", "name = 'c'\nb = 2").startswith("b: 1 before")
    assert settings_apart("[budget]\nseed = 1\n", "[budget]\nseed = 2\n") == "budget.seed: 1 before, 2 now"
    assert settings_apart("[budget]\nseed = 1\n", "[budget]\nseed = 2\n", ignored={SEED}) == ""
    assert settings_apart("", "a = 1") == settings_apart("a = ", "a = 1") == ""


def test_a_users_workload_is_told_apart_by_its_source(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("a = 1", encoding="utf-8")
    before = record(workload=f"{path}:Own")
    path.write_text("a = 2", encoding="utf-8")
    with pytest.raises(IdentityError, match="workload_digest"):
        check_identity(before, record(workload=f"{path}:Own"), Path("run"))


def test_several_nodes_are_one_machine_in_whatever_order_they_come() -> None:
    alike = {"cpu": "One", "torch": "2.9", "cores": [0, 1]}
    nodes = [("b", 1, alike), ("a", 2, alike), ("a", 1, {**alike, "cpu": "Two", "cores": [2, 3]})]
    records = [nodes_record(order, {}, {})["identity"] for order in permutations(nodes)]
    assert all(one == records[0] for one in records)
    assert records[0] == {
        "cpu": {"a, node 1 of 2 there": "One", "b": "One", "a, node 2 of 2 there": "Two"},
        "torch": "2.9",
        "cores": {"a, node 1 of 2 there": [0, 1], "b": [0, 1], "a, node 2 of 2 there": [2, 3]},
        "slots": [1, 2, 1],  # of b, of a's first, of a's second
    }
    # It makes no difference which of two equal nodes has more slots, nor do their names.
    other = nodes_record([("c", 2, alike), ("d", 1, alike)], {}, {})
    check_identity(nodes_record([("a", 1, alike), ("b", 2, alike)], {}, {}), other, Path("run"))


def test_two_sweeps_do_not_share_a_gpu() -> None:
    with claimed([90_010], ["GPU-7f", ""]):
        with (
            pytest.raises(InUseError, match=r"using GPU GPU-7f .* other GPUs"),
            claimed([90_011], ["GPU-7f"]),
        ):
            pass
        with claimed([90_011], ["GPU-80", ""]):  # one that torch does not distinguish belongs to nobody
            pass


def test_cores_are_claimed_while_the_context_lasts() -> None:
    # Far beyond any machine's cores, so that no real sweep holds them.
    with claimed([90_001, 90_002]):
        with pytest.raises(Exception, match="core 90002"), claimed([90_003, 90_002]):
            pass
        with claimed([90_003]):  # the failed claim released what it had
            pass
    with claimed([90_001]):
        pass


def test_a_repository_that_names_a_program_does_not_have_it_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like one from an archive: `git status` runs `core.fsmonitor`, `git read-tree` the hook `post-index-change`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "watch").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "watch").chmod(0o700)
    (tmp_path / "file").write_text("1")
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "file"), (*author, "commit", "-qm", "One")):
        subprocess.run(["git", *words], check=True)
    watch = tmp_path / ".git" / "hooks" / "post-index-change"
    subprocess.run(["git", "config", "core.fsmonitor", str(watch)], check=True)
    (tmp_path / ".git" / "hooks").mkdir(exist_ok=True)
    (tmp_path / "watch").rename(tmp_path / ".git" / "hooks" / "post-index-change")
    (tmp_path / "file").write_text("2")
    assert (git_commit() or "").endswith("+")
    git(tmp_path, "read-tree", "HEAD", index=tmp_path / "index")
    assert not (tmp_path / "ran").exists()


def test_files_of_a_repository_in_a_folder_that_others_can_write_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git takes a folder for a bare repository by its files, and asks only who owns the folder: root owns /tmp."""
    files, below = tmp_path / "files", tmp_path / "below"
    files.mkdir()
    below.mkdir()
    (files / "file").write_text("1")
    (files / ".gitattributes").write_text("* filter=planted\n")
    whose = ("--git-dir", str(tmp_path), "--work-tree", str(files))
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path)], check=True)
    for words in (("add", "."), (*author, "commit", "-qm", "One")):
        subprocess.run(["git", *whose, *words], check=True, cwd=files)
    settings = {
        "core.bare": "false",
        "core.worktree": str(files),
        "filter.planted.clean": f"touch {tmp_path}/ran; cat",
    }
    for name, value in settings.items():
        subprocess.run(["git", "config", "--file", str(tmp_path / "config"), name, value], check=True)
    (files / "file").write_text("2")
    for folder in (tmp_path, below, files):
        monkeypatch.chdir(folder)
        assert git_commit() is None
        with pytest.raises(RequestError):
            git(folder, "status")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"remote.origin.url": "ext::{program}", "protocol.ext.allow": "always"},
        {"remote.origin.url": "{elsewhere}", "remote.origin.uploadpack": "{program}"},
        {"remote.origin.url": "ssh://host/repository", "core.sshCommand": "{program}"},
    ],
)
def test_a_repository_without_its_objects_has_no_program_fetch_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    """Like one from an archive, a partial clone by its settings: git would ask its remote for missing objects."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o700)
    (here / "file").write_text("1")
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "file"), (*author, "commit", "-qm", "One")):
        subprocess.run(["git", *words], check=True)
    subprocess.run(["git", "init", "-q", str(elsewhere)], check=True)
    tree = subprocess.run(["git", "rev-parse", "HEAD^{tree}"], check=True, capture_output=True, text=True)
    name = tree.stdout.strip()
    partial = {"core.repositoryformatversion": "1", "extensions.partialClone": "origin"}
    for key, value in {**partial, "remote.origin.promisor": "true", **settings}.items():
        subprocess.run(["git", "config", key, value.format(program=program, elsewhere=elsewhere)], check=True)
    (here / ".git" / "objects" / name[:2] / name[2:]).unlink()
    git_commit()
    with pytest.raises(RequestError):
        git(here, "read-tree", "HEAD", index=tmp_path / "index")
    assert not (tmp_path / "ran").exists()
    subprocess.run(["git", "status"], check=False, capture_output=True)
    assert (tmp_path / "ran").exists(), "git alone runs it: the settings are those that are meant"
