"""Check that ranks ran with the settings that their case requests."""

from __future__ import annotations

from collections.abc import Iterable

from ddpbench.analysis.invariants.checked import Bounded, CheckedCase
from ddpbench.analysis.read.asked import found_settings, largest_bucket_bytes
from ddpbench.units import series_of


def ran_as_asked(case: CheckedCase) -> Iterable[Bounded]:
    """Yield, by launch and setting, the number of ranks whose value differs from the case's. It must be 0.

    Also yield the size of the largest bucket, which is limited by the bucket cap.
    """
    for launch in case.run.good:
        for found in found_settings(launch, case.run.case):
            yield Bounded(
                what=f"records with another {found.setting}",
                seen=found.ranks,
                most=0,
                round=launch.round,
                said=f"{found.setting} was {series_of(found.others)}; {found.asked} was asked for",
            )
        buckets = largest_bucket_bytes(launch, case.run.case)
        if buckets is not None:
            size, most = buckets
            yield Bounded(what="its largest bucket", seen=size, most=most, unit="bytes", round=launch.round)
