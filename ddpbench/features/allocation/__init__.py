"""Feature: describe a run for a proposal to an HPC centre (an allocation of computing time)."""

from ddpbench.installed import Registered

REGISTERED = (
    Registered(
        kind="command",
        name="allocation",
        path="ddpbench.features.allocation.command:add_parser",
        after="pack",
    ),
)
