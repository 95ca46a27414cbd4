"""Compare the recorded settings of a launch's ranks with those of the case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddpbench.analysis.read.launches import CaseRun, Launch
from ddpbench.spec import OWN_TYPES, Case
from ddpbench.strategies.traits import traits_of

_COMPLEX = {"float32": "complex64", "float64": "complex128", "bfloat16": "complex64"}
"""Type that complex parameters are cast to, for each `dtype`."""
_FIRST_CAP_MB = 25
"""DDP's default bucket cap, MiB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedSetting:
    """A setting with its requested value, and the differing values that a launch's ranks recorded."""

    setting: str
    asked: str
    others: tuple[str, ...]
    """Recorded values other than the requested one, each once."""
    ranks: int
    """Number of records with one of the values in `others`."""

    @property
    def words(self) -> str:
        """Describe the difference, as in `threads_per_rank 2, not 1`."""
        return f"{self.setting} {' and '.join(self.others)}, not {self.asked}"


def found_settings(launch: Launch, case: Case) -> Iterator[RecordedSetting]:
    """Yield each setting of the case that the launch recorded, with the values that differ from the requested one."""
    for setting, allowed in _asked(case).items():
        values = [str(each) for each in launch.found.get(setting, ())]
        if values:
            others = [each for each in values if each not in allowed]
            yield RecordedSetting(
                setting=setting,
                asked=allowed[0],
                others=tuple(dict.fromkeys(others)),
                ranks=len(others),
            )


def _asked(case: Case) -> dict[str, Sequence[str]]:
    """Return the accepted values of each setting by its name in `Case`, the requested value first."""
    asked: dict[str, Sequence[str]] = {
        "threads_per_rank": [str(case.threads_per_rank)],
        "device": [case.device],
    }
    if case.recovery == "off":  # else the number of ranks may change
        asked["world_size"] = ["1" if traits_of(case).one_process else str(case.world_size)]
    if case.dtype != OWN_TYPES:
        asked["dtype"] = [case.dtype, _COMPLEX.get(case.dtype, case.dtype)]
    if case.backend:
        asked["backend"] = [case.backend]
    if case.data == "loader":
        asked["loader_workers"] = [str(case.loader_workers)]
    return asked


def largest_bucket_bytes(launch: Launch, case: Case) -> tuple[int, float] | None:
    """Return the bytes of a launch's largest bucket and the limit on them; None if either is unknown.

    DDP closes a bucket once it has reached the cap, so the limit is the cap plus the largest gradient.
    """
    largest = launch.largest_gradient_bytes
    if not launch.bucket_bytes or largest is None or case.bucket_cap_mb is None:
        return None
    cap = _FIRST_CAP_MB if case.bucket_cap_mb == "default" else case.bucket_cap_mb
    return max(launch.bucket_bytes), cap * (1 << 20) + largest


def other_settings(run: CaseRun) -> str:
    """Describe settings in which successful launches differ from the case, as in `threads_per_rank 2, not 1 5/5`.

    In this example, 5 of 5 launches had 2 threads per rank, although the case has 1.
    """
    words = [one.words for launch in run.good for one in found_settings(launch, run.case) if one.others]
    return "; ".join(f"{each} {words.count(each)}/{len(run.good)}" for each in dict.fromkeys(words))
