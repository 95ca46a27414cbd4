"""Names of hosts: those that no host can have, and how all of ddpbench looks names up."""

from __future__ import annotations

import ast
import json
import socket
from pathlib import Path

import pytest

import ddpbench
from ddpbench import host_names
from ddpbench.host_names import checked_address, connect, resolve, why_no_host
from ddpbench.records.files import parse_json
from ddpbench.worker.place import host_name
from tests.folders import PACKAGE

NO_NAMES = (
    "node1..cluster",
    ".cluster",
    "a" * 64,
    f"n.{'b' * 64}.org",
    f"fe80::1%{'a' * 90}",
    "a.b" * 90,
    "",
)
SCOPED = ("10.0.0.1%eth0", "node1%eth0", "fe80::1%", "fe80::1%a%b", "fe80::1%a/b")
UNENCODABLE = ("n\0", "n\ud800", "n\udcff")
LOOKS_UP = {
    "getaddrinfo",
    "create_connection",
    "gethostbyname",
    "gethostbyname_ex",
    "gethostbyaddr",
    "getfqdn",
}
OWN_ADDRESSES = {("fabric/traffic.py", "create_connection")}
"""Calls with an address that the kernel gave, by file and function."""


@pytest.mark.parametrize("name", [*NO_NAMES, *UNENCODABLE])
def test_a_name_that_no_host_has_is_no_address_and_ends_nothing(name: str) -> None:
    assert why_no_host(name)
    if name:  # the empty name means every interface
        with pytest.raises(socket.gaierror, match=r"not known|No address|in name resolution"):
            resolve(name, 1)
        with pytest.raises(socket.gaierror, match=r"not known|No address|in name resolution"):
            connect(name, 1, 1)


@pytest.mark.parametrize(
    "name", ["a", "node1.cluster.", "n_1", "a" * 63, "10.0.0.1", "::1", "fe80::1%eth0", "fe80::1%br-0.1_a"]
)
def test_a_name_or_address_of_a_host_is_one(name: str) -> None:
    assert not why_no_host(name)


@pytest.mark.parametrize(
    "address",
    [
        "fe80::1%" + "a" * 90,
        "fe80::1%" + "a" * 16,
        "fe80::1%a\0",
        "fe80::1%a b",
        "fe80::1%\x1b[2J",
        "node1",
        "",
    ],
)
def test_what_is_no_address_of_another_host_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"address|interface"):
        checked_address(address)


@pytest.mark.parametrize("address", SCOPED)
def test_an_interface_is_named_behind_an_ipv6_address_alone(address: str) -> None:
    assert "only an IPv6 address has a %" in why_no_host(address)


def test_loopback_is_found_and_reached() -> None:
    assert (socket.AF_INET, ("127.0.0.1", 7)) in resolve("127.0.0.1", 7)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        connect("127.0.0.1", server.getsockname()[1], 5) as own,
    ):
        assert own.getpeername() == server.getsockname()


def test_names_are_looked_up_in_one_place() -> None:
    root = Path(ddpbench.__file__).parent
    found = {
        (file.relative_to(root).as_posix(), node.func.attr)
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS_UP
    }
    owner = Path(host_names.__file__).name
    assert {place for place in found if place[0] != owner} == OWN_ADDRESSES


@pytest.mark.parametrize("given", ["", "h\udcff"])
def test_a_hosts_name_of_any_bytes_can_be_recorded(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "h\udcff")
    monkeypatch.setenv("DDPBENCH_HOST", given)
    for name in (host_names.own_name(), host_name()):
        assert parse_json(json.dumps({"host": name}))["host"].startswith("h")
    asking = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        if "gethostname(" in path.read_text(encoding="utf-8")
    ]
    assert asking == ["host_names.py", "machine/interfaces.py"]
