"""The style of figures: colours, markers, hatches and matplotlib's settings.

Several colours look the same in greyscale, so figures also use markers and direct labels. Contrast and separation under
colour-blindness were computed for this set; change it as a whole or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from ddpbench.spec import Case
from ddpbench.spec.case import BASE
from ddpbench.strategies.traits import Traits, traits_named, traits_of
from ddpbench.user_files import is_import_path

INK = "#1F2328"
MUTED = "#59636E"
GRID = "#E3E6EA"
OUTLINE = "#3B4047"
OVERSUBSCRIBED_GROUND = "#EEF0F2"

TITLE_PT = 11.5
LABEL_PT = 9.0
TICK_PT = 8.5
NOTE_PT = 8.0
SMALLEST_PT = 7.5

FULL_WIDTH_IN = 9.6
SMALL_WIDTH_IN = 7.2
NARROW_WIDTH_IN = 3.6
"""Width of a phone's figure: at 390 pixels its smallest text is over 10 pixels high."""
LEGEND_LINE_IN = 0.17
PNG_DPI = 200


@dataclass(frozen=True, slots=True)
class Look:
    """The colour and marker (matplotlib's code) that show a strategy in figures, and its name in figures and tables."""

    name: str
    colour: str
    marker: str
    outline: str | None = None

    @property
    def ink(self) -> str:
        """Return the colour for thin lines: the colour of the outline, if any, because light lines vanish on white."""
        return self.outline or self.colour


OTHER_COLOUR, OTHER_MARKER = "#E69F00", "X"
"""Colour and marker of strategies that do not state their own. The palette has eight colours (Okabe & Ito), so
related strategies share one and differ in their markers.
"""
_LIGHT = 0.35


def _light(colour: str) -> bool:
    """Return whether the relative luminance (WCAG 2) is so high that it needs an outline on white."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > _LIGHT


ALGORITHMS: dict[str, Look] = {
    "ring": Look("ring", "#D55E00", "D"),
    "naive_ring": Look("naive ring", "#56B4E9", "X", OUTLINE),
    "tree": Look("tree", "#009E73", "^"),
    "halving_doubling": Look("halving-doubling", "#CC79A7", "s"),
    "master": Look("master", "#000000", "v"),
    "sharded_master": Look("sharded master", "#E69F00", "d", OUTLINE),
    "hierarchical": Look("hierarchical", "#F0E442", "h", OUTLINE),
}
"""Looks of DDP's algorithms other than the default, for figures that compare algorithms."""

_OWN_MARKERS = "PpH8"
"""Markers for algorithms that users wrote. The algorithm's name determines which marker is used."""
_VARIANT_MARKERS = "*X<>dH8h"


def base_look() -> Look:
    """Return the look of the base strategy's cases."""
    return _look(traits_named(BASE), "", 0)


def look(case: Case, variant: int = 0) -> Look:
    """Return a case's look. A strategy without its own colour or marker gets OTHER_COLOUR or OTHER_MARKER.

    DDP's other algorithms have their own. A `variant` from 1 on (a schedule or option) only has another marker.
    """
    return _look(traits_of(case), case.algorithm, variant)


def _look(own: Traits, algorithm: str, variant: int) -> Look:
    colour, marker = own.colour or OTHER_COLOUR, own.marker or OTHER_MARKER
    first = Look(own.display, colour, marker, OUTLINE if _light(colour) else None)
    if own.role == "reference" and algorithm in ALGORITHMS:
        first = replace(ALGORITHMS[algorithm], name=first.name)
    elif own.role == "reference" and is_import_path(algorithm):
        first = Look(first.name, OTHER_COLOUR, _OWN_MARKERS[sum(algorithm.encode()) % len(_OWN_MARKERS)])
    if not variant:
        return first
    return replace(first, marker=_VARIANT_MARKERS[(variant - 1) % len(_VARIANT_MARKERS)])


GROUND = "#FFFFFF"
DARK_TEXT, LIGHT_TEXT = "#15181C", "#FEFEFE"
"""Colours of text on fills, regardless of the page's theme."""


@dataclass(frozen=True, slots=True)
class Fill:
    """The style in which a part of a step is drawn. The hatch has the edge's colour.

    `name` is shown in the legend, and `head` at the head of a table's column. A fill contrasts with the background,
    and an edge in the background's colour separates it from its neighbours. For a `hollow` fill, only the edge
    contrasts with the background.
    """

    name: str
    colour: str
    hatch: str = ""
    edge: str = GROUND
    line: Literal["-", "--"] = "-"
    text: str = DARK_TEXT
    head: str = ""

    @property
    def hollow(self) -> bool:
        """Return whether the edge, not the fill, shows where the part is."""
        return self.edge != GROUND

    @property
    def ink(self) -> str:
        """Return the colour of numbers on the fill."""
        changes = on_dark(self.colour.lower()) != self.colour.lower()
        return INK if self.hollow and changes else self.text

    @property
    def outline(self) -> dict[str, Any]:
        """Return the edge and hatch as keyword arguments for matplotlib's bars and patches."""
        return {
            "edgecolor": self.edge,
            "hatch": self.hatch or None,
            "linestyle": self.line,
            "linewidth": 1.0 if self.hollow else 0.8,
        }


PHASES: dict[str, Fill] = {
    "forward": Fill("forward", "#6696C5", head="Forward"),
    "backward": Fill("backward", "#1C4670", text=LIGHT_TEXT, head="Backward"),
    "other_compute": Fill("other computation", "#1C4670", hatch="---", text=LIGHT_TEXT, head="Other"),
    "exposed_comm": Fill("exposed communication", "#C4502F", text=LIGHT_TEXT, head="Exposed"),
    "exposed_wait": Fill("waiting for ranks", GROUND, edge="#A14326", line="--", head="Waiting"),
    "optimizer": Fill("optimizer", "#8A9199", head="Optimizer"),
    "data": Fill("data wait", "#EBD68B", hatch="\\\\\\\\", edge="#8A7228", head="Data"),
    "not_attributed": Fill("not attributed", GROUND, hatch="xxxx", edge=MUTED, head="Not attributed"),
}
"""Fills for the parts of a step, which are the columns of the breakdown, in the order in which bars stack them."""
OVERLAPPED = Fill("overlapped communication", "#F2C3B2", hatch="////", edge="#A14326")

_ON_DARK = {
    "#ffffff": "#15181c",
    "#000000": "#e6e8eb",
    INK.lower(): "#e6e8eb",
    MUTED.lower(): "#a6adb7",
    GRID.lower(): "#2c323a",
    OUTLINE.lower(): "#8b939d",
    OVERSUBSCRIBED_GROUND.lower(): "#262b31",
    LIGHT_TEXT.lower(): LIGHT_TEXT.lower(),
    "#6696c5": "#a9c8e8",
    "#1c4670": "#2f6ca3",
    "#f2c3b2": "#6b3a2a",
    "#a14326": "#e0967c",
    "#0072b2": "#3d9bd8",
    "#6b7280": "#98a1ae",
}
"""Replacements of colours in the dark theme. All other colours contrast with both backgrounds."""
_RAMP_LIGHT, _RAMP_DARK = ((0xFF, 0xFF, 0xFF), (0x8F, 0xBB, 0xDD)), ((0x15, 0x18, 0x1C), (0x2F, 0x5F, 0x86))
"""Colours of the heat map, from best to worst."""


def on_dark(colour: str) -> str:
    """Return the `#rrggbb` colour that replaces this `#rrggbb` colour in the dark theme."""
    if colour in _ON_DARK:
        return _ON_DARK[colour]
    mine = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    low, high = _RAMP_LIGHT
    along = (low[0] - mine[0]) / (low[0] - high[0])
    near = all(abs(part - (a + along * (b - a))) < 3 for part, a, b in zip(mine, low, high, strict=True))
    if not 0 <= along <= 1 or not near:
        return colour
    parts = (round(a + along * (b - a)) for a, b in zip(*_RAMP_DARK, strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)


SETTINGS: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": TICK_PT,
    "text.color": INK,
    "text.hinting": "no_hinting",  # of PNGs: letters as wide as in the SVG, in half the time
    "text.parse_math": False,  # a name with two dollar signs is a name
    "axes.titlesize": LABEL_PT,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # nothing is above the axes: a search would lay out every tick label
    "axes.labelsize": LABEL_PT,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.use_mathtext": False,
    "xtick.labelsize": TICK_PT,
    "ytick.labelsize": TICK_PT,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "hatch.linewidth": 0.6,
    "lines.linewidth": 1.0,
    "legend.frameon": False,
    "legend.fontsize": NOTE_PT,
    "svg.fonttype": "none",  # text, for search, copying and editors
    "pdf.fonttype": 42,  # letters, which an editor can change
    "svg.hashsalt": "ddpbench",  # with no date in the file: equal input, equal bytes
    "path.simplify": True,
}
"""matplotlib settings for all figures. They replace matplotlib's defaults, and a user's matplotlibrc is ignored."""
