"""`python -m ddpbench.worker.agent ...`: torchrun, which also tells its ranks when it noticed others' failure.

It is `torch.distributed.run` unchanged. The moments are read from what its agent logs (torch 2.13,
`elastic/agent/server/api.py`); they go into the environment, which the ranks that it starts next inherit.
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
"""The variable of each moment, by words of the agent's log line. A stop counts only after a failure was noticed: a
starting agent has nothing to stop.
"""


class Moments(logging.Handler):
    """A log handler that notes in the environment when the agent does what its log says."""

    def emit(self, record: logging.LogRecord) -> None:
        """Note the moment, if the line reports one."""
        for words, name in _MOMENTS.items():
            if words in str(record.msg) and (name != "STOPPED" or "DDPBENCH_AGENT_NOTICED_NS" in os.environ):
                os.environ[f"DDPBENCH_AGENT_{name}_NS"] = str(time.perf_counter_ns())


def main() -> None:
    """Run torchrun with these arguments."""
    import torch.distributed.run

    os.environ["DDPBENCH_AGENT"] = str(os.getpid())
    logger = logging.getLogger(_LOGGER)
    logger.setLevel(logging.INFO)
    logger.addHandler(Moments(logging.INFO))
    torch.distributed.run.main(sys.argv[1:])


if __name__ == "__main__":
    main()
