"""Checks of torch: its version, whether it can be imported and the remedy if not, and its use of the GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpbench.launch.doctor import software, training
from ddpbench.launch.doctor.host import ASK_TORCH, Host, Reply, run_command
from tests.launch.doctor.fakes import CPU_FACTS, Machine, gpu_facts


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("OSError: libgomp.so.1: cannot open shared object file: No such file or directory", "libgomp1"),
        (
            "ImportError: /lib/x86_64-linux-gnu/libm.so.6: version `GLIBC_2.29' not found (required by libtorch.so)",
            "another C or C++ library",
        ),
        (
            "OSError: libcudart.so.12: cannot open shared object file: No such file or directory",
            "CUDA library",
        ),
        ("ImportError: libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent", "fresh environment"),
        ("ModuleNotFoundError: No module named 'typing_extensions'", "--force-reinstall"),
        ("RuntimeError: something else", "import torch"),
    ],
)
def test_a_torch_that_cannot_be_imported(machine: Machine, error: str, advice: str) -> None:
    machine.torch(Reply(1, err=f"Traceback (most recent call last):\n  File ...\n{error}\n"))
    found = machine.findings(software.torch)["torch"]
    assert (found.level, found.blocks) == ("problem", True)
    assert found.found == f"cannot be imported: {error}"
    assert advice in found.advice
    assert machine.findings(software.cuda) == machine.findings(training.backends) == {}


def test_no_torch_beside_musl(machine: Machine) -> None:
    machine.torch(Reply(1, err="ModuleNotFoundError: No module named 'torch'\n"))
    assert machine.findings(software.torch)["torch"].advice.startswith("pip install torch")
    machine.c_library = ""
    assert "image with glibc" in machine.findings(software.torch)["torch"].advice


def test_a_torch_that_takes_its_process_down(machine: Machine) -> None:
    machine.torch(Reply(-4))
    found = machine.findings(software.torch)["torch"]
    assert found.found == "cannot be imported: ended by SIGILL"
    assert "lacks instructions" in found.advice


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        ("ModuleNotFoundError(\"No module named 'torch'\", name='torch')", "not installed"),
        ("OSError('libgomp.so.1: cannot open shared object file')", "libgomp.so.1"),
    ],
)
def test_a_broken_torch_of_a_real_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str, words: str
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(f"raise {raised}\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (found,) = software.torch(Host(run=run_command))
    assert found.blocks
    assert words in found.found
    assert "Traceback" not in found.found


def test_what_the_real_torch_says() -> None:
    import torch

    facts = Host().torch().facts
    assert facts is not None
    assert set(CPU_FACTS) <= set(facts)  # the made-up machines have these facts
    assert facts["torch"] == torch.__version__
    assert facts["built_in"]["gloo"] == torch.distributed.is_gloo_available()
    assert facts["rpc"] == torch.distributed.rpc.is_available()
    assert ASK_TORCH[-1] == "ddpbench.worker.checkup"


def test_an_old_torch(machine: Machine) -> None:
    machine.torch({**CPU_FACTS, "torch": "2.4.1"})
    found = machine.findings(software.torch)["torch"]
    assert found.blocks
    assert found.advice == "pip install 'torch>=2.5'"
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"torch>=2.5"' in project  # the same bound


def test_a_gpu_beside_a_cpu_build(machine: Machine) -> None:
    machine.gpus(1)
    found = machine.findings(software.cuda)["cuda"]
    assert found.level == "problem"
    assert "CPU build" in found.found
    assert "pytorch.org" in found.advice
    assert machine.findings(training.backends)["nccl"].level == "problem"


def test_a_driver_too_old_for_the_build(machine: Machine) -> None:
    machine.gpus(1)
    warning = "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)."
    machine.torch(gpu_facts(0, driver_cuda="11.4", warnings=[warning]))
    found = machine.findings(software.cuda)["cuda"]
    assert found.found == f"this machine has a GPU, but torch cannot use it: {warning}"
    assert "runs up to CUDA 11.4" in found.advice


def test_a_gpu_newer_than_the_build(machine: Machine) -> None:
    machine.gpus(1)
    machine.torch(gpu_facts(1, architectures=["sm_70", "sm_80"]))
    found = machine.findings(software.cuda)["cuda"]
    assert found.level == "problem"
    assert "9.0" in found.found


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ("8.6", ["sm_80"], True),  # the same major version, a later minor one
        ("8.0", ["sm_86"], False),
        ("9.0", ["sm_80"], False),
        ("9.0", ["sm_80", "compute_80"], True),  # compiled by the driver
        ("10.0", ["sm_100"], True),
        ("12.0", ["sm_90a", "sm_120"], True),
        ("9.0", [], True),
    ],
)
def test_which_gpus_a_build_runs_on(capability: str, architectures: list[str], runs: bool) -> None:
    assert software.runs_on(capability, architectures) is runs


def test_rocm_is_named_as_untried(machine: Machine) -> None:
    machine.torch({**CPU_FACTS, "rocm_build": "6.3"})
    assert machine.findings(software.cuda)["cuda"].level == "note"
