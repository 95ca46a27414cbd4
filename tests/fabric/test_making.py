"""Buckets, windows and refusals, calculated by hand; rates as the kernel reads them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpbench.fabric import fabric_capabilities, making
from ddpbench.fabric.topology import burst_bytes, segments, window_bytes

ROOT = Path(__file__).parents[2]


def test_a_bucket_holds_two_milliseconds_and_one_frame_at_least() -> None:
    assert burst_bytes(1e9) == 250_000
    assert burst_bytes(2e8) == 50_000
    assert burst_bytes(8e6) == 2_000
    assert burst_bytes(1e6) == 1_514


def test_tcp_hands_down_three_quarters_of_a_bucket_at_most() -> None:
    assert segments(8e6) == 1
    assert segments(1e8) == 12  # 18,168 of 25,000 bytes
    assert segments(1e9) == segments(1e11) == 43  # 64 KiB


def test_a_window_is_at_least_12_ms_of_the_rate_and_less_than_twice_that() -> None:
    for rate in (1e8, 2e8, 1e9, 1e10):
        offered = window_bytes(rate)
        assert offered & (offered - 1) == 0  # a power of two, at which the scaling of windows stops growth
        assert 12e-3 * rate / 8 <= 2 * offered < 2 * 12e-3 * rate / 8
    assert window_bytes(1e6) == 32_768
    # A round trip over two links of 10 ms each adds 40 ms.
    assert window_bytes(1e9, 10e-3) == 4_194_304


@pytest.mark.parametrize(
    ("number", "settings", "said"),
    [
        (errno.ENOSPC, {"user/max_user_namespaces": "0"}, "user.max_user_namespaces is 0"),
        (errno.EPERM, {"kernel/apparmor_restrict_unprivileged_userns": "1"}, "AppArmor"),
        (errno.EPERM, {"kernel/unprivileged_userns_clone": "0"}, "kernel.unprivileged_userns_clone=1"),
        (errno.EPERM, {}, "seccomp=unconfined"),
        (errno.EINVAL, {}, "CONFIG_USER_NS"),
    ],
)
def test_why_not_says_what_to_do(
    number: int, settings: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "_setting", lambda name: settings.get(name, ""))
    reason = making._why_not(OSError(number, os.strerror(number)), "user")
    assert reason.startswith(
        "a fabric needs network namespaces, and this process is not permitted to make them"
    )
    assert said in reason


def test_what_there_is_for_a_fabric_is_told_as_data() -> None:
    found = fabric_capabilities()
    flags = {
        name: getattr(found, name)
        for name in ("privileged", "user_namespaces", "veth", "bridge", "tbf", "netem")
    }
    assert set(found.reasons) == {name for name, is_there in flags.items() if not is_there}
    if os.geteuid() == 0 and found.works:
        # The kernel's list of known modules, if it has one.
        assert found.netem == (
            subprocess.run(
                ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem"],
                check=False,
                capture_output=True,
            ).returncode
            == 0
        )


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace as root")
def test_the_kernel_reads_rates_above_34_gbit() -> None:
    code = """
from pyroute2 import IPRoute
from ddpbench.fabric import making
spaces = making.make_spaces(1)
with making.inside(spaces, 0) as netlink:
    for rate in (8e6, 1e9, 34e9, 35e9, 400e9):
        making.shape(netlink, 1, rate, 65536)
        (tbf,) = [q for q in netlink.get_qdiscs() if q.get("TCA_KIND") == "tbf"]
        options = tbf.get("TCA_OPTIONS")
        parms = options.get("TCA_TBF_PARMS")
        print(options.get("TCA_TBF_RATE64") or parms["rate"], parms["limit"])
        netlink.tc("del", index=1, parent=0xFFFFFFFF)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rates = [int(line.split()[0]) for line in result.stdout.splitlines()]
    assert rates == [1_000_000, 125_000_000, 4_250_000_000, 4_375_000_000, 50_000_000_000]


@pytest.mark.parametrize("module", ["ddpbench.fabric", "ddpbench.fabric.entering", "ddpbench.fabric.client"])
def test_only_the_holder_pays_for_netlink(module: str) -> None:
    code = f"import sys, {module}; assert not {{'pyroute2', 'torch', 'asyncio'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace as root")
def test_what_delays_is_taken_off_a_link_and_put_back() -> None:
    """Another queue replaces netem, so that this is tested on kernels without netem."""
    code = """
from ddpbench.fabric import making
spaces = making.make_spaces(1)
with making.inside(spaces, 0) as netlink:
    making.shape(netlink, 1, 1e9, 65536)
    def put_back():
        netlink.tc("replace", "htb", index=1, parent=0x10001, handle=0x20000)
    for change in (put_back, lambda: making.prompt(netlink, 1), put_back, lambda: making.prompt(netlink, 1)):
        change()
        print(*[f"{q.get('TCA_KIND')}@{q['parent']:x}" for q in netlink.get_qdiscs()])
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == ["tbf@ffffffff htb@10001", "tbf@ffffffff pfifo@10001"] * 2
