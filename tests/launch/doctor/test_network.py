"""Checks of interfaces, and of the one that gloo and nccl would choose; gloo's is compared with torch's choice."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ddpbench.launch.doctor import Host, network
from ddpbench.machine.interfaces import Interface, list_interfaces
from tests.launch.doctor.fakes import ETHERNET, LOOPBACK, Machine
from tests.processes import python_path

ROOT = Path(__file__).parents[3]
INFINIBAND = Interface("ib0", True, ("10.1.0.2",), 200_000)
DOCKER = Interface("docker0", True, ("172.17.0.1",))
DOWN = Interface("eth1", False, ("10.2.0.2",))


def test_interfaces_in_words(machine: Machine) -> None:
    machine.found += [Interface("eth2", True, ("10.3.0.1",), 100), Interface("veth7", True)]
    found = machine.findings(network.interfaces)
    assert found["eth0"].found == "up, 10.0.0.2, 10 Gbit/s"
    assert found["eth2"].found == "up, 10.3.0.1, 100 Mbit/s"
    assert found["others"].found == "1 interface without an address"


def test_a_network_namespace_whose_loopback_is_down(machine: Machine) -> None:
    machine.found = [Interface("lo", False)]
    found = machine.findings(network.interfaces)["lo"]
    assert found.blocks
    assert "ip link set lo up" in found.advice


@pytest.mark.parametrize(
    ("addresses", "level", "words"),
    [
        (["10.0.0.2"], "ok", "node1 is 10.0.0.2"),
        (["127.0.1.1"], "note", "127.0.1.1, which only this machine can reach"),  # Debian's own line
        ([], "note", "has no address"),
        (["10.9.9.9"], "note", "10.9.9.9, which is not the address of any interface here"),
    ],
)
def test_the_host_name(machine: Machine, addresses: list[str], level: str, words: str) -> None:
    machine.addresses["node1"] = addresses
    found = machine.findings(network.host_name)["host name"]
    assert found.level == level
    assert words in found.found
    if level == "note":
        assert "'10.0.0.2 node1' in /etc/hosts" in found.advice


def test_name_servers_that_do_not_answer(machine: Machine) -> None:
    def late(_: str) -> list[str]:
        raise TimeoutError("no answer within 2 s")

    host = machine.host()
    host.resolve = late
    (found,) = network.host_name(host)
    assert "no answer within 2 s" in found.found
    assert network.gloo_choice(host)[0] == [LOOPBACK]


@pytest.mark.parametrize(
    ("variable", "addresses", "chosen"),
    [
        ("", ["10.0.0.2"], ["eth0"]),
        ("", ["127.0.1.1"], ["lo"]),
        ("", [], ["lo"]),
        ("", ["10.9.9.9", "10.0.0.2"], ["eth0"]),  # the first that can be bound
        ("eth0", [], ["eth0"]),
        ("eth0,lo", [], ["eth0", "lo"]),
        ("eth", [], []),  # a name, and not a prefix as for nccl
        ("eth0,eth9", [], []),
        ("x", ["10.0.0.2"], ["eth0"]),  # torch ignores a prefix of one letter
    ],
)
def test_gloos_choice(machine: Machine, variable: str, addresses: list[str], chosen: list[str]) -> None:
    machine.env["GLOO_SOCKET_IFNAME"] = variable
    machine.addresses["node1"] = addresses
    assert [each.name for each in network.gloo_choice(machine.host())[0]] == chosen
    assert (machine.findings(network.gloo)["gloo picks"].level == "problem") == (not chosen)


@pytest.mark.parametrize(
    ("there", "variable", "faster"),
    [
        (Interface("ib0", True, ("10.1.0.2",), 200_000), "", "ib0 (200 Gbit/s)"),
        (Interface("ib0", True, ("10.1.0.2",), 200_000), "eth0", ""),  # the user chose it
        (Interface("ib0", False, ("10.1.0.2",), 200_000), "", ""),
        (Interface("ib0", True, (), 200_000), "", ""),
        (Interface("eth1", True, ("fe80::1", "169.254.3.4"), 200_000), "", ""),  # a cable, and no address
        (Interface("ib0", True, ("fe80::1", "fd00::2"), 200_000), "", "ib0 (200 Gbit/s)"),
        (Interface("docker0", True, ("172.17.0.1",), 200_000, real=False), "", ""),
        (Interface("eth1", True, ("10.2.0.2",), 19_000), "", ""),
    ],
)
def test_a_faster_interface_than_gloos_is_told(
    machine: Machine, there: Interface, variable: str, faster: str
) -> None:
    machine.found.append(there)
    machine.env["GLOO_SOCKET_IFNAME"] = variable
    machine.addresses["node1"] = ["10.0.0.2"]
    found = machine.findings(network.gloo)["gloo picks"]
    assert found.level == ("note" if faster else "ok")
    if faster:
        assert found.found.startswith(
            f"eth0 (10 Gbit/s), the host name's address 10.0.0.2; {faster} is faster."
        )
    machine.found[1] = replace(ETHERNET, speed_mbps=0)  # its rate is unknown
    assert machine.findings(network.gloo)["gloo picks"].level == "ok"


def test_an_interface_that_is_not_there(machine: Machine) -> None:
    machine.env["GLOO_SOCKET_IFNAME"] = "eth9"
    found = machine.findings(network.gloo)["gloo picks"]
    assert (found.level, found.blocks) == ("problem", False)  # local launches set it themselves
    assert "GLOO_SOCKET_IFNAME=eth9" in found.found
    assert found.advice == "unset it, or set it to one of: lo, eth0"


@pytest.mark.parametrize(
    ("variable", "there", "chosen"),
    [
        ("", [LOOPBACK, ETHERNET, INFINIBAND], ["ib0"]),
        ("", [LOOPBACK, DOCKER, DOWN, ETHERNET], ["eth0"]),
        ("", [LOOPBACK, DOCKER], ["docker0"]),
        ("", [LOOPBACK], ["lo"]),
        ("eth", [LOOPBACK, ETHERNET, DOWN], ["eth0"]),
        ("^eth,lo", [LOOPBACK, ETHERNET, DOCKER], ["docker0"]),
        ("=eth", [LOOPBACK, ETHERNET], []),
        ("=eth0", [LOOPBACK, ETHERNET], ["eth0"]),
        ("^=eth0", [LOOPBACK, ETHERNET], ["lo"]),
    ],
)
def test_nccls_choice(machine: Machine, variable: str, there: list[Interface], chosen: list[str]) -> None:
    """By the rules of ncclFindInterfaces and the examples of its manual."""
    machine.env["NCCL_SOCKET_IFNAME"] = variable
    machine.found = there
    machine.gpus(1)
    assert [each.name for each in network.nccl_choice(machine.host())] == chosen
    assert (machine.findings(network.nccl)["nccl picks"].level == "problem") == (not chosen)


def test_nccl_is_not_asked_about_without_gpus(machine: Machine) -> None:
    assert machine.findings(network.nccl) == {}


def test_infiniband_carries_nccls_data_unless_it_is_switched_off(machine: Machine) -> None:
    machine.gpus(1)
    for port, state in (("1", "4: ACTIVE"), ("2", "1: DOWN")):
        folder = f"sys/class/infiniband/mlx5_0/ports/{port}"
        machine.write(f"{folder}/state", f"{state}\n")
        machine.write(f"{folder}/rate", "200 Gb/sec (4X HDR)\n")
        machine.write(f"{folder}/link_layer", "InfiniBand\n")
    found = machine.findings(network.infiniband)
    assert found["mlx5_0/1"].found == "ACTIVE, 200 Gb/sec (4X HDR), InfiniBand"
    assert found["mlx5_0/2"].level == "note"
    assert "over InfiniBand" in machine.findings(network.nccl)["nccl picks"].found
    machine.env["NCCL_IB_DISABLE"] = "1"
    assert "over InfiniBand" not in machine.findings(network.nccl)["nccl picks"].found


def test_the_interfaces_of_this_machine() -> None:
    loopback = next(each for each in list_interfaces() if each.name == "lo")
    assert loopback.up
    assert loopback.addresses[0] == "127.0.0.1"


LISTENING = """
import json, os, sys
from pathlib import Path
import torch.distributed as dist
from ddpbench.launch.doctor import Host, network

device = dist.ProcessGroupGloo.create_default_device()
inodes = {os.readlink(path)[8:-1] for path in Path("/proc/self/fd").iterdir()
          if path.is_symlink() and os.readlink(path).startswith("socket:")}
lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
mine = [line[1].partition(":")[0] for line in lines if line[3] == "0A" and line[9] in inodes]
chosen, why = network.gloo_choice(Host())
print(json.dumps([mine, [address for each in chosen for address in each.addresses], why]))
"""
"""The address where gloo's default device listens, from the kernel's table, and ddpbench's prediction of it."""


def listening(*command: str) -> tuple[str, list[str], str]:
    """Return the address gloo listens on, the addresses of the predicted interface, and the reason."""
    result = subprocess.run(
        [*command, sys.executable, "-W", "ignore", "-c", LISTENING],
        env={**os.environ, "PYTHONPATH": python_path(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    mine, said, why = json.loads(result.stdout.splitlines()[-1])
    assert len(mine) == 1, mine
    return socket.inet_ntoa(bytes.fromhex(mine[0])[::-1]), said, why


def test_gloo_itself_picks_what_we_say() -> None:
    address, said, _ = listening()
    assert address in said or (address.startswith("127.") and "127.0.0.1" in said)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts another /etc/hosts, which needs root")
@pytest.mark.parametrize("kind", ["unknown", "debian", "outward", "elsewhere"])
def test_gloo_itself_picks_what_we_say_whatever_the_hosts_file(tmp_path: Path, kind: str) -> None:
    own = [
        address
        for each in list_interfaces()
        if each.up and each.name != "lo"
        for address in each.addresses
        if ":" not in address
    ]
    if kind == "outward" and not own:
        pytest.skip("this machine has no other address than loopback's")
    name = socket.gethostname()
    line = {
        "unknown": "",
        "debian": f"127.0.1.1 {name}",
        "outward": f"{own[0] if own else ''} {name}",
        "elsewhere": f"203.0.113.9 {name}",  # TEST-NET-3: no host has it
    }[kind]
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{line}\n", encoding="utf-8")
    inside = f'mount --bind {hosts} /etc/hosts && exec "$@"'
    address, said, why = listening("unshare", "--mount", "sh", "-c", inside, "sh")
    if kind == "outward":
        assert address == own[0]
        assert why == f"the host name's address {own[0]}"
        assert address in said
    else:
        assert address == ("127.0.1.1" if kind == "debian" else "127.0.0.1")
        assert "127.0.0.1" in said


@pytest.mark.parametrize("name", ["a" * 64, "node1..cluster"])
def test_a_name_that_no_host_has_has_no_address(name: str) -> None:
    from ddpbench.machine import interfaces

    assert interfaces.look_up(name) == []


def test_looking_up_a_name_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from ddpbench.machine import interfaces

    release = threading.Event()
    monkeypatch.setattr(interfaces, "RESOLVE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: release.wait(10) and [])
    with pytest.raises(TimeoutError, match="no answer within"):
        interfaces.look_up("anything")
    release.set()
    assert Host().resolve is interfaces.look_up
