"""Experiments, and the cases that they expand to."""

from ddpbench.spec.auto import left_out, resolve, without_all_threads
from ddpbench.spec.case import OF_FRAMEWORKS, OWN_TYPES, BucketCap, Case, PlannedCase
from ddpbench.spec.catalog import Catalog, Devices, NoOptions, Pieces, Promise, StrategyInfo, WorkloadInfo
from ddpbench.spec.crossing import crossed_words
from ddpbench.spec.experiment import load_experiment, parse_experiment
from ddpbench.spec.fabric import FabricSettings, Links
from ddpbench.spec.matrix import expand
from ddpbench.spec.settings import Base, Budget, Experiment
from ddpbench.spec.stated import StatedTraits
from ddpbench.spec.target_loss import TargetLoss

__all__ = [
    "OF_FRAMEWORKS",
    "OWN_TYPES",
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
    "Pieces",
    "PlannedCase",
    "Promise",
    "StatedTraits",
    "StrategyInfo",
    "TargetLoss",
    "WorkloadInfo",
    "crossed_words",
    "expand",
    "left_out",
    "load_experiment",
    "parse_experiment",
    "resolve",
    "without_all_threads",
]
