"""Checks of limits, environment variables, and launchers."""

from __future__ import annotations

import json
import resource

import pytest

from ddpbench.launch.doctor import environment, launchers, limits
from ddpbench.launch.doctor.host import Disk, Reply
from tests.launch.doctor.fakes import Machine


def test_dockers_64_mib_of_shared_memory(machine: Machine) -> None:
    machine.disks["shm"] = Disk(64 * 2**20, 64 * 2**20)
    found = machine.findings(limits.shared_memory)["/dev/shm"]
    assert (found.level, found.found) == ("note", "64 MiB of 64 MiB free")
    assert "--shm-size" in found.advice


def test_shared_memory_that_is_not_there(machine: Machine) -> None:
    host = machine.host()

    def missing(_: object) -> Disk:
        raise FileNotFoundError

    host.disk = missing
    (found,) = limits.shared_memory(host)
    assert found.found == "not there"


def test_open_files_for_as_many_ranks_as_fit(machine: Machine) -> None:
    """Two ranks here: 256 files and 4 sockets to each."""
    machine.limits[resource.RLIMIT_NOFILE] = (264, 1024)
    assert machine.findings(limits.open_files)["open files"].found == "264 (may be raised to 1024)"
    assert machine.findings(limits.open_files)["open files"].level == "ok"
    machine.limits[resource.RLIMIT_NOFILE] = (263, 1024)
    assert machine.findings(limits.open_files)["open files"].advice.endswith("ulimit -n 4096")


def test_locked_memory_matters_beside_infiniband(machine: Machine) -> None:
    machine.limits[resource.RLIMIT_MEMLOCK] = (8 * 2**20, 8 * 2**20)
    assert machine.findings(limits.locked_memory)["locked memory"].level == "ok"
    machine.write("sys/class/infiniband/mlx5_0/node_type", "1: CA")
    assert machine.findings(limits.locked_memory)["locked memory"].level == "problem"
    machine.limits.clear()
    assert machine.findings(limits.locked_memory)["locked memory"].found == "unlimited"


@pytest.mark.parametrize(("group", "level"), [("max", "ok"), ("127", "note"), ("128", "ok")])
def test_a_control_groups_processes(machine: Machine, group: str, level: str) -> None:
    """64 threads for each of two ranks."""
    machine.write("proc/self/cgroup", "0::/pod\n")
    machine.write("sys/fs/cgroup/pod/pids.max", group)
    assert machine.findings(limits.processes)["processes"].level == level


def test_full_and_forbidden_disks(machine: Machine) -> None:
    found = machine.findings(limits.disks)
    assert found["reports"].found == f"128 GiB free in {machine.root / 'home'}"
    (machine.root / "home/reports").mkdir()
    machine.disks["reports"] = Disk(2**38, 2**20)
    found = machine.findings(limits.disks)
    assert found["reports"].level == "note"
    assert found["reports"].found == f"1 MiB free in {machine.root / 'home/reports'}"
    machine.writable = False
    found = machine.findings(limits.disks)
    assert found["reports"].level == "problem"
    assert found["reports"].advice == "write elsewhere with --out DIR"


def test_a_tmpdir_that_is_not_there(machine: Machine) -> None:
    machine.env["TMPDIR"] = str(machine.root / "nowhere")
    assert machine.findings(limits.disks)["TMPDIR"].advice.startswith("mkdir -p ")


def test_thread_variables_are_the_ranks_own(machine: Machine) -> None:
    from ddpbench.launch.catalog import TableCatalog
    from ddpbench.launch.plan import plan_launch
    from ddpbench.machine.hardware import read_hardware
    from ddpbench.records import RunDir
    from ddpbench.spec import Case

    machine.env |= {"OMP_NUM_THREADS": "4", "PATH": "/bin"}
    assert machine.findings(environment.threads)["threads"].found.startswith(
        "OMP_NUM_THREADS=4 is set here, but ranks get threads_per_rank"
    )
    case = Case(workload="mlp:small", strategy="single")
    directory = RunDir(machine.root).launch(case.case_id, "proof")
    plan = plan_launch(
        case, "proof", 0, directory=directory, hardware=read_hardware(), catalog=TableCatalog()
    )
    assert set(environment.SET_FOR_RANKS) <= set(plan.server_env)  # the page's claim about them is true


def test_detail_breaks_ddp(machine: Machine) -> None:
    assert machine.findings(environment.debugging) == {}
    machine.env["TORCH_DISTRIBUTED_DEBUG"] = "detail"
    assert machine.findings(environment.debugging)["TORCH_DISTRIBUTED_DEBUG"].level == "problem"
    assert machine.findings(environment.variables) == {}  # reported once


def test_variables_that_change_runs(machine: Machine) -> None:
    machine.env |= {
        "CUDA_LAUNCH_BLOCKING": "1",
        "NCCL_P2P_DISABLE": "0",  # off
        "NCCL_VERSION": "2.20.5",  # a label of NVIDIA's images
        "NCCL_MIN_NCHANNELS": "4",
        "GLOO_DEVICE_TRANSPORT": "TCP",
        "PATH": "/bin",
    }
    found = machine.findings(environment.variables)
    assert set(found) == {"CUDA_LAUNCH_BLOCKING", "others"}
    assert found["CUDA_LAUNCH_BLOCKING"].advice.endswith("unset CUDA_LAUNCH_BLOCKING")
    assert (
        found["others"].found == "GLOO_DEVICE_TRANSPORT=TCP, NCCL_MIN_NCHANNELS=4: every rank inherits them"
    )


def test_a_misspelt_variable_is_told_with_the_one_that_was_meant(machine: Machine) -> None:
    machine.env |= {"NCCL_IB_DISABEL": "1", "GLOO_SOCKET_IFNAM": "lo", "TORCH_DISTRIBUTED_DEBG": "INFO"}
    found = machine.findings(environment.variables)
    assert {name: one.found.rpartition(" ")[2] for name, one in found.items()} == {
        "GLOO_SOCKET_IFNAM": "GLOO_SOCKET_IFNAME?",
        "NCCL_IB_DISABEL": "NCCL_IB_DISABLE?",
        "TORCH_DISTRIBUTED_DEBG": "TORCH_DISTRIBUTED_DEBUG?",
    }
    assert found["NCCL_IB_DISABEL"].advice == "set NCCL_IB_DISABLE and unset NCCL_IB_DISABEL"


def test_nccls_files_act_like_variables(machine: Machine) -> None:
    machine.write("etc/nccl.conf", "# a comment\nNCCL_SOCKET_IFNAME==ens1f0\n")
    (found,) = machine.findings(environment.files).values()
    assert found.found == "sets NCCL_SOCKET_IFNAME==ens1f0"


def test_inside_other_launchers(machine: Machine) -> None:
    assert machine.findings(environment.job) == {}
    machine.env |= {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "2", "RANK": "0"}
    found = machine.findings(environment.job)
    assert found["job"].found == "Slurm job 77 on 2 nodes"
    assert found["launcher"].level == "note"


def test_launchers(machine: Machine) -> None:
    machine.commands |= {"srun", "sbatch"}
    assert machine.findings(launchers.slurm)["slurm"].found == "srun and sbatch on PATH"
    assert machine.findings(launchers.torchrun)["torchrun"].found == "/usr/bin/torchrun"
    machine.commands.clear()
    assert "torch.distributed.run" in machine.findings(launchers.torchrun)["torchrun"].found


def test_emulated_links_are_tried_and_what_lacks_is_named(machine: Machine) -> None:
    def answered(text: str, code: int | None = 0) -> tuple[str, str]:
        host = machine.host()
        host.run = lambda _argv, _limit: Reply(code, text, "")
        (found,) = launchers.emulated_links(host)
        return found.level, found.found

    fields = dict.fromkeys(("privileged", "user_namespaces", "veth", "bridge", "tbf", "netem"), True)
    whole = {**fields, "reasons": {}}
    assert answered(json.dumps(whole)) == ("ok", "can be made as root, latency and loss too")
    ordinary = {**whole, "privileged": False, "netem": False}
    assert answered(json.dumps(ordinary)) == (
        "ok",
        "can be made in an unprivileged user namespace, but no latency and loss: the kernel has no netem",
    )
    refused = {**ordinary, "user_namespaces": False, "reasons": {"user_namespaces": "AppArmor forbids them"}}
    level, found = answered(json.dumps(refused))
    assert level == "note"
    assert "AppArmor forbids them" in found
    lacking = {**whole, "tbf": False, "reasons": {"tbf": "the kernel has no tbf"}}
    assert "cannot be made: the kernel has no tbf" in answered(json.dumps(lacking))[1]
    assert "did not answer" in answered("", None)[1]
