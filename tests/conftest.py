"""For all tests: Ctrl-C works in what they start, even where they were started in the background themselves."""

from __future__ import annotations

import signal

# A shell without job control has its background jobs ignore SIGINT, and so their children: sweeps that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
