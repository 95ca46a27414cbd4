"""`python -m ddpbench.worker.agent ...`: torchrun, which also tells its ranks when it noticed that others had failed.

It is `torch.distributed.run` unchanged. That its agent logs what it does (torch 2.13, `elastic/agent/server/api.py`) is
how the moments are known: they go into the environment, which the ranks that it starts next inherit.
"""

from __future__ import annotations

import logging
import os
import sys
import time

_LOGGER = "torch.distributed.elastic.agent.server.api"
_MOMENTS = {
    "will restart worker group": "NOTICED",
    "Rendezvous'ing worker group": "STOPPED",
    "Starting worker group": "PLACED",
}
"""By words of its log. Nothing is stopped before something was noticed: an agent that begins has nothing to stop."""


class Moments(logging.Handler):
    """Notes in the environment when the agent does what its log tells."""

    def emit(self, record: logging.LogRecord) -> None:
        """Notes a moment, where the line tells of one."""
        for words, name in _MOMENTS.items():
            if words in str(record.msg) and (name != "STOPPED" or "DDPBENCH_AGENT_NOTICED_NS" in os.environ):
                os.environ[f"DDPBENCH_AGENT_{name}_NS"] = str(time.perf_counter_ns())


def main() -> None:
    """Runs torchrun with these arguments."""
    import torch.distributed.run

    os.environ["DDPBENCH_AGENT"] = str(os.getpid())
    logger = logging.getLogger(_LOGGER)
    logger.setLevel(logging.INFO)
    logger.addHandler(Moments(logging.INFO))
    torch.distributed.run.main(sys.argv[1:])


if __name__ == "__main__":
    main()
