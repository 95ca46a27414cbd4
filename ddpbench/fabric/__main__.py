"""Make and hold a fabric (an emulated network): `python -P -m ddpbench.fabric SOCKET PARENT`.

With `--capabilities`, try which parts of a fabric can be made here instead.
"""

from __future__ import annotations

import os
import socket
import sys

from ddpbench.guard import die_with_parent


def main(arguments: list[str]) -> None:
    """Make and hold a fabric until the socket closes; with `--capabilities`, print which parts can be made here."""
    if arguments == ["--capabilities"]:
        from ddpbench.fabric.trying import print_capabilities

        print_capabilities()
        return
    descriptor, parent = map(int, arguments)
    die_with_parent(parent)
    connection = socket.socket(fileno=descriptor)

    from ddpbench.fabric.holder import Holder

    Holder(connection, parent).serve()
    os._exit(0)  # the namespaces end with the descriptors; there is nothing to clean up


if __name__ == "__main__":
    main(sys.argv[1:])
