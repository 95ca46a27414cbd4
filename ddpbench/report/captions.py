"""Texts that describe rows of the table of cases: labels, settings, and what distinguishes the rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ddpbench.analysis.invariants.checked import Checked
from ddpbench.analysis.network import burst_s
from ddpbench.analysis.sentences import Sentence
from ddpbench.analysis.summary import DecidedClaim
from ddpbench.naming import Namer, workload_of
from ddpbench.report.rows import Row
from ddpbench.report.words import series_of
from ddpbench.spec.grouping import FACETS, batch_words, cap_words, loading, virtual_words
from ddpbench.spec.links import links_of, local_rate, short_links, without_latency
from ddpbench.units import counted, format_two_digits

STAR = "*"
MARK = f" {STAR}"
"""Mark after the name of a case whose instrumented steps do not describe its timed steps (`unlike_timed`)."""
MARKED = f"{STAR}: the parts do not describe the timed steps, which take another time."


def unlike_timed(checks: Checked) -> frozenset[str]:
    """Return the ids of cases whose instrumented steps do not take as long as timed steps."""
    return frozenset(violation.case_id for violation in checks.of("instrumented_as_timed"))


def label_of(rows: Iterable[Row]) -> tuple[str, ...]:
    """Return the phrases on emulation of the row that needs the most; empty if none was emulated."""
    return max((tuple(virtual_words(row.case)) for row in rows), key=_count, default=())


def _count(words: tuple[str, ...]) -> int:
    return len(words)


def fullest(rows: Sequence[Row]) -> Row:
    """Return the row that needs the most phrases to describe its emulation. Captions use its setting for all rows."""
    return max(rows, key=lambda row: len(virtual_words(row.case)))


def setting_of(row: Row, *, but: Collection[str] = ()) -> tuple[str, ...]:
    """Describe a row's setting for captions, such as its workload, scaling, batch and links, without `but`."""
    case = row.case
    by_field = {
        "workload": workload_of(case),
        "scaling": f"{case.scaling} scaling with a {batch_words(case)}",
        "threads_per_rank": FACETS["threads_per_rank"].word(case),
        "dtype": row.numbers,
        "device": FACETS["device"].word(case),
        "data": loading(case) if case.data == "memory" or case.loader_workers else "",
    }
    words = [word for name, word in by_field.items() if word and name not in but]
    words += virtual_words(case, but=but)
    return (*words, *(["times virtual"] if case.dilation != 1 else []))


def alike_setting(rows: Iterable[Row], *, but: Collection[str] = ()) -> tuple[str, ...]:
    """Return the phrases of `setting_of`; empty if rows differ in them."""
    settings = {setting_of(row, but=but) for row in rows}
    return settings.pop() if len(settings) == 1 else ()


def captioned(
    setting: Iterable[str], sentences: Iterable[str], *, name: str = "", end: str = "", joint: str = ", "
) -> Sentence:
    """Build a caption from `name`, the phrases of `setting` that `name` does not contain, and `sentences`.

    The page later removes phrases of the setting that it states once for all cases.
    """
    return Sentence(name, [word for word in setting if word not in name], end, " ".join(sentences), joint)


def shared_setting(rows: Sequence[Row], *, but: Collection[str] = ()) -> list[str]:
    """Return the phrases of the setting that all rows share, without the fields in `but`.

    A phrase about links is shared if it applies to all rows that use links.
    """
    if not rows:
        return []
    every = [set(setting_of(row, but=but)) for row in rows]
    linked = {word for row in rows if row.case.fabric for word in virtual_words(row.case)[:1]}
    free = [row.needs_no_link for row in rows]
    return [
        word
        for word in setting_of(fullest(rows), but=but)
        if all(word in own or (word in linked and none) for own, none in zip(every, free, strict=True))
    ]


def shared_words(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the phrases that describe all cases of a run. The page shows them once and leaves them out of captions.

    A bucket cap counts as shared if all cases with buckets have it.
    """
    shared = shared_setting(rows)
    caps = {row.case.bucket_cap_mb for row in rows} - {None}
    if len(caps) == 1 and caps != {"default"}:
        shared.append(f"{cap_words(caps.pop())} buckets")
    launches = {row.launches for row in rows if row.ok}
    if len(launches) == 1 and (count := launches.pop()):
        shared.append(f"{counted(count, 'launch', 'launches')} each")
    return tuple(shared)


def emulation_words(rows: Sequence[Row], cores: object) -> list[str]:
    """Return phrases that say what an emulation lacks: latency, and a separate core for each rank.

    `cores` is the list of the host's cores from machine.json.
    """
    sentences = ["no latency added"] if without_latency({row.case.fabric for row in rows}) else []
    most = max((row.case.world_size for row in rows if row.case.compute != "real"), default=0)
    if isinstance(cores, Sequence) and 0 < len(cores) < most:
        sentences.append(f"up to {most} ranks on {counted(len(cores), 'core')}")
    return sentences


def setting_but_links(rows: Sequence[Row]) -> tuple[str, ...]:
    """Describe the setting of rows that differ in their links, without the links."""
    return setting_of(fullest(rows), but=("fabric",))


def label_but_links(row: Row) -> tuple[str, ...]:
    """Return the label of a figure whose points have different links: "emulated links", and other emulation if any."""
    return ("emulated links", *virtual_words(row.case, but=("fabric",)))


def settings_apart(rows: Sequence[Row]) -> dict[str, str]:
    """Describe, by case id, the links and workload options that distinguish each row from the others."""
    names = Namer(row.case for row in rows)
    linked = len({row.case.fabric for row in rows}) > 1
    return {
        row.case_id: ", ".join(
            [
                *([short_links(row.case.fabric)] if linked and row.case.fabric else []),
                *names.apart(row.case, ("workload_options_json",)),
            ]
        )
        for row in rows
    }


def marks_of(
    rows: Sequence[Row], missing: Mapping[str, str], *, ground: Sequence[Row] | None = None
) -> list[str]:
    """Return sentences that explain the figure's grey ground and hollow markers, and name missing cases.

    `missing` has name and reason by case id. Oversubscribed rows in `ground` (default: `rows`) give grey ground.
    """
    hollow = ["Hollow markers: emulated or dilated."] if any(row.emulated for row in rows) else []
    return [*not_shown(missing), *grey_ground(rows if ground is None else ground), *hollow]


def claimed_speedups(claims: Sequence[DecidedClaim], rows: Iterable[Row]) -> list[str]:
    """Return a sentence on the simultaneous intervals of claimed speed-ups; empty if no claim is about these rows."""
    named = {frozenset((pair.a, pair.b)) for one in claims for pair in one.pairs if pair.ratio}
    if not any(frozenset((row.case_id, row.baseline_case_id)) in named for row in rows):
        return []
    count = max(one.comparisons for one in claims)
    return [
        f"A speed-up that a claim names has the claims' interval: simultaneous over {counted(count, 'pair')}."
    ]


def grey_ground(rows: Iterable[Row]) -> list[str]:
    """Return a sentence that explains grey ground (shading behind oversubscribed cases); empty without such cases."""
    text = "Grey ground: more ranks than cores."
    return [text] if any(row.oversubscribed for row in rows) else []


_MOST_NAMED = 4
"""Maximum number of missing cases that a figure names; the table of failures names all."""


def not_shown(missing: Mapping[str, str], *, most: int = _MOST_NAMED) -> list[str]:
    """Return a sentence that names the cases missing from a figure; an empty list if none is missing.

    Args:
        missing: name and reason of each missing case, by case id.
        most: how many cases to name; the sentence states the number of other cases.
    """
    reasons = list(missing.values())
    more = f" and {len(reasons) - most} more" if len(reasons) > most else ""
    return [f"Not shown: {'; '.join(reasons[:most])}{more}."] if reasons else []


def burst_words(rows: Sequence[Row]) -> str:
    """Return the durations of the bursts that emulated links pass at full speed after a pause, for example `1 ms`."""
    bursts = set()
    for row in rows:
        links, local = links_of(row.case.fabric), local_rate(row.case.fabric, row.case.ranks_per_node)
        if links is not None:
            rate = links.slowest(row.case.nodes) if row.case.nodes > 1 or local is None else local
            bursts.add(1e3 * burst_s(row.case, rate))
    return f"{series_of(list(dict.fromkeys(map(format_two_digits, sorted(bursts)))))} ms"
