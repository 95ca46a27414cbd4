"""`python -m ddpbench.worker.agent ...`: torchrun that also tells its ranks when it noticed a failure and restarted.

It runs `torch.distributed.run` unchanged. The moments are read from its agent's log lines (torch 2.13,
`elastic/agent/server/api.py`) and put into the environment, which the ranks started next inherit.
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
"""Words of the agent's log lines, with the middle of the variable's name that each sets. A stop counts only after a
noticed failure, since an agent that is just starting has nothing to stop.
"""


class Moments(logging.Handler):
    """A log handler that puts the times of the agent's actions into the environment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Note the time if the log line reports one of the actions."""
        for words, name in _MOMENTS.items():
            if words in str(record.msg) and (name != "STOPPED" or "DDPBENCH_AGENT_NOTICED_NS" in os.environ):
                os.environ[f"DDPBENCH_AGENT_{name}_NS"] = str(time.perf_counter_ns())


def main() -> None:
    """Run torchrun with this process's arguments."""
    import torch.distributed.run

    os.environ["DDPBENCH_AGENT"] = str(os.getpid())
    logger = logging.getLogger(_LOGGER)
    logger.setLevel(logging.INFO)
    logger.addHandler(Moments(logging.INFO))
    torch.distributed.run.main(sys.argv[1:])


if __name__ == "__main__":
    main()
