"""Every place in the package that writes, creates, renames or removes a file is listed here, with its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
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
    "launch/interleave/sides.py:_copied:shutil.copyfile": "among the exported files of a commit",
    "launch/interleave/sides.py:_exported:unfinished.rename": "the files of a commit, to their place",
    "launch/interleave/turn.py:_keep_messages_apart:os.fdopen": "standard output",
    "launch/merge/merge.py:_made:folder.rename": "a merged run, to a name that is free",
    "records/held.py:MadeFolder.rename:os.rename": "a folder that it has made",
    "launch/own_class/trial.py:trial_of:(folder / 'source').write_bytes": "in a temporary folder",
    "launch/own_class/trial.py:trial_of:stub.write_text": "the same",
    "launch/slurm/disks.py:archive:tarfile.open": "in memory",
    "launch/slurm/disks.py:_unpack:file.extract": "a node's records, checked by name",
    "runtime/progress.py:Done._copy_proof:copy.rename": "a proof, to its place in a run directory",
    "runtime/launched.py:_remove_stale_pages:os.open": "nothing: it is opened to be read",
    "pytest_plugin.py:DdpBenchmark._write:source.write_text": "in a temporary folder",
    "pytest_plugin.py:_one_at_a_time:os.open": "a lock, which nothing is written into but a process id",
    "pytest_plugin.py:_one_at_a_time:os.fdopen": "the same",
    "report/draw/canvas.py:saved:figure.savefig": "in memory",
    "report/draw/painter.py:_name:pickler.dump": "in memory",
    "worker/rank/checkpoints.py:Saver._plain.write:path.open": "a checkpoint, in a folder that the case created",
    "worker/rank/checkpoints.py:Saver._plain.write:torch.save": "the same",
    "worker/rank/memory.py:reset_peak_memory:Path('/proc/self/clear_refs').write_text": "a setting of the kernel",
    "worker/verify/sent_batches.py:_pickled:torch.save": "bytes in memory",
    "features/recovery/rank/snapshots.py:Snapshots.write:torch.save": "a file that create_file has opened",
}
"""`module:function:call`, and what it writes. A user's files are written by `records/outputs.py`, those of a
run directory by `records/files.py`; any other writer needs a reason why neither can be used.
"""

REMOVERS = {
    "records/rundir.py:Made.remove:folder.rmdir": "the same: folders above it, if empty",
    "records/rundir.py:RunDir.locked:path.unlink": "the file of a lock that it has made and holds",
    "records/rundir.py:RunDir.create:path.rmdir": "folders that it has just made, if empty",
    "records/rundir.py:make_dir:one.rmdir": "the same",
    "records/files.py:check_room:path.unlink": "the file that it has just written",
    "records/files.py:write_anew:path.unlink": "a file of a run directory that is written again",
    "records/files.py:copy_file:target.unlink": "the copy that it has just made",
    "records/files.py:replacing:new.unlink": "its own temporary name",
    "records/files.py:write_numbered:claim.unlink": "the same",
    "records/files.py:_remove_left:os.unlink": "such a name of a killed writer's, a day old and this user's",
    "runtime/probes.py:_tried:old.unlink": "probe.json and probe.log of a run directory, or temporary",
    "runtime/probes.py:gradients_of:path.unlink": "the same",
    "runtime/probes.py:stated_batch:path.unlink": "the same",
    "runtime/trial.py:gradients_in_rank.gradients:(folder / left).unlink": "the same",
    "runtime/trial.py:inspect_own:(folder / left).unlink": "the same",
    "launch/sweep/identification.py:identify:(run.path / 'probe.json').unlink": "the same",
    "launch/sweep/identification.py:identify:(run.path / 'probe.log').unlink": "the same",
    "launch/watch.py:RunningLaunch.conclude:self.directory.rendezvous.unlink": "a launch's own, below cases/",
    "worker/rank/checkpoints.py:Saver._timed:path.unlink": "the same",
    "features/recovery/rank/snapshots.py:Snapshots.write:stale.unlink": "in such a folder",
    "features/recovery/rank/snapshots.py:Snapshots.write:self._checksum_file(old).unlink": "the same",
    "features/recovery/rank/snapshots.py:Snapshots.write:self._data(old).unlink": "the same",
    "worker/slot/own_rank.py:OwnRank.__init__:stale.unlink": "records of an unfinished try of a launch, below cases/",
    "worker/slot/opening.py:open_run:nonce.unlink": "the file that it has just made, of a drawn name",
    "worker/mpi/library.py:_forget_segments:Path(name).unlink": "shared memory that this rank's MPI has made",
    "worker/mpi/library.py:_forget_strays:Path(name).unlink": "that of this user's ranks that are gone",
    "report/__init__.py:write_report:path.unlink": "pictures of ddpbench's names in a run's figures/ and slides/",
    "features/allocation/report/__init__.py:_write_all:path.unlink": "files that it has just written",
    "cli/baseline.py:_remove:path.unlink": "the baseline that its user names, in .benchmarks",
    "cli/bisect.py:_removed_if_refused:out.rmdir": "a folder that it has made, if empty",
    "launch/interleave/sides.py:_exported:index.unlink": "the same: its index",
    "guard.py:remove_unused_cache:folder.rmdir": "torch.compile's cache in a run directory, if empty",
    "guard.py:_holds_sockets:os.unlink": "a socket that it has just made",
    "cache.py:keep:os.unlink": "its own temporary name",
    "cache.py:_prune:os.unlink": "entries of the user's cache, in a folder that it has marked",
}
"""`module:function:call`, and what it removes: a file, or an empty folder; whole folders are removed by
`removal.py`. Each call removes what it has made, or something with one of ddpbench's names in a folder
that ddpbench has made or marked. Nothing else is removed, except what the user names for removal.
"""

BY_NAME = {
    "records/archive.py:_rename": "records just unpacked, in a new folder of the run directory",
    "runtime/progress.py:Done._copy_proof": "a copy of a proof that was not finished, below cases/",
    "cli/submit.py:_report": "a submission's .merged-new and .merged-old, in its directory",
    "launch/interleave/sides.py:_exported": "an unfinished export below .code/ of the directory of a comparison",
    "worker/rank/checkpoints.py:Saver._timed": "a checkpoint in the folder that the launch has made",
}
"""Calls of `remove_tree` without `made` and `private`, all in folders in which only this user writes."""


ALWAYS = {"write_text", "write_bytes", "touch", "truncate", "hardlink_to", "symlink_to", "mkfifo", "mknod"}
ALWAYS |= {"copyfile", "copyfileobj", "copytree", "copy2", "move", "rename", "renames", "link", "symlink"}
ALWAYS |= {"NamedTemporaryFile", "mkstemp", "extract", "extractall", "FileHandler"}
TO_A_FILE = {"save", "savez", "savefig", "imsave", "tofile", "dump"}
TO_A_FILE |= {"to_csv", "to_parquet", "to_pickle", "to_excel", "to_hdf", "to_feather"}
OTHERS = {"ast.dump", "netlink.link", "Baselines().save", "save"}
"""Calls of these names that do not write a file: of trees, devices, the owner, torch's collective checkpoint.
"""


def calls(tree: ast.AST, scope: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.Call]]:
    """Yield every call with the name of the function that contains it."""
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
    if name == "replace":  # of a path: a text's takes two arguments, a dataclass's keywords
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
    return whole.rpartition(".")[2] in {"unlink", "rmdir"} or whole == "os.remove" or removes_all(call)


def removes_all(call: ast.Call) -> bool:
    """Return whether a call removes a folder with what is in it, by its name."""
    return ast.unparse(call.func).rpartition(".")[2] in {"rmtree", "removedirs"}


def is_by_name(call: ast.Call) -> bool:
    """Return whether a call of `removal.py` has neither `made` nor `private`."""
    given = {word.arg for word in call.keywords}
    return ast.unparse(call.func).rpartition(".")[2] == "remove_tree" and not given & {"made", "private"}


def in_source(found: Callable[[ast.Call], bool], *, named: bool = True) -> set[str]:
    """Return where there are such calls, outside `removal.py`."""
    root = Path(ddpbench.__file__).parent
    return {
        f"{path.relative_to(root).as_posix()}:{scope}" + (f":{ast.unparse(call.func)}" if named else "")
        for path in root.rglob("*.py")
        if path != root / "removal.py"
        for scope, call in calls(ast.parse(path.read_text(encoding="utf-8")))
        if found(call)
    }


def test_every_place_that_removes_a_file_is_listed() -> None:
    found = in_source(removes)
    assert found - set(REMOVERS) == set(), "a call removes what it has made itself: see ddpbench/removal.py"
    assert set(REMOVERS) - found == set(), "no longer there"


def test_folders_are_removed_by_their_owner_alone() -> None:
    assert in_source(removes_all) == set(), "use remove_tree of ddpbench/removal.py"
    assert in_source(is_by_name, named=False) == set(BY_NAME), "tell remove_tree which folder was made"


def test_temporary_folders_go_with_their_processes() -> None:
    """`TemporaryDirectory` leaves its folder if its process is killed."""
    found = in_source(
        lambda call: ast.unparse(call.func).endswith(("TemporaryDirectory", "mkdtemp")), named=False
    )
    assert found == set(), "use GuardedFolder of ddpbench/guarded_folder.py"


@pytest.mark.parametrize(
    "code",
    [
        "shutil.rmtree(folder)",
        "rmtree('.', dir_fd=folder)",
        "os.removedirs(folder)",
        "os.remove(path)",
        "path.unlink(missing_ok=True)",
        "os.rmdir(name, dir_fd=folder)",
    ],
)
def test_a_call_that_removes_is_found(code: str) -> None:
    (found,) = [call for _, call in calls(ast.parse(code)) if removes(call)]
    assert ast.unparse(found) == code


def test_a_removal_by_name_alone_is_found() -> None:
    code = "remove_tree(path)\nremove_tree(path, made=one)\nremoval.remove_tree(path, private=True)"
    (found,) = [call for _, call in calls(ast.parse(code)) if is_by_name(call)]
    assert ast.unparse(found) == "remove_tree(path)"


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
