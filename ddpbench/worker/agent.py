"""Run torchrun, and tell its ranks when it noticed a failure and when it restarted them.

When the agent of `torch.distributed.run` logs such an event (torch 2.13, `elastic/agent/server/api.py`), the time is
stored in an environment variable, which later ranks inherit.
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
"""Map from words of the agent's log lines to the middle part of the environment variable that each sets.

The time of a stop is stored only after a noticed failure, because an agent that is just starting has nothing to stop.
"""


class Moments(logging.Handler):
    """Log handler that stores the times of the agent's actions in environment variables."""

    def emit(self, record: logging.LogRecord) -> None:
        """Store the current time if the log line reports one of the actions in `_MOMENTS`."""
        for words, name in _MOMENTS.items():
            if words in str(record.msg) and (name != "STOPPED" or "DDPBENCH_AGENT_NOTICED_NS" in os.environ):
                os.environ[f"DDPBENCH_AGENT_{name}_NS"] = str(time.perf_counter_ns())


def main() -> None:
    """Run torchrun with this process's command-line arguments."""
    import torch.distributed.run

    os.environ["DDPBENCH_AGENT"] = str(os.getpid())
    logger = logging.getLogger(_LOGGER)
    logger.setLevel(logging.INFO)
    logger.addHandler(Moments(logging.INFO))
    torch.distributed.run.main(sys.argv[1:])


if __name__ == "__main__":
    main()
