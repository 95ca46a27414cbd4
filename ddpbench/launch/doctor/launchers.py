"""Checks of what can start ranks on several nodes, or put a slow link between them."""

from __future__ import annotations

from collections.abc import Iterator

from ddpbench.launch.doctor.finding import Finding, note, ok
from ddpbench.launch.doctor.host import Host

_TRY_A_LINK = (
    "sh",
    "-c",
    "ip link set lo up && tc qdisc add dev lo root tbf rate 1gbit burst 64kb latency 50ms",
)
"""In a network namespace made for it, which ends with the command."""


def torchrun(host: Host) -> Iterator[Finding]:
    """Torch's own launcher; it comes with torch."""
    if path := host.which("torchrun"):
        yield ok("torchrun", path)
    elif host.torch().facts is not None:
        yield ok("torchrun", "not on PATH; python -m torch.distributed.run is the same")


def slurm(host: Host) -> Iterator[Finding]:
    """Slurm's commands."""
    found = [name for name in ("srun", "sbatch") if host.which(name)]
    yield ok(
        "slurm", f"{' and '.join(found)} on PATH" if found else "not here: srun and sbatch are not on PATH"
    )


def emulated_links(host: Host) -> Iterator[Finding]:
    """Whether links of a given speed can be made on this machine, by trying one that vanishes at once."""
    missing = [name for name in ("unshare", "ip", "tc") if not host.which(name)]
    subject, purpose = "emulated links", "wanted only to emulate a slow network on one machine"
    if missing:
        yield note(
            subject,
            f"cannot be made: {', '.join(missing)} not found ({purpose})",
            "apt-get install iproute2 util-linux",
        )
        return
    root = host.user_id == 0
    reply = host.ask("unshare", *(() if root else ("--user", "--map-root-user")), "--net", *_TRY_A_LINK)
    how = "as root" if root else "in a user namespace"
    if reply.code == 0:
        yield ok(subject, f"can be made {how}, with tc's tbf")
    else:
        yield note(
            subject,
            f"cannot be made {how}: {reply.last_words} ({purpose})",
            "run as root, in a container with --cap-add NET_ADMIN --cap-add SYS_ADMIN, or allow user namespaces: "
            "sudo sysctl user.max_user_namespaces=10000; if tbf is unknown: sudo modprobe sch_tbf",
        )
