"""The course kit, one training script in every framework: all print what the script for one device prints."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.processes import nothing_left_behind
from tests.slurm.cluster import Cluster, cluster, missing

__all__ = ["nothing_left_behind"]

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).parents[1]
KIT = ROOT / "experiments/frameworks"
SCRIPTS = sorted(path.stem for path in KIT.glob("*.py") if path.stem != "count")
JOBS = sorted(path.stem for path in (KIT / "slurm").glob("*.sbatch"))
LOSS, CORRECT = 5e-4, 2.5 / 297
"""Largest difference of two losses, and of two accuracies: the order of sums changes the last digits."""
ASKED = ("--epochs", "2", "--batch", "20")
WITHIN_S = 420.0
EPOCH = re.compile(r"epoch (\d+): loss ([\d.]+), accuracy ([\d.]+)$", re.MULTILINE)
FRAMEWORK = {
    "lightning_trainer": "lightning",
    "fabric_ddp": "lightning",
    "accelerate_launch": "accelerate",
    "hf_trainer": "hf_trainer",
    "deepspeed_zero": "deepspeed",
    "ray_train": "ray_train",
    "tf_single": "tensorflow",
    "tf_mirrored": "tensorflow",
    "tf_multi_worker": "tensorflow",
}
FRAMEWORK_OF_JOB = {name: FRAMEWORK.get(name) for name in JOBS}


def case(*values: object, name: str, thorough: bool = False) -> object:
    """Return a case of a parametrized test, skipped if the script's framework is not installed.

    `thorough`: it takes longer than `make test` allows.
    """
    framework = FRAMEWORK.get(name)
    marks = [pytest.mark.framework(framework)] if framework else []
    if thorough:
        marks.append(pytest.mark.thorough)
    return pytest.param(*values, marks=marks, id="-".join(map(str, values[:2])))


@dataclass(frozen=True, kw_only=True, slots=True)
class Printed:
    """A script's output, and the number of processes in which it read the digits."""

    text: str
    processes: int

    @property
    def epochs(self) -> list[tuple[int, float, float]]:
        """Return epoch, loss and accuracy of each line."""
        return [(int(epoch), float(loss), float(right)) for epoch, loss, right in EPOCH.findall(self.text)]

    @property
    def accuracy(self) -> float:
        """Return the number of the last line."""
        (last,) = re.findall(r"^accuracy (0\.\d{4})$", self.text, re.MULTILINE)
        return float(last)


def check_same(found: Printed, expected: Printed, *, twice: bool = False) -> None:
    """Check that both trained the same: epochs, their losses and accuracies, and the last line agree."""
    epochs = (
        sorted(set(found.epochs)) if twice else found.epochs
    )  # Ray repeats some of what its workers print
    assert [epoch for epoch, *_ in epochs] == [epoch for epoch, *_ in expected.epochs], found.text
    for (_, loss, right), (_, other_loss, other_right) in zip(epochs, expected.epochs, strict=True):
        assert loss == pytest.approx(other_loss, abs=LOSS)
        assert right == pytest.approx(other_right, abs=CORRECT)
    assert found.accuracy == pytest.approx(expected.accuracy, abs=CORRECT)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def copied(name: str, folder: Path, *edits: tuple[str, str]) -> Path:
    """Copy a script with edits, each of which must apply, and a line that prints which processes read the digits."""
    text = (KIT / f"{name}.py").read_text(encoding="utf-8")
    read = "    digits = load_digits()\n"
    trace = (
        f'    __import__("pathlib").Path({str(folder)!r}, f"read-{{__import__(\'os\').getpid()}}").touch()\n'
    )
    for old, new in [*edits, (read, trace + read)]:
        assert text.count(old) == 1, (old, text.count(old))
        text = text.replace(old, new)
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return path


def environment(folder: Path, **env: str) -> dict[str, str]:
    """Return the environment of scripts: no GPU, loopback, and a separate home."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    own = {
        "HOME": str(folder),
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, **quiet, **own, "PATH": path, **env}


def torchrun(ranks: int, *arguments: object) -> list[str]:
    (port,) = free_ports(1)
    where = ("--master-addr", "127.0.0.1", "--master-port", port, "--nproc-per-node", ranks)
    return [sys.executable, "-m", "torch.distributed.run", *map(str, (*where, *arguments))]


def commands(script: Path, ranks: int) -> list[tuple[list[str], dict[str, str]]]:
    """Return the commands that train with that many ranks, each with its environment: mostly one."""
    ports = free_ports(2)
    match script.stem:
        case "ddp_torchrun" | "hf_trainer" | "deepspeed_zero":
            return [(torchrun(ranks, script), {})]
        case "accelerate_launch":
            several = ["--multi_gpu"] if ranks > 1 else ["--cpu"]
            options = (*several, "--num_machines", 1, "--mixed_precision", "no", "--dynamo_backend", "no")
            options = (*options, "--num_processes", ranks, "--main_process_port", ports[0])
            return [([sys.executable, "-m", "accelerate.commands.launch", *map(str, (*options, script))], {})]
        case "tf_multi_worker" if ranks > 1:
            workers = [f"localhost:{port}" for port in ports]
            tasks = [{"cluster": {"worker": workers}, "task": {"type": "worker", "index": i}} for i in (0, 1)]
            return [([sys.executable, str(script)], {"TF_CONFIG": json.dumps(task)}) for task in tasks]
    several = {
        "ddp_spawn": "--ranks",
        "lightning_trainer": "--devices",
        "fabric_ddp": "--devices",
        "ray_train": "--workers",
        "tf_mirrored": "--devices",
    }.get(script.stem)
    option = [several, str(ranks)] if several else []
    return [([sys.executable, str(script), *option], {"MASTER_PORT": str(ports[0])})]


ABORTED = "terminate called without an active exception"
"""Output of a process in which a thread of gloo's still has a Python object to release as the interpreter ends."""
KEEP_THE_GROUP = ("lightning_trainer", "fabric_ddp", "hf_trainer", "deepspeed_zero")
"""Scripts whose framework keeps the process group to the end: they abort now and then, after the last line, and such a
run is repeated. The others end the group, and with it its threads, and must end without an error."""
TRIES = 4


class AbortedError(Exception):
    """Raised if a script trained, and aborted at its very end."""


def aborted(out: str, err: str) -> bool:
    """Return whether a script with this output had trained, and aborted after that."""
    return ABORTED in err and bool(re.search("^accuracy ", out, re.MULTILINE))


def run(script: Path, ranks: int, *arguments: str, **env: str) -> Printed:
    """Run a script to its end, which must come without an error in every process that is started here."""
    before = {path: path.read_bytes() for path in script.parent.iterdir() if path.is_file()}
    for _ in range(TRIES - 1):
        try:
            return run_once(script, ranks, *arguments, **env)
        except AbortedError:
            for path in script.parent.iterdir():
                if path.is_file() and path not in before:
                    path.unlink()
            for path, content in before.items():
                path.write_bytes(content)
    return run_once(script, ranks, *arguments, **env)


def run_once(script: Path, ranks: int, *arguments: str, **env: str) -> Printed:
    """Run it once.

    Raises:
        AbortedError: it had trained, and a process aborted as it ended.
    """
    started = []
    for number, (argv, own) in enumerate(commands(script, ranks)):
        out, err = (script.parent / f"{kind}-{number}" for kind in ("out", "err"))
        with out.open("wb") as printed, err.open("wb") as complained:
            process = subprocess.Popen(
                [*argv, *arguments],
                cwd=script.parent,
                env=environment(script.parent, **own, **env),
                stdout=printed,
                stderr=complained,
            )
        started.append((process, out, err))
    deadline = time.monotonic() + WITHIN_S
    try:
        for process, out, err in started:
            code = process.wait(max(1.0, deadline - time.monotonic()))
            if code and script.stem in KEEP_THE_GROUP and aborted(out.read_text(), err.read_text()):
                raise AbortedError
            assert code == 0, f"exit code {code}\n{out.read_text()}\n{err.read_text()[-5000:]}"
    finally:
        for process, *_ in started:
            kill(process)
    text = "".join(out.read_text() for _, out, _ in started)
    return Printed(text=re.sub(r"\x1b\[[\d;]*m", "", text), processes=len(list(script.parent.glob("read-*"))))


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started, at once."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Printed]:
    """Return a function for the output of a script's "before" version, which is run once."""
    known: dict[tuple[str, tuple[str, ...]], Printed] = {}

    def ran(name: str, *arguments: str) -> Printed:
        key = ("tf_single" if name.startswith("tf_") else "single", arguments or ASKED)
        if key not in known:
            known[key] = run(copied(key[0], tmp_path_factory.mktemp("before")), 1, *key[1])
        return known[key]

    return ran


@pytest.fixture(scope="module", autouse=True)
def _ray_of_its_own() -> Iterator[None]:
    """Make a separate folder for Ray, with a path short enough for its sockets.

    In the usual one a killed Ray leaves its address, and the next one waits there for minutes.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_ADDRESS", "local")
        yield


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Make the folder in which DeepSpeed builds its extension, once: a lock left by a killed build would block
    everyone."""
    return {"TORCH_EXTENSIONS_DIR": str(tmp_path_factory.mktemp("extensions"))}


def test_the_scripts_stand_alone_and_hide_no_library() -> None:
    for name in SCRIPTS:
        text = (KIT / f"{name}.py").read_text(encoding="utf-8")
        imported = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))
        assert not imported & {"ddpbench", *SCRIPTS}, name
        # The script's folder is the first in which Python looks for imports.
        assert importlib.util.find_spec(name) is None, name
        assert len(text.splitlines()) <= 100, name


def test_the_network_is_that_of_the_workload() -> None:
    import torch

    from ddpbench.workloads.cnn import CHANNELS, HIDDEN_UNITS
    from ddpbench.workloads.cnn_model import DigitsNet

    net = runpy.run_path(str(KIT / "single.py"))["Net"]()
    other = DigitsNet(channels=CHANNELS["small"], hidden=HIDDEN_UNITS["small"], classes=10)
    other.load_state_dict(net.state_dict())
    images = torch.rand(5, 1, 8, 8)
    assert torch.equal(net(images), other(images))


def test_the_before_learns(before: Callable[..., Printed]) -> None:
    printed = before("single", "--epochs", "10", "--batch", "60")
    assert [epoch for epoch, *_ in printed.epochs] == list(range(10))
    assert printed.accuracy > 0.9
    assert printed.epochs[-1][1] < 0.1 < 2 < printed.epochs[0][1]
    assert printed.epochs[-1][2] == printed.accuracy


SLOW = {"accelerate_launch", "ddp_spawn", "deepspeed_zero", "fabric_ddp", "ray_train"}
"""Frameworks whose script on two ranks is only run in thorough tests: their strategies have their own tests."""
RUNS = [
    *(
        (name, ranks)
        for name in SCRIPTS
        for ranks in (1, 2)
        if name not in ("single", "tf_single", "data_parallel")
    ),
    ("data_parallel", 1),
]
ALSO = [one for one in RUNS if one[1] == 1 and one[0] != "data_parallel"]
"""Scripts run at one rank that are also run at two."""


@pytest.mark.parametrize(
    ("name", "ranks"), [case(*one, name=one[0], thorough=one in ALSO or one[0] in SLOW) for one in RUNS]
)
def test_it_prints_what_the_before_prints(
    name: str,
    ranks: int,
    before: Callable[..., Printed],
    built: dict[str, str],
    tmp_path: Path,
    nothing_left_behind: None,
) -> None:
    printed = run(copied(name, tmp_path), ranks, *ASKED, **built)
    check_same(printed, before(name), twice=name == "ray_train")
    assert printed.processes == (1 if name == "tf_mirrored" else ranks)
    assert ("this trains on a single device" in printed.text) == (name == "data_parallel")


DOUBLE = (
    ("    torch.manual_seed(0)\n", "    torch.set_default_dtype(torch.float64)\n    torch.manual_seed(0)\n"),
    ("dtype=torch.float32", "dtype=torch.float64"),
    ("loss {mean:.5f}", "loss {mean:.9f}"),
)


@pytest.mark.thorough
def test_in_float64_two_ranks_stay_with_one(tmp_path: Path, nothing_left_behind: None) -> None:
    """In float32, differences in sums' last digits grow over some epochs, which is not a fault of a script."""
    printed = []
    for name, ranks in (("single", 1), ("ddp_torchrun", 2)):
        (tmp_path / name).mkdir()
        printed.append(run(copied(name, tmp_path / name, *DOUBLE), ranks, "--epochs", "5", "--batch", "20"))
    one, two = printed
    assert len(one.epochs) == 5
    for (_, loss, right), (_, other_loss, other_right) in zip(one.epochs, two.epochs, strict=True):
        assert loss == pytest.approx(other_loss, abs=1e-8)
        assert right == other_right


ENDS = {
    "ddp_torchrun": ("    del model", "    dist.destroy_process_group()\n"),
    "ddp_spawn": ("    del model", "    dist.destroy_process_group()\n"),
    "accelerate_launch": (
        "    model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)",
        "    accelerator.end_training()\n",
    ),
}
"""Parts that each script releases before it ends the process group, and how it ends it."""
EARLY = "import torch.distributed.nn  #"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are named in Linux's /proc")
@pytest.mark.parametrize("name", [case(name, name=name, thorough=True) for name in ENDS])
@pytest.mark.usefixtures("nothing_left_behind", "whole_torch")
def test_no_thread_of_gloo_outlives_the_group(name: str, tmp_path: Path) -> None:
    """A script that keeps references may hang or abort the process at its end: rarely, so its threads are checked
    instead."""
    frees, ends = ENDS[name]
    tell = (
        "    import os as process\n    from pathlib import Path as Here\n"
        f"    Here({str(tmp_path)!r}, f'threads-{{process.getpid()}}').write_text(\n"
        "        ''.join(path.read_text() for path in Here('/proc/self/task').glob('*/comm')))\n"
    )
    leaves = tell + "    process._exit(0)\n"  # nothing is left to wait for the threads of a planted script
    for number, edits in enumerate(
        [
            [(ends, ends + tell)],
            [(frees, "    #"), (ends, ends + leaves)],
            [(EARLY, "#"), (ends, ends + leaves)],
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        run_once(copied(name, folder, *edits), 2, "--epochs", "1", "--batch", "500")
        seen = [path.read_text() for path in tmp_path.glob("threads-*")]
        assert len(seen) == 2
        assert [("pt_gloo_runloop" in threads) for threads in seen] == [number > 0] * 2, seen
        for path in tmp_path.glob("threads-*"):
            path.unlink()


@pytest.mark.framework("deepspeed")
@pytest.mark.thorough
@pytest.mark.parametrize("stage", ["2", "3"])
def test_other_stages_of_zero_print_the_same(
    stage: str,
    before: Callable[..., Printed],
    built: dict[str, str],
    tmp_path: Path,
    nothing_left_behind: None,
) -> None:
    printed = run(copied("deepspeed_zero", tmp_path), 2, *ASKED, "--stage", stage, **built)
    check_same(printed, before("deepspeed_zero"))


PLANTED = [
    ("ddp_torchrun", "no set_epoch", "        sampler.set_epoch(epoch)", "        # "),
    ("ddp_torchrun", "one shard", "DistributedSampler(train_set)", "DistributedSampler(train_set, rank=0)"),
    (
        "ddp_spawn",
        "no DDP",
        "DistributedDataParallel(Net().to(device))",
        'Net().to(device)\n    model.__dict__["module"] = model',
    ),
    ("ddp_spawn", "batch of each", "args.batch // args.ranks", "args.batch"),
    ("lightning_trainer", "batch of each", "args.batch // trainer.world_size", "args.batch"),
    (
        "fabric_ddp",
        "loss of one",
        'fabric.all_reduce(total, reduce_op="sum")',
        "(total * fabric.world_size)",
    ),
    ("accelerate_launch", "alone", ", cpu=not torch.cuda.is_available()", ""),
    ("accelerate_launch", "batch of each", "split_batches=True, ", ""),
    ("hf_trainer", "clipped", "        max_grad_norm=0,", "        # "),
    ("deepspeed_zero", "clipped", '"gradient_clipping": 0.0', '"gradient_clipping": 1.0'),
    ("ray_train", "no set_epoch", "            loader.sampler.set_epoch(epoch)", "            pass"),
    ("tf_mirrored", "summed", "tf.nn.compute_average_loss(losses)", "tf.reduce_mean(losses)"),
    ("tf_multi_worker", "summed", "tf.nn.compute_average_loss(losses)", "tf.reduce_mean(losses)"),
]


@pytest.mark.parametrize(
    ("name", "wrong", "old", "new"),
    [case(*planted, name=planted[0], thorough=number > 0) for number, planted in enumerate(PLANTED)],
)
def test_a_planted_wrong_is_seen(
    name: str,
    wrong: str,
    old: str,
    new: str,
    before: Callable[..., Printed],
    built: dict[str, str],
    tmp_path: Path,
    nothing_left_behind: None,
) -> None:
    printed = run(copied(name, tmp_path, (old, new)), 2, *ASKED, **built)
    assert len(printed.epochs) >= 2  # it did train
    with pytest.raises(AssertionError):
        check_same(printed, before(name), twice=name == "ray_train")


FORGETS = ('        optimizer.load_state_dict(snapshot["optimizer"])', "        # ")


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param([], id="whole"),
        pytest.param([FORGETS], id="without momentum"),
    ],
)
@pytest.mark.thorough
def test_killed_it_goes_on_from_its_snapshot(
    edits: list[tuple[str, str]],
    tmp_path: Path,
    nothing_left_behind: None,
) -> None:
    import torch

    script, snapshot = copied("ddp_torchrun", tmp_path, *edits), tmp_path / "snapshot.pt"
    asked = ("--batch", "20", "--save-every", "2", "--snapshot", str(snapshot))
    process = subprocess.Popen(
        torchrun(2, script, *asked, "--epochs", "1000"),
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + WITHIN_S
    while not snapshot.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    kill(process)
    assert process.returncode == -signal.SIGKILL
    done = torch.load(snapshot)["epochs"]
    assert done >= 2
    assert done % 2 == 0
    goal = str(done + 2)
    resumed = run(script, 2, *asked, "--epochs", goal)
    (tmp_path / "whole").mkdir()
    whole = run(copied("ddp_torchrun", tmp_path / "whole"), 2, "--epochs", goal, "--batch", "20")
    left = Printed(text=whole.text[whole.text.index(f"epoch {done}:") :], processes=1)
    if edits:
        with pytest.raises(AssertionError):
            check_same(resumed, left)
    else:
        assert resumed.epochs == left.epochs  # to the last digit: the same ranks, the same order of sums
        assert resumed.accuracy == left.accuracy
        again = run(script, 2, *asked, "--epochs", goal)  # there is nothing left to do
        assert again.epochs == []
        assert again.accuracy == resumed.accuracy


def count(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, folder / "count.py", *arguments], capture_output=True, text=True, check=False
    )


def test_the_counted_table_is_that_of_the_scripts(tmp_path: Path) -> None:
    assert count(KIT, "--check").returncode == 0
    folder = Path(shutil.copytree(KIT, tmp_path / "kit"))
    script = folder / "data_parallel.py"
    script.write_text(script.read_text() + "\n\n# a comment\n")
    assert count(folder, "--check").returncode == 0
    script.write_text(script.read_text() + "left_over = 1\n")
    checked = count(folder, "--check")
    assert checked.returncode == 1
    assert "README.md is not what" in checked.stderr
    assert count(folder).returncode == 0
    # By hand: an `if`, its line, an `else`, its line; and the remaining line.
    assert "| `data_parallel.py` | `single.py` | 5 | 0 |" in (folder / "README.md").read_text()
    assert count(folder, "--check").returncode == 0


@pytest.mark.parametrize(
    ("old", "new", "added", "removed"),
    [
        ("a = 1\nb = 2\n", "a = 1\nb = 2  # why\n\n\n# how\n", 0, 0),
        ("a = 1\nb = 2\n", "a = 1\nb = 3\n", 1, 1),
        ("a = 1\n", '"""What.\n\nMore."""\na = "# no comment"\n', 1, 1),
        ('def f():\n    """Why."""\n    return 1\n', "def f():\n    return 1\n", 0, 0),
        ("a = 1\n", "a = 1\nb = 2\nc = 3\n", 2, 0),
    ],
)
def test_code_is_counted_and_nothing_else(old: str, new: str, added: int, removed: int) -> None:
    assert runpy.run_path(str(KIT / "count.py"))["changed"](old, new) == (added, removed)


def test_the_page_names_every_script_and_every_job() -> None:
    page = (KIT / "README.md").read_text(encoding="utf-8")
    for name in SCRIPTS:
        rows = [line for line in page.splitlines() if line.startswith(f"| `{name}.py` |")]
        assert len(rows) == 2, name  # once reported, once counted
    assert set(JOBS) - set(SCRIPTS) == {"ddp_srun"}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_script_is_bash(name: str) -> None:
    path = KIT / f"slurm/{name}.sbatch"
    assert path.read_text(encoding="utf-8").startswith("#!/bin/bash\n")
    checked = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.mark.slurm
@pytest.mark.skipif(bool(missing()), reason=missing() or "Slurm is here")
@pytest.mark.parametrize("name", [case(name, name=name, thorough=name != "ddp_torchrun") for name in JOBS])
def test_a_job_trains_on_two_nodes(
    name: str,
    slurm: Cluster,
    before: Callable[..., Printed],
    built: dict[str, str],
    tmp_path: Path,
    nothing_left_behind: None,
) -> None:
    shutil.copytree(KIT / "slurm", tmp_path / "slurm")
    script = "ddp_torchrun" if name == "ddp_srun" else name
    copied(script, tmp_path)
    job = subprocess.run(
        ["sbatch", "--parsable", "--output=out", "--error=err", f"slurm/{name}.sbatch", *ASKED],
        cwd=tmp_path,
        env=environment(tmp_path, **slurm.env, **built),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    try:
        state = slurm.wait_for(job, "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", within_s=WITHIN_S)
    finally:
        slurm.ask("scancel", job)
    text = re.sub(r"\x1b\[[\d;]*m", "", (tmp_path / "out").read_text())
    complained = (tmp_path / "err").read_text()
    forgiven = script in KEEP_THE_GROUP and aborted(text, complained)
    assert state == "COMPLETED" or (state == "FAILED" and forgiven), text + complained[-5000:]
    printed = Printed(text=text, processes=len(list(tmp_path.glob("read-*"))))
    check_same(printed, before(script), twice=name == "ray_train")
    assert printed.processes == 2
