"""Every place in the package that writes, creates, renames or removes a file is listed here, with its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ddpbench

WRITERS = {
    "records/files.py:create_file:os.open": "the owner of files in run directories: a new file",
    "records/files.py:create_file:os.fdopen": "the same",
    "records/files.py:open_to_append:os.open": "the owner: the end of a file",
    "records/files.py:open_to_append:os.fdopen": "the same",
    "records/files.py:replacing:new.replace": "the owner: a whole file",
    "records/files.py:write_numbered:os.link": "the same, under a name that is free",
    "records/files.py:write_numbered:claim.replace": "the same, on file systems without links",
    "records/outputs.py:_opened_stream:os.open": "the owner of files that users name: a pipe or a device",
    "records/outputs.py:write_output:os.fdopen": "the same, or a descriptor that the shell opened",
    "records/rundir.py:RunDir.set_aside:launch.path.rename": "a launch's folder, to a name that is free",
    "records/archive.py:_rename:source.rename": "unpacked records, to a name that is free",
    "records/archive.py:pack:tarfile.open": "in memory",
    "records/heartbeat.py:shared_page:path.open": "an existing page of memory",
    "cache.py:keep:os.open": "the owner of the user's cache: a new file",
    "cache.py:keep:os.fdopen": "the same",
    "cache.py:keep:os.replace": "the same",
    "cache.py:_mark:os.open": "the mark of a folder that is empty",
    "cache.py:_mark:os.fdopen": "the same",
    "cli/__init__.py:_open_standard_streams:os.open": "/dev/null",
    "cli/__init__.py:_open_standard_streams:open": "a standard stream",
    "cli/__init__.py:_give_up_output:os.open": "/dev/null",
    "cli/noise.py:_run:experiment.write_text": "in a temporary folder",
    "cli/submit.py:_report:path.rename": "a submission's own merged run",
    "cli/submit.py:_report:fresh.rename": "the same",
    "fabric/making.py:enter_user_namespace:Path('/proc/self/setgroups').write_text": "a setting of the kernel",
    "fabric/making.py:enter_user_namespace:Path('/proc/self/uid_map').write_text": "a setting of the kernel",
    "fabric/making.py:enter_user_namespace:Path('/proc/self/gid_map').write_text": "a setting of the kernel",
    "helper_process.py:serve:pickle.dump": "a pipe",
    "helper_process.py::os.fdopen": "standard output",
    "launch/interleave/sides.py:_own_experiment:shutil.copyfile": "among the exported files of a commit",
    "launch/interleave/sides.py:_exported:unfinished.rename": "the files of a commit, to their place",
    "launch/interleave/turn.py:_keep_messages_apart:os.fdopen": "standard output",
    "launch/merge/merge.py:_made:folder.rename": "a merged run, to a name that is free",
    "records/held.py:MadeFolder.rename:self._path.rename": "a folder that it has made",
    "launch/own_class/trial.py:trial_of:(folder / 'source').write_bytes": "in a temporary folder",
    "launch/own_class/trial.py:trial_of:stub.write_text": "the same",
    "launch/slurm/disks.py:archive:tarfile.open": "in memory",
    "launch/slurm/disks.py:_unpack:file.extract": "a node's records, checked by name",
    "machine/done.py:Done._copy_proof:copy.rename": "a proof, to its place in a run directory",
    "machine/launched.py:_remove_stale_pages:os.open": "nothing: it is opened to be read",
    "pytest_plugin.py:DdpBenchmark._write:source.write_text": "in a temporary folder",
    "pytest_plugin.py:_one_at_a_time:os.open": "a lock, which nothing is written into but a process id",
    "pytest_plugin.py:_one_at_a_time:os.fdopen": "the same",
    "report/draw/canvas.py:saved:figure.savefig": "in memory",
    "report/draw/painter.py:_name:pickler.dump": "in memory",
    "worker/rank/checkpoints.py:Saver._plain.write:path.open": "a checkpoint, in a folder that the case created",
    "worker/rank/checkpoints.py:Saver._plain.write:torch.save": "the same",
    "worker/rank/memory.py:reset_peak_memory:Path('/proc/self/clear_refs').write_text": "a setting of the kernel",
    "features/recovery/rank/snapshots.py:Snapshots.write:torch.save": "a file that create_file has opened",
}
"""`module:function:call`, and what it writes. A file of a user's goes through `records/outputs.py`, one of a run
directory through `records/files.py`; anything else needs a reason for which neither can be used."""

REMOVERS = {
    "records/rundir.py:Made.remove:shutil.rmtree": "the owner of what a call removes again: a directory it has made",
    "records/rundir.py:Made.remove:folder.rmdir": "the same: folders above it, if empty",
    "records/rundir.py:Made._remove:shutil.rmtree": "the same: a folder it has made in one that was empty or marked",
    "records/rundir.py:Made._remove:path.unlink": "the same: a file",
    "records/rundir.py:Made.remove_files:path.unlink": "the same: a file that was not there",
    "records/rundir.py:RunDir.locked:path.unlink": "the file of a lock that it has made and holds",
    "records/rundir.py:RunDir.create:path.rmdir": "folders that it has just made, if empty",
    "records/rundir.py:make_dir:one.rmdir": "the same",
    "records/held.py:HeldFolder.remove_made:os.rmdir": "folders that it has just made, if empty",
    "records/files.py:check_room:path.unlink": "the file that it has just written",
    "records/files.py:write_anew:path.unlink": "a file of a run directory that is written again",
    "records/files.py:replacing:new.unlink": "its own temporary name",
    "records/files.py:write_numbered:claim.unlink": "the same",
    "records/files.py:_remove_left:os.unlink": "such a name of a killed writer's, a day old and this user's",
    "records/archive.py:_rename:shutil.rmtree": "records just unpacked, into a folder that it has made",
    "machine/done.py:Done._copy_proof:shutil.rmtree": "a copy of a proof that was not finished, below cases/",
    "machine/probes.py:_tried:old.unlink": "probe.json and probe.log of a run directory, or temporary",
    "machine/probes.py:gradients_of:path.unlink": "the same",
    "machine/probes.py:stated_batch:path.unlink": "the same",
    "machine/trial.py:gradients_in_rank.gradients:(folder / left).unlink": "the same",
    "machine/trial.py:inspect_own:(folder / left).unlink": "the same",
    "launch/sweep/identification.py:identify:(run.path / 'probe.json').unlink": "the same",
    "launch/sweep/identification.py:identify:(run.path / 'probe.log').unlink": "the same",
    "launch/watch.py:LaunchRunner.run_launch:directory.rendezvous.unlink": "a launch's own, below cases/",
    "launch/verify.py:_folder:shutil.rmtree": "a temporary folder that it has made",
    "launch/watch.py:_remove_checkpoints:shutil.rmtree": "a folder named by the run's id, its case and launch",
    "worker/rank/checkpoints.py:Saver.run:shutil.rmtree": "the same",
    "worker/rank/checkpoints.py:Saver._clear:shutil.rmtree": "the same",
    "worker/rank/checkpoints.py:Saver._timed:shutil.rmtree": "in such a folder",
    "worker/rank/checkpoints.py:Saver._timed:path.unlink": "the same",
    "features/recovery/rank/recovering.py:_plan_the_failure:shutil.rmtree": "a folder named by the run's id",
    "features/recovery/rank/snapshots.py:Snapshots.write:stale.unlink": "in such a folder",
    "features/recovery/rank/snapshots.py:Snapshots.write:self._told(old).unlink": "the same",
    "features/recovery/rank/snapshots.py:Snapshots.write:self._data(old).unlink": "the same",
    "worker/slot/own_rank.py:OwnRank._tell:shutil.rmtree": "a folder named by the run's id",
    "worker/slot/own_rank.py:OwnRank.__init__:stale.unlink": "records of an unfinished try of a launch, below cases/",
    "worker/slot/opening.py:open_run:nonce.unlink": "the file that it has just made, of a drawn name",
    "worker/ray/__main__.py:_launch:shutil.rmtree": "a temporary folder that it has made",
    "worker/mpi/library.py:_forget_segments:Path(name).unlink": "shared memory that this rank's MPI has made",
    "worker/mpi/library.py:_forget_strays:Path(name).unlink": "that of this user's ranks that are gone",
    "report/__init__.py:write_report:path.unlink": "pictures of ddpbench's names in a run's figures/ and slides/",
    "features/allocation/report/__init__.py:_write_all:path.unlink": "files that it has just written",
    "cli/baseline.py:_remove:path.unlink": "the baseline that its user names, in .benchmarks",
    "cli/bisect.py:_removed_if_refused:out.rmdir": "a folder that it has made, if empty",
    "cli/submit.py:_report:shutil.rmtree": "a submission's .merged-new and .merged-old",
    "records/held.py:MadeFolder.remove:shutil.rmtree": "a folder that it has made, held open",
    "records/held.py:MadeFolder.remove:self._path.rmdir": "the same, once it is empty",
    "launch/merge/launches.py:_copy_launch:copy.unlink": "a copy that it has just made",
    "launch/interleave/sides.py:_exported:shutil.rmtree": "an unfinished export below .code/",
    "launch/interleave/sides.py:_exported:index.unlink": "the same: its index",
    "machine/launched.py:LaunchedRanks._forget:shutil.rmtree": "a temporary folder that it has made",
    "machine/launched.py:_remove_stale_pages:shutil.rmtree": "such a folder of this user's that nobody holds",
    "machine/turnstile.py:Turnstile.__init__:shutil.rmtree": "a temporary folder that it has made",
    "machine/turnstile.py:Turnstile.close:shutil.rmtree": "the same",
    "machine/turnstile.py:Turn.remove:shutil.rmtree": "the same, of a parent that was killed",
    "matplotlib_folder.py:_remove:shutil.rmtree": "a temporary folder that it has made",
    "guard.py:Traces.remove:shutil.rmtree": "a launch's temporary folder, which a fork server has made",
    "guard.py:Traces.remove:folder.rmdir": "torch.compile's cache in a run directory, if empty",
    "guard.py:_remove:shutil.rmtree": "what came into the temporary folder, or shared memory of a launch's names",
    "guard.py:_remove:path.unlink": "the same",
    "guard.py:_holds_sockets:os.unlink": "a socket that it has just made",
    "cache.py:keep:os.unlink": "its own temporary name",
    "cache.py:_prune:os.unlink": "entries of the user's cache, in a folder that it has marked",
}
"""`module:function:call`, and what it removes: what this call has made, or what has one of ddpbench's names in a
folder that ddpbench has made or marked. Nothing else is removed but what its user names to be removed."""

ALWAYS = {"write_text", "write_bytes", "touch", "truncate", "hardlink_to", "symlink_to", "mkfifo", "mknod"}
ALWAYS |= {"copyfile", "copyfileobj", "copytree", "copy2", "move", "rename", "renames", "link", "symlink"}
ALWAYS |= {"NamedTemporaryFile", "mkstemp", "extract", "extractall", "FileHandler"}
TO_A_FILE = {"save", "savez", "savefig", "imsave", "tofile", "dump"}
TO_A_FILE |= {"to_csv", "to_parquet", "to_pickle", "to_excel", "to_hdf", "to_feather"}
OTHERS = {"ast.dump", "netlink.link", "Baselines().save", "save"}
"""Calls of these names that write no file: of trees, devices, the owner, torch's collective checkpoint."""


def calls(tree: ast.AST, scope: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.Call]]:
    """Yield every call with the name of the function it is in."""
    for child in ast.iter_child_nodes(tree):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(child, ast.Call):
            yield ".".join(scope), child
        yield from calls(child, (*scope, child.name) if named else scope)  # type: ignore[attr-defined]


def writes(call: ast.Call) -> bool:
    """Return whether a call writes, creates or renames a file, or may."""
    name = ast.unparse(call.func).rpartition(".")[2]
    whole = ast.unparse(call.func)
    if whole in OTHERS:
        return False
    if name in ALWAYS:
        return True
    if name == "replace":  # of a path: a text's takes two arguments, a dataclass' keywords
        return whole == "os.replace" or (len(call.args) == 1 and not call.keywords)
    if name in TO_A_FILE:
        first = call.args[0] if call.args else None
        return first is not None and not (isinstance(first, ast.Constant) and first.value is None)
    if whole == "os.open":
        flags = ast.unparse(call.args[1])
        return not re.fullmatch(r"(os\.O_(RDONLY|PATH|NOFOLLOW|NONBLOCK|CLOEXEC|DIRECTORY)( \| )?)+", flags)
    if name in ("open", "fdopen"):
        method = isinstance(call.func, ast.Attribute) and whole.partition(".")[0] not in (
            "os", "io", "gzip", "lzma", "bz2", "tarfile", "codecs", "zipfile",
        )  # fmt: skip
        modes = [word.value for word in call.keywords if word.arg == "mode"]
        modes += call.args[0 if method else 1 :][:1]
        return any(not _reads(mode) for mode in modes)
    return False


def _reads(mode: ast.expr) -> bool:
    return (
        isinstance(mode, ast.Constant) and isinstance(mode.value, str) and not re.search("[wax+]", mode.value)
    )


def test_every_place_that_writes_a_file_is_listed() -> None:
    root = Path(ddpbench.__file__).parent
    found = {
        f"{path.relative_to(root).as_posix()}:{scope}:{ast.unparse(call.func)}"
        for path in root.rglob("*.py")
        for scope, call in calls(ast.parse(path.read_text(encoding="utf-8")))
        if writes(call)
    }
    found -= {"worker/slot/meeting.py:Meeting._opened:self.seals.open"}
    found -= {"worker/slot/meeting.py:Meeting.receive:self.seals.open"}  # of messages, not of files
    assert found - set(WRITERS) == set(), (
        "write users' files by records/outputs.py, others by records/files.py"
    )
    assert set(WRITERS) - found == set(), "no longer there"


def removes(call: ast.Call) -> bool:
    """Return whether a call removes a file or folder."""
    whole = ast.unparse(call.func)
    return whole.rpartition(".")[2] in {"rmtree", "unlink", "rmdir", "removedirs"} or whole == "os.remove"


def test_every_place_that_removes_a_file_is_listed() -> None:
    root = Path(ddpbench.__file__).parent
    found = {
        f"{path.relative_to(root).as_posix()}:{scope}:{ast.unparse(call.func)}"
        for path in root.rglob("*.py")
        for scope, call in calls(ast.parse(path.read_text(encoding="utf-8")))
        if removes(call)
    }
    assert found - set(REMOVERS) == set(), (
        "a call removes what it has made itself: see Made in records/rundir.py"
    )
    assert set(REMOVERS) - found == set(), "no longer there"


@pytest.mark.parametrize(
    "code",
    [
        "arguments.script.write_bytes(b'')",
        "path.write_text('')",
        "open(path, 'w')",
        "open(path, mode='r+b')",
        "open(path, mode)",
        "path.open('a')",
        "path.open(mode=how)",
        "io.open(path, 'x')",
        "gzip.open(path, 'wt')",
        "tarfile.open(path, 'w:xz')",
        "os.fdopen(3, 'ab')",
        "os.open(path, os.O_WRONLY | os.O_TRUNC)",
        "os.open(path, flags)",
        "os.open(path, os.O_CREAT | os.O_RDONLY)",
        "shutil.copy2(a, b)",
        "a.rename(b)",
        "a.replace(b)",
        "os.replace(a, b)",
        "frame.to_csv(path, index=False)",
        "figure.savefig('x.png')",
        "torch.save(state, path)",
        "json.dump(data, file)",
    ],
)
def test_a_call_that_writes_is_found(code: str) -> None:
    (found,) = [call for _, call in calls(ast.parse(code)) if writes(call)]
    assert ast.unparse(found) == code


@pytest.mark.parametrize(
    "code",
    [
        "open(path)",
        "path.open('rb')",
        "os.open(path, os.O_RDONLY | os.O_CLOEXEC)",
        "text.replace('a', 'b')",
        "dataclasses.replace(plan, ranks=2)",
        "frame.to_csv(index=False)",
        "frame.to_parquet(None, index=False)",
    ],
)
def test_a_call_that_writes_nothing_is_not(code: str) -> None:
    assert not [call for _, call in calls(ast.parse(code)) if writes(call)]
