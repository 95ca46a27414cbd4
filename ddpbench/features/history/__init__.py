"""Feature: compare many runs, to find since when cases are slower or faster."""

from ddpbench.installed import Registered

REGISTERED = (
    Registered(
        kind="command",
        name="history",
        path="ddpbench.features.history.command:add_parser",
        after="compare",
    ),
)
