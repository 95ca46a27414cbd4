"""Run the command line under `python -m ddpbench`."""

import signal


def main() -> None:
    """Run the command line. If Ctrl-C comes while `ddpbench.cli` is imported, end without a traceback."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # false if SIGINT is ignored
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ddpbench import cli

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


if __name__ == "__main__":
    main()
