"""`python -m ddpbench` is `ddpbench`."""

import signal


def main() -> None:
    """Runs the command line. Ctrl-C while it is imported ends as the kernel ends: there is nothing to explain yet."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # under nohup it is ignored
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ddpbench import cli

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


if __name__ == "__main__":
    main()
