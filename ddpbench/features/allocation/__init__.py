"""Feature: write up a run for an allocation proposal."""

from ddpbench.installed import Registered

REGISTERED = (
    Registered(
        kind="command",
        name="allocation",
        path="ddpbench.features.allocation.command:add_parser",
        after="pack",
    ),
)
