"""All checks together: their order and verdict, no exceptions, and a remedy for everything that is not ok."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpbench.launch.doctor import CHECKS, Check, CheckResult, Host, carry_out, examine
from ddpbench.launch.doctor.finding import note, ok, problem
from ddpbench.launch.doctor.host import Disk, Reply
from ddpbench.machine.interfaces import Interface
from tests.launch.doctor.fakes import CPU_FACTS, ETHERNET, LOOPBACK, Machine, gpu_facts, smi_lines

ONLY_TELL = {"python", "package", "hyper_threads", "numa", "threads", "torchrun", "slurm"}
"""Checks whose findings are always ok."""
OF_TORCH = {"torch", "backends", "devices", "strategies", "workloads"}
"""Not ok only with another torch: see test_software and test_training."""
OF_PACKAGES = {"packages"}
"""Not ok only with packages that take ddpbench's names: see tests/launch/test_installed.py."""


def everything_is_wrong(machine: Machine) -> None:
    machine.torch(gpu_facts(1, rpc=False, other_devices=["xpu"], architectures=["sm_50"]))
    links = "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n"
    lines = smi_lines(2).replace("Enabled, Default, Disabled", "Disabled, Prohibited, Enabled")
    machine.gpus(2, links=links, lines=lines.replace(", 4, 0,", ", 70000, 99,"))
    machine.env |= {
        "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
        "CUDA_LAUNCH_BLOCKING": "1",
        "NCCL_FOO": "3",
        "DDPBENCH_SHARED_MACHINE": "1",
        "RANK": "0",
        "GLOO_SOCKET_IFNAME": "eth9",
        "NCCL_SOCKET_IFNAME": "eth9",
        "TMPDIR": "/nonexistent",
    }
    machine.write("etc/nccl.conf", "NCCL_DEBUG=WARN\n")
    machine.write("proc/self/cgroup", "0::/\n")
    machine.write("sys/fs/cgroup/cpu.max", "150000 100000")
    machine.write("sys/fs/cgroup/memory.max", str(2**28))
    machine.write("sys/fs/cgroup/pids.max", "20")
    machine.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    machine.write(
        "proc/meminfo", "MemTotal: 9 kB\nMemAvailable: 9 kB\nSwapTotal: 9999999 kB\nSwapFree: 9 kB\n"
    )
    machine.write("proc/net/unix", "0000: 00000002 0 0 0001 01 7 @ddpbench-core-1\n")
    machine.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n")
    machine.between = lambda: machine.stat(user=60, idle=1000, steal=40)
    machine.found = [Interface("lo", False, ()), ETHERNET]
    machine.addresses = {}
    machine.disks = {"shm": Disk(2**26, 2**26), "home": Disk(2**20, 2**20)}
    machine.limits = {resource.RLIMIT_NOFILE: (64, 64), resource.RLIMIT_MEMLOCK: (65536, 65536)}
    machine.fabric |= {"veth": False, "reasons": {"veth": "the kernel has no veth"}}


def nothing_is_there(machine: Machine) -> None:
    """Nothing can be read, not even /proc and /sys."""
    machine.root = machine.root / "empty"
    machine.root.mkdir()
    machine.found, machine.addresses, machine.commands = [], {}, set()
    machine.torch(Reply(None, err="No such file or directory"))


def without_torch(machine: Machine) -> None:
    machine.torch(Reply(1, err="ModuleNotFoundError: No module named 'torch'"))


def without_gloo(machine: Machine) -> None:
    machine.torch({**CPU_FACTS, "built_in": dict.fromkeys(CPU_FACTS["built_in"], False)})


def as_it_should_be(machine: Machine) -> None:
    assert machine.found == [LOOPBACK, ETHERNET]


MACHINES = [as_it_should_be, everything_is_wrong, nothing_is_there, without_torch, without_gloo]


@pytest.mark.parametrize("changed", MACHINES)
def test_whatever_is_not_ok_says_what_to_do_and_no_check_fails(
    machine: Machine, changed: Callable[[Machine], None]
) -> None:
    changed(machine)
    for finding in examine(machine.host()):
        assert (finding.level == "ok") == (finding.advice == ""), finding
        assert finding.found, finding
        assert finding.topic, finding
        assert "Error" not in finding.found.replace("ModuleNotFoundError", ""), finding


def test_every_check_has_something_to_say_of_a_machine_where_everything_is_wrong(machine: Machine) -> None:
    everything_is_wrong(machine)
    host = machine.host()
    examine(host)  # measures the load
    silent = {
        check.__name__
        for checks in CHECKS.values()
        for check in checks
        if all(finding.level == "ok" for finding in carry_out(check, host, "a topic"))
    }
    assert silent - OF_TORCH - OF_PACKAGES == ONLY_TELL


def test_a_machine_as_it_should_be_needs_nothing(machine: Machine) -> None:
    findings = examine(machine.host())
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert findings[-1].found == "Training can run here: cpu with gloo, 2 ranks"
    order = list(dict.fromkeys(finding.topic for finding in findings))
    assert order == [*CHECKS, "Verdict"]


def test_gpus_come_first_in_the_verdict(machine: Machine) -> None:
    machine.torch(gpu_facts(8))
    machine.gpus(8)
    verdict = examine(machine.host())[-1]
    assert verdict.found == "Training can run here: cuda with nccl, 8 ranks; cpu with gloo, 2 ranks"
    assert verdict.level == "ok"


@pytest.mark.parametrize(
    ("changed", "cause", "advice"),
    [
        (without_torch, "torch: not installed", "pip install torch"),
        (without_gloo, "gloo: not in this build of torch", "pip install torch"),
        (
            lambda machine: machine.found.remove(LOOPBACK),
            "lo: the loopback interface is down",
            "ip link set lo up",
        ),
    ],
)
def test_what_is_missing_is_named_in_the_verdict(
    machine: Machine, changed: Callable[[Machine], None], cause: str, advice: str
) -> None:
    changed(machine)
    verdict = examine(machine.host())[-1]
    assert verdict.level == "problem"
    assert verdict.found.startswith("Training cannot run here: ")
    assert cause in verdict.found
    assert advice in verdict.advice


def test_a_problem_that_leaves_some_training_is_told_with_it(machine: Machine) -> None:
    machine.env["GLOO_SOCKET_IFNAME"] = "eth9"
    verdict = examine(machine.host())[-1]
    assert verdict.level == "ok"
    assert verdict.found.endswith("2 ranks, but not all of it: see the 1 problem")


def test_a_check_that_fails_is_a_finding_and_keeps_what_it_found(machine: Machine) -> None:
    def broken(_: Host) -> object:
        yield ok("first", "fine")
        raise PermissionError(13, "Permission denied")

    first, failed = carry_out(broken, machine.host(), "A topic")  # type: ignore[arg-type]
    assert (first.subject, first.topic) == ("first", "A topic")
    assert failed.level == "note"
    assert failed.found == "not readable (PermissionError: [Errno 13] Permission denied)"


def test_a_finding_without_what_to_do_cannot_be_made() -> None:
    for make in (note, problem):
        with pytest.raises(AssertionError, match="a finding that is not ok needs advice"):
            make("a subject", "found", "")
    with pytest.raises(AssertionError, match="a finding that is not ok needs advice"):
        CheckResult(subject="a subject", level="ok", found="found", advice="do nothing")


_TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["0-3", "max 100000", "1:cpu:/a", "cpu0 1 2 x", "0::/", "-1", "7 7", "a,b"]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_text_in_files_or_answers_makes_it_raise(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    text = data.draw(_TEXTS)
    reply = Reply(data.draw(st.sampled_from([None, 0, 1, -9, -200])), data.draw(_TEXTS), data.draw(_TEXTS))

    def names(_: Path) -> list[str]:
        return ["node0", "1", "x"]

    monkeypatch.setattr(Host, "read", lambda *_: text)
    monkeypatch.setattr(Host, "names", lambda _, folder: names(folder))
    monkeypatch.setattr(machine, "_run", lambda *_: reply)
    findings = examine(machine.host())
    assert findings[-1].topic == "Verdict"


def test_checks_have_names_of_their_own() -> None:
    checks: list[Check] = [check for entries in CHECKS.values() for check in entries]
    assert len({check.__name__ for check in checks}) == len(checks)
    assert all(check.__doc__ for check in checks)
