"""`python -m ddpbench` is `ddpbench`."""

from ddpbench.cli import main

if __name__ == "__main__":
    main()
