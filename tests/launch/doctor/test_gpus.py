"""Checks of GPUs and their links, from nvidia-smi's output."""

from __future__ import annotations

import itertools

from ddpbench.launch.doctor import gpus
from tests.launch.doctor.fakes import Machine, smi_lines

# A DGX-1's matrix, as nvidia-smi prints it on a terminal, with a network card and the affinity columns.
MIXED = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    "GPU0\t X \tNV2\tPIX\tSYS\tPIX\t0-19,40-59\t0\n"
    "GPU1\tNV2\t X \tNV1\tSYS\tPHB\t0-19,40-59\t0\n"
    "GPU2\tPIX\tNV1\t X \tNODE\tSYS\t20-39,60-79\t1\n"
    "GPU3\tSYS\tSYS\tNODE\t X \tSYS\t20-39,60-79\t1\n"
    "mlx5_0\tPIX\tPHB\tSYS\tSYS\t X \t\t\n"
    "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n"
)


def switched(count: int) -> str:
    """Every GPU is connected with every other, as by an NVSwitch."""
    names = [f"GPU{n}" for n in range(count)]
    rows = [
        "\t".join([row, *(" X " if row == column else "NV18" for column in names), "0-55"]) for row in names
    ]
    return "\n".join(["\t".join(["", *names, "CPU Affinity"]), *rows, ""])


def test_the_matrix_of_a_machine_with_all_kinds_of_links() -> None:
    assert gpus.parse_links(MIXED) == {
        ("GPU0", "GPU1"): "NV2",
        ("GPU0", "GPU2"): "PIX",
        ("GPU0", "GPU3"): "SYS",
        ("GPU1", "GPU2"): "NV1",
        ("GPU1", "GPU3"): "SYS",
        ("GPU2", "GPU3"): "NODE",
    }


def test_pairs_across_sockets_are_a_note_with_the_gpus_to_keep_to(machine: Machine) -> None:
    machine.gpus(4, links=MIXED)
    found = machine.findings(gpus.links)["links"]
    assert found.level == "note"
    assert found.found == (
        "NVLink (2 links): GPU0-GPU1; NVLink (1 link): GPU1-GPU2; one PCIe switch: GPU0-GPU2; PCIe "
        "through several host bridges of one NUMA node: GPU2-GPU3; PCIe and the link between "
        "processors (NUMA nodes): GPU0-GPU3, GPU1-GPU3"
    )
    assert "runs on up to 3 GPUs" in found.advice
    assert found.advice.endswith("CUDA_VISIBLE_DEVICES=0,1,2")  # GPU3 is near GPU2 alone


def test_two_gpus_of_two_sockets_have_no_nearer_ones(machine: Machine) -> None:
    machine.gpus(2, links="\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n")
    assert machine.findings(gpus.links)["links"].advice.startswith("no pair of GPUs is closer")


def test_eight_gpus_on_a_switch_are_one_line(machine: Machine) -> None:
    assert len(gpus.parse_links(switched(8))) == len(list(itertools.combinations(range(8), 2)))
    machine.gpus(8, links=switched(8))
    found = machine.findings(gpus.links)["links"]
    assert (found.level, found.found) == ("ok", "NVLink (18 links): all 28 pairs")


def test_without_a_matrix(machine: Machine) -> None:
    machine.gpus(2)
    assert machine.findings(gpus.links)["links"].level == "note"
    machine.gpus(1)
    assert machine.findings(gpus.links)["links"].found == "one GPU: nothing to join"


def test_a_gpu_in_words(machine: Machine) -> None:
    machine.gpus(2)
    found = machine.findings(gpus.gpus)
    assert set(found) == {"driver", "GPU 0", "GPU 1"}
    assert found["driver"].found == "550.54.15"
    assert found["GPU 0"].found == "NVIDIA H100 80GB HBM3, 79.6 GiB, 0000:1b:00.0, NUMA 0"


def test_gpus_of_two_kinds_are_told(machine: Machine) -> None:
    fast, slow = smi_lines(2).splitlines()
    machine.gpus(2, lines=f"{fast}\n{slow.replace('NVIDIA H100 80GB HBM3', 'NVIDIA L4')}\n")
    found = machine.findings(gpus.gpus)["mixed GPUs"]
    assert found.level == "note"
    assert found.found.startswith("NVIDIA H100 80GB HBM3, NVIDIA L4: ")
    machine.env["CUDA_VISIBLE_DEVICES"] = "0"  # as the advice says
    assert "mixed GPUs" not in machine.findings(gpus.gpus)


def test_states_that_disturb(machine: Machine) -> None:
    busy, exclusive = smi_lines(2).splitlines()
    busy = busy.replace(", 4, 0,", ", 40960, 97,").replace(
        "Enabled, Default, Disabled", "Disabled, Default, Enabled"
    )
    exclusive = exclusive.replace("Default", "Exclusive_Process")
    machine.gpus(2, lines=f"{busy}\n{exclusive}\n")
    found = machine.findings(gpus.gpus)
    assert found["GPU 0"].found.endswith("; in use: 97 % busy, 40 GiB taken")
    assert found["GPU 1"].level == "ok"
    assert found["persistence"].found.startswith("off on GPU 0:")
    assert found["MIG"].found == "GPU 0 is split into instances"
    assert found["compute mode"].found == "GPU 1 takes one process at a time"


def test_values_that_a_card_does_not_have(machine: Machine) -> None:
    """Small cards answer `[N/A]` or `[Not Supported]`; their names may contain anything but a comma."""
    line = "0, Tesla K80, 11441, [N/A], [Not Supported], 00000000:05:00.0, 470.1, Disabled, Default, [N/A]"
    (gpu,) = gpus.parse_gpus(f"No devices were found\n{line}\n")
    assert (gpu.memory, gpu.memory_used, gpu.busy_percent, gpu.mig) == (11441 * 2**20, 0, 0, False)


def test_signs_of_a_gpu_without_nvidia_smi(machine: Machine) -> None:
    machine.write("dev/nvidia0", "")
    found = machine.findings(gpus.gpus)["gpus"]
    assert found.level == "note"
    assert "a GPU seems to be here, but nvidia-smi gives no information: not found" in found.found


def test_hidden_gpus(machine: Machine) -> None:
    machine.gpus(2)
    machine.env["CUDA_VISIBLE_DEVICES"] = ""
    assert machine.findings(gpus.gpus)["visibility"].level == "note"
    machine.env["CUDA_VISIBLE_DEVICES"] = "1,0"
    assert "1,0" in machine.findings(gpus.gpus)["visibility"].found


def test_amd(machine: Machine) -> None:
    machine.write("dev/kfd", "")
    assert "AMD" in machine.findings(gpus.gpus)["gpus"].found
