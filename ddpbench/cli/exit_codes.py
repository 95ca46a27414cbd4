"""The exit codes of `ddpbench`, for `--help` and docs/commands.md."""

from __future__ import annotations

import signal

OK = 0
NOT_OK = 1
REQUEST = 2
IN_USE = 3
INTERRUPTED = 130
NOT_READ = 128 + signal.SIGPIPE
"""The exit code of a program that the kernel kills for writing to a closed pipe."""

MEANINGS = {
    OK: "all cases are ok or skipped",
    NOT_OK: "some case is not ok, a promise was broken, or `bisect` has several commits left",
    REQUEST: "the request was wrong; nothing was started",
    IN_USE: "another command uses the cores, the GPUs or the run directory; nothing was started",
    INTERRUPTED: "interrupted; the same command with the run directory resumes",
    NOT_READ: "the program that read the output has ended, such as `head`",
}
