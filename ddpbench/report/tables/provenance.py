"""Tables of the machine and the emulated networks on which a run was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddpbench.analysis.read.fabrics import FabricRun
from ddpbench.report.parts import Cell, Column, Table
from ddpbench.spec.links import short_links
from ddpbench.units import format_bit_rate, with_minus


def machine_table(machine: Mapping[str, object], part: str, caption: str) -> Table:
    """Return a table of all entries in one part of machine.json: `identity` or `context`."""
    facts = machine.get(part)
    pairs = list(_flat(facts)) if isinstance(facts, Mapping) else []
    rows = tuple((Cell(text=name), Cell(text=value)) for name, value in pairs)
    return Table(caption=caption, columns=(Column("What"), Column("Found")), rows=rows, sortable=False)


def _flat(data: Mapping[Any, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list | tuple):
            yield name, ", ".join(str(item) for item in value) or "none"
        else:
            yield name, "none" if value is None or value == "" else str(value)


def fabrics_table(fabrics: Sequence[FabricRun]) -> Table | None:
    """Return a table that says how emulated networks were made, and which rates their links reached in the proof.

    None if no network was emulated.
    """
    if not fabrics:
        return None
    rows = tuple(
        (
            Cell(text=short_links(one.links)),
            Cell(text="" if one.nodes is None else f"{one.nodes} x {one.ranks_per_node or 1}", key=one.nodes),
            Cell(text="" if one.dilation is None else f"{one.dilation:g}", key=one.dilation, number=True),
            Cell(text="" if one.shrink is None else f"{one.shrink:g}", key=one.shrink, number=True),
            Cell(
                text="not recorded"
                if one.privileged is None
                else "root"
                if one.privileged
                else "an unprivileged user namespace"
            ),
            Cell(text=one.kernel),
            Cell(text=_rates(one.asked_bit_per_s)),
            Cell(text=_rates(one.reached_bit_per_s)),
            Cell(
                text="" if one.widest_gap is None else with_minus(f"{100 * one.widest_gap:+.1f}"),
                key=one.widest_gap,
                number=True,
            ),
            Cell(text="" if one.dropped is None else f"{one.dropped:,}", key=one.dropped, number=True),
        )
        for one in fabrics
    )
    columns = (
        Column("Links, nominal"),
        Column("Nodes x ranks"),
        Column("Dilated by", number=True),
        Column("Shrunk by", number=True),
        Column("Made by"),
        Column("Kernel"),
        Column("Asked"),
        Column("Reached"),
        Column("Widest gap, %", number=True),
        Column("Packets dropped", number=True),
    )
    return Table(
        caption=(
            "Emulated networks, as made: dilation and shrinking slow links by their product. Before measuring all "
            "links carried traffic at once, and the kernel counted it."
        ),
        columns=columns,
        rows=rows,
    )


def _rates(rates: Sequence[float]) -> str:
    """Return the range of rates, such as `100 Mbit/s to 1 Gbit/s`; empty without rates."""
    if not rates:
        return ""
    low, high = (format_bit_rate(float(f"{value:.3g}")) for value in (min(rates), max(rates)))
    return low if low == high else f"{low} to {high}"
