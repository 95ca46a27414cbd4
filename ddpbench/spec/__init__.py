"""What to run: experiments and the cases they expand to. Values only; nothing here starts anything."""

from ddpbench.spec.case import BucketCap, Case
from ddpbench.spec.catalog import Catalog, Devices, NoOptions, StrategyInfo, WorkloadInfo
from ddpbench.spec.experiment import (
    Base,
    Budget,
    Experiment,
    PlannedCase,
    expand,
    load_experiment,
    parse_experiment,
    resolve,
)
from ddpbench.spec.fabric import FabricSettings, Links

__all__ = [
    "Base",
    "BucketCap",
    "Budget",
    "Case",
    "Catalog",
    "Devices",
    "Experiment",
    "FabricSettings",
    "Links",
    "NoOptions",
    "PlannedCase",
    "StrategyInfo",
    "WorkloadInfo",
    "expand",
    "load_experiment",
    "parse_experiment",
    "resolve",
]
