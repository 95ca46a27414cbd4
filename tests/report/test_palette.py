"""Contrast of the fills of a step's parts: with the ground, each other and their numbers, also for the
colour-blind.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from ddpbench.report.draw.style import GROUND, OVERLAPPED, PHASES, Fill, on_dark

FILLS = (*PHASES.values(), OVERLAPPED)
GRAPHIC, TEXT = 3.0, 4.5
"""Least contrasts of WCAG 2.2: 1.4.11 for graphic objects, 1.4.3 for text."""
APART = 15.0
"""CIE 1976 difference in Lab; 2.3 is just noticed."""

Colour = tuple[float, float, float]


def linear(colour: str) -> Colour:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return red, green, blue


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(colour: Colour) -> Colour:
    red, green, blue = colour
    xyz = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089,
    )
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def seen_by(kind: str, colour: str) -> Colour:
    """Return a colour as a dichromat sees it: Vienot, Brettel and Mollon 1999, linear RGB."""
    red, green, blue = linear(colour)
    if kind == "protan":
        mixed = 0.11238 * red + 0.88762 * green
        return mixed, mixed, max(0.0, 0.00401 * (red - green) + blue)
    if kind == "deutan":
        mixed = 0.29275 * red + 0.70725 * green
        return mixed, mixed, max(0.0, -0.02234 * (red - green) + blue)
    return red, green, blue


MACHADO = {
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
"""Machado, Oliveira and Fernandes 2009, severity 1, linear RGB."""


def simulated(kind: str, colour: str) -> Colour:
    """Return a colour as a dichromat sees it, by the other model."""
    parts = linear(colour)
    if kind not in MACHADO:
        return parts
    red, green, blue = (
        min(1.0, max(0.0, math.fsum(a * b for a, b in zip(row, parts, strict=True)))) for row in MACHADO[kind]
    )
    return red, green, blue


def as_is(colour: str) -> str:
    return colour.lower()


def dark(colour: str) -> str:
    return on_dark(colour.lower())


@pytest.fixture(params=[as_is, dark], ids=["light", "dark"])
def shown(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return how a colour of the palette is shown on one of the two grounds."""
    page: Callable[[str], str] = request.param
    return page


def test_every_part_stands_out_from_the_ground_by_its_fill_or_its_edge(shown: Callable[[str], str]) -> None:
    """A gap in the ground's colour divides neighbours, so that they contrast with each other too."""
    ground = shown(GROUND)
    contrasts = {
        fill.name: contrast(shown(fill.edge if fill.hollow else fill.colour), ground) for fill in FILLS
    }
    assert {name: ratio for name, ratio in contrasts.items() if ratio < GRAPHIC} == {}
    assert [fill.name for fill in FILLS if fill.edge == GROUND and fill.hollow] == []


def test_forward_and_backward_differ_as_much_as_from_the_ground(shown: Callable[[str], str]) -> None:
    assert contrast(shown(PHASES["forward"].colour), shown(PHASES["backward"].colour)) >= GRAPHIC


def test_numbers_on_a_part_can_be_read(shown: Callable[[str], str]) -> None:
    contrasts = {fill.name: contrast(shown(fill.ink), shown(fill.colour)) for fill in FILLS}
    assert {name: ratio for name, ratio in contrasts.items() if ratio < TEXT} == {}


@pytest.mark.parametrize("kind", ["any", "protan", "deutan"])
def test_the_colour_blind_tell_parts_apart_by_colour_or_by_pattern(
    shown: Callable[[str], str], kind: str
) -> None:
    def pattern(fill: Fill) -> tuple[str, str, bool]:
        return fill.hatch, fill.line, fill.hollow

    def colour(fill: Fill) -> Colour:
        return lab(seen_by(kind, shown(fill.colour)))

    alike = [
        (one.name, other.name)
        for one, other in itertools.combinations(FILLS, 2)
        if pattern(one) == pattern(other) and math.dist(colour(one), colour(other)) < APART
    ]
    assert alike == []


UNLIKE = 30.0
"""Difference in Lab of two parts whose colours alone must distinguish them."""


@pytest.mark.parametrize("kind", ["any", *MACHADO])
@pytest.mark.parametrize("model", [seen_by, simulated])
def test_exposed_communication_and_data_wait_differ_by_colour_alone(
    shown: Callable[[str], str], kind: str, model: Callable[[str, str], Colour]
) -> None:
    """Both stand at a bar's end, where a hatch of a thin part is not seen."""
    exposed, data = (lab(model(kind, shown(PHASES[name].colour))) for name in ("exposed_comm", "data"))
    assert math.dist(exposed, data) >= UNLIKE
