"""Checks of the launchers that start ranks on several nodes, and of emulated links."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from ddpbench.fabric.capabilities import FabricCapabilities
from ddpbench.launch.doctor.finding import CheckResult, note, ok
from ddpbench.launch.doctor.host import Host


def torchrun(host: Host) -> Iterator[CheckResult]:
    """Report the path of torchrun, or how to run it if it is not on PATH. Report nothing if torch is missing."""
    if path := host.which("torchrun"):
        yield ok("torchrun", path)
    elif host.torch().facts is not None:
        yield ok("torchrun", "not on PATH; python -m torch.distributed.run is the same")


def slurm(host: Host) -> Iterator[CheckResult]:
    """Report which of Slurm's commands are on PATH."""
    commands = [name for name in ("srun", "sbatch") if host.which(name)]
    yield ok(
        "slurm",
        f"{' and '.join(commands)} on PATH" if commands else "not here: srun and sbatch are not on PATH",
    )


def emulated_links(host: Host) -> Iterator[CheckResult]:
    """Report whether this machine can emulate network links (`[fabric]`); a separate process tries this."""
    subject, purpose = "emulated links", "needed only to emulate a network on one machine"
    reply = host.ask(sys.executable, "-P", "-m", "ddpbench.fabric", "--capabilities")
    try:
        capabilities = FabricCapabilities(**json.loads(reply.out))
    except (ValueError, TypeError):
        advice = "run it by hand: python -m ddpbench.fabric --capabilities"
        yield note(
            subject,
            (
                f"could not be tested, because the test's process did not answer: {reply.last_words} "
                f"({purpose})"
            ),
            advice,
        )
        return
    if capabilities.works:
        how = "as root" if capabilities.privileged else "in an unprivileged user namespace"
        delay = (
            "latency and loss too"
            if capabilities.netem
            else "but no latency and loss: the kernel has no netem"
        )
        yield ok(subject, f"can be made {how}, {delay}")
        return
    lacking = [name for name in ("veth", "bridge", "tbf") if not getattr(capabilities, name)]
    if not capabilities.privileged and not capabilities.user_namespaces:
        lacking.insert(0, "user_namespaces")
    reasons = dict.fromkeys(capabilities.reasons.get(name, name) for name in lacking)
    yield note(
        subject,
        f"cannot be made: {'; '.join(reasons)} ({purpose})",
        "run as root, in a container with --cap-add NET_ADMIN --cap-add SYS_ADMIN, or allow user namespaces: "
        "sudo sysctl user.max_user_namespaces=10000; if tbf is unknown: sudo modprobe sch_tbf",
    )
