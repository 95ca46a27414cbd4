"""Detect when the last namespace of a fabric is gone: `python -m tests.fabric.witness HOLDER_PID`, as root.

It connects an interface in its own network to each namespace that the process holds. The kernel removes
both ends of such a pair once either namespace is removed. Prints `watching N`, then `gone AT` (monotonic
seconds), or `left N` after ten seconds.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pyroute2 import IPRoute

from ddpbench.fabric.entering import CLONE_NEWNET, unshare


def main(holder: int) -> None:
    names: set[str] = set()
    seen: set[str] = set()
    unshare(CLONE_NEWNET)
    with IPRoute() as netlink:
        for entry in Path(f"/proc/{holder}/fd").iterdir():
            target = os.readlink(entry)  # noqa: PTH115
            if target.startswith("net:[") and target not in seen:
                seen.add(target)
                descriptor = os.open(entry, os.O_RDONLY)
                name = f"w{len(names)}"
                netlink.link(
                    "add", kind="veth", ifname=name, peer={"ifname": "witness", "net_ns_fd": descriptor}
                )
                os.close(descriptor)
                names.add(name)
        print(f"watching {len(names)}", flush=True)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            left = names & {link.get("ifname") for link in netlink.get_links()}
            if not left:
                print(f"gone {time.monotonic()}", flush=True)
                return
            time.sleep(0.005)
        print(f"left {len(left)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
