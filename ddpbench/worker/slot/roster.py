"""The slots' reports (cards), the check that the slots belong together, and the choice of slots for a case's ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from pydantic import ConfigDict

from ddpbench.errors import MachineError, OutputError, RequestError
from ddpbench.machine.placement import Stand, deal
from ddpbench.naming import layout_of
from ddpbench.spec import Case, PlannedCase

_MUST_AGREE = {
    "torch": "torch",
    "python": "Python",
    "cuda": "CUDA",
    "nccl": "NCCL",
    "mpi": "the MPI library",
    "code": "ddpbench's code, digest",
    "workloads": "workloads' code, digest",
    "experiment": "experiment.toml, digest",
    "plan": "plan.json, digest",
}
"""Map from the fields that must be equal on all slots to the fields' names in messages."""
_COPIES = ("code", "workloads", "experiment", "plan")


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A slot's report about itself. If the slot cannot take part, `problem` says why and facts are missing."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="ignore")
    """Settings for pydantic. Unknown fields are ignored, because a different version of ddpbench wrote them."""

    rank: int
    local_rank: int
    node: str
    host: str
    boot_id: str
    run_dir: str
    cores: tuple[int, ...] = ()
    physical: int = 0
    cpu_quota: float | None = None
    cpu: str = ""
    cpu_capability: str = ""
    kernel: str = ""
    driver: str | None = None
    setup: Mapping[str, str] = field(default_factory=dict)
    """Settings of the slot's machine outside any program (`machine/setup.py`)."""
    gpus: tuple[str, ...] = ()
    gpu_cores: tuple[int, ...] = ()
    """The cores of the NUMA node of this slot's GPU, or empty if unknown."""
    gpu: str = ""
    """The UUID of this slot's GPU, or empty if unknown."""
    torch: str = ""
    python: str = ""
    cuda: str | None = None
    nccl: str | None = None
    mpi: str | None = None
    """The MPI library, if a case uses one."""
    code: str = ""
    workloads: str = ""
    experiment: str = ""
    plan: str = ""
    finished: int = 0
    """Number of launches with an outcome in the slot's copy of the run directory."""
    fresh: str = ""
    """A random number that the slot draws for this job."""
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Card:
        """Return the report from the JSON object of `to_json`. Ignore unknown keys, which a different version wrote."""
        names = {field.name for field in fields(cls)}
        return cls(**_tupled({key: value for key, value in data.items() if key in names}))


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """A slot that takes part in the job. `node` numbers the nodes in the order in which cases use them.

    Slots with the same `host` share a clock and cores. A host may have several nodes.
    """

    rank: int
    node: int
    local_rank: int
    host: str
    cores: tuple[int, ...]
    physical: int
    gpus: int
    gpu_cores: tuple[int, ...]
    gpu: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Seat:
        """Return the seat from its JSON object."""
        return cls(**_tupled(data))

    def __str__(self) -> str:
        return f"slot {self.rank} (node {self.node}, {self.host}, local rank {self.local_rank})"


def _tupled(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


def check(cards: Sequence[Card]) -> None:
    """Check that the slots can work together.

    Raises:
        OutputError: a slot has reported a problem, such as a missing run directory.
        MachineError: slots differ in versions, code, experiment or plan; the message names every difference, with both
            nodes and both values.
    """
    problems = [card for card in cards if card.problem]
    if problems:
        listed = dict.fromkeys(f"  {_who(card)}: {card.problem}" for card in problems)
        raise OutputError("not every node can take part; nothing was measured\n" + "\n".join(listed))
    lines: dict[str, None] = {}
    names: set[str] = set()
    first = cards[0]
    for card in cards[1:]:
        for name, words in _MUST_AGREE.items():
            mine, other = getattr(first, name), getattr(card, name)
            if mine != other:
                names.add(name)
                lines[f"  {words}: {mine} on {_who(first)}, {other} on {_who(card)}"] = None
    if not lines:
        return
    if names.issubset(_COPIES):
        advice = "give all nodes the same copy of the run directory and of the code"
    else:
        advice = "install the same versions on all nodes"
    listed_all = "\n".join(lines)
    raise MachineError(f"the nodes differ; nothing was measured: {advice}\n{listed_all}")


def _who(card: Card) -> str:
    return f"{card.host} ({f'node {card.node}, ' if card.node else ''}{card.run_dir})"


def leading(cards: Sequence[Card]) -> int:
    """Return the rank of the leading slot, the first slot of the node whose directory has the most finished launches.

    Of equal nodes, the one with the lowest rank leads. A resumed run must be led by the node with the earlier records,
    but torchrun's c10d rendezvous orders nodes differently each time.
    """
    firsts = [members[0] for members in _by_node(cards)]
    return max(firsts, key=lambda card: (card.finished, -card.rank)).rank


def seat(cards: Sequence[Card], leader: int) -> list[Seat]:
    """Return the slots' seats, ordered by node: the leader's node first, then nodes by their lowest rank.

    Two hosts of the same name are distinguished by their boot IDs and get different names.
    """
    nodes = _by_node(cards)
    nodes.sort(key=lambda members: (members[0].rank != leader, members[0].rank))
    boots: dict[str, list[str]] = {}
    for card in cards:
        known = boots.setdefault(card.host, [])
        if card.boot_id not in known:
            known.append(card.boot_id)
    seats: list[Seat] = []
    for number, members in enumerate(nodes):
        for card in members:
            again = boots[card.host].index(card.boot_id)
            seats.append(
                Seat(
                    rank=card.rank,
                    node=number,
                    local_rank=card.local_rank,
                    host=card.host if again == 0 else f"{card.host}#{again + 1}",
                    cores=card.cores,
                    physical=card.physical,
                    gpus=len(card.gpus),
                    gpu_cores=card.gpu_cores,
                    gpu=card.gpu,
                )
            )
    return seats


def _by_node(cards: Sequence[Card]) -> list[list[Card]]:
    """Return each node's cards by local rank; each host is a node if the launcher names none."""
    nodes: dict[str, list[Card]] = {}
    for card in sorted(cards, key=lambda card: (card.local_rank, card.rank)):
        nodes.setdefault(card.node or card.host, []).append(card)
    return sorted(nodes.values(), key=lambda members: members[0].rank)


def members_of(case: Case, processes: int, seats: Sequence[Seat]) -> list[Seat] | None:
    """Return the seats of a case's ranks, in rank order, or None if too few nodes have enough slots.

    The first nodes with enough slots are used.
    """
    per_node = 1 if processes == 1 else case.ranks_per_node
    wanted = 1 if processes == 1 else case.nodes
    nodes: dict[int, list[Seat]] = {}
    for one in seats:
        nodes.setdefault(one.node, []).append(one)
    chosen = [members[:per_node] for members in nodes.values() if len(members) >= per_node][:wanted]
    return [one for members in chosen for one in members] if len(chosen) == wanted else None


def check_places(cases: Iterable[tuple[PlannedCase, int]], seats: Sequence[Seat]) -> None:
    """Check that there are enough slots and GPUs for every case. Each case comes with its number of processes.

    Raises:
        RequestError: there are too few slots or GPUs.
    """
    nodes: dict[int, int] = {}
    for one in seats:
        nodes[one.node] = nodes.get(one.node, 0) + 1
    came = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''} with {_counts(list(nodes.values()))}"
    lines: list[str] = []
    for entry, processes in cases:
        case = entry.case
        members = members_of(case, processes, seats)
        if members is None:
            shape = f"{layout_of(case)} (nodes x ranks)" if processes > 1 else "1 rank"
            lines.append(f"  {case.case_id} needs {shape}")
        elif case.device == "cuda":
            lines += [
                f"  {case.case_id} needs {need} GPUs on {one.host}, where torch sees {one.gpus}"
                for one in members
                if one.gpus < (need := _gpus_needed(case, processes, one))
            ]
            if several := _sharing_gpus(members):
                lines.append(
                    f"  {case.case_id} needs a GPU for each rank, and {several}: ask for one GPU per rank"
                )
    if lines:
        more = [f"  and {len(lines) - 5} more"] if len(lines) > 5 else []
        listed = "\n".join([*lines[:5], *more])
        raise RequestError(
            f"too few processes for the plan; nothing was measured: {came} joined. Start the number that ddpbench "
            f"plan RUN_DIR prints\n{listed}"
        )


def _gpus_needed(case: Case, processes: int, seat: Seat) -> int:
    if processes == 1 and case.world_size > 1:
        return case.world_size
    return 1 if seat.gpus == 1 else seat.local_rank + 1


def _sharing_gpus(members: Sequence[Seat]) -> str:
    known = Counter((one.host, one.gpu) for one in members if one.gpu)
    host, count = next(((host, count) for (host, _), count in known.items() if count > 1), ("", 0))
    return f"{count} slots of {host} would use the same one" if count else ""


def _counts(counts: Sequence[int]) -> str:
    if len(set(counts)) == 1:
        return f"{counts[0]} slot{'s' if counts[0] != 1 else ''} each"
    return f"{' and '.join(map(str, counts))} slots"


def stands(case: Case, members: Sequence[Seat]) -> list[Stand]:
    """Return each rank's cores and environment variables. Ranks that may use the same cores get separate parts.

    Ranks that the launcher has bound to separate cores keep them.
    """
    threads = case.threads_per_rank * (case.world_size // len(members))
    pinned = case.compute == "real"  # a replay's ranks sleep
    stands_by_rank: dict[int, Stand] = {}
    for ranks in _sharing_cores(members):
        there = [members[rank] for rank in ranks]
        nearby: list[tuple[int, ...]] = []
        if case.device == "cuda":
            near = [tuple(core for core in one.gpu_cores if core in one.cores) for one in there]
            nearby = near if all(near) else [one.cores for one in there]
        dealt = deal(
            there[0].cores,
            len(there),
            threads=threads,
            loader_workers=case.loader_workers,
            nearby=nearby,
            pinned=pinned,
        )
        stands_by_rank |= dict(zip(ranks, dealt, strict=True))
    return [stands_by_rank[rank] for rank in range(len(members))]


def _sharing_cores(members: Sequence[Seat]) -> list[list[int]]:
    together: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for rank, one in enumerate(members):
        together.setdefault((one.host, one.cores), []).append(rank)
    return list(together.values())


def oversubscribed(case: Case, members: Sequence[Seat]) -> bool:
    """Return whether ranks on common cores have more threads than there are physical cores."""
    if case.device != "cpu" or case.compute != "real":
        return False
    threads = case.threads_per_rank * (case.world_size // len(members))
    return any(threads * len(ranks) > members[ranks[0]].physical for ranks in _sharing_cores(members))
