"""The part of a matplotlib figure on which a picture is painted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ddpbench.report.draw import style
from ddpbench.report.draw.lines import in_legend
from ddpbench.report.draw.marks import describe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, ScalarFormatter


class Sheet:
    """The part of a figure on which a picture is painted. Positions are in inches from its lower left corner."""

    def __init__(
        self, figure: Figure, *, width_in: float, height_in: float, lifted_in: float, shifted_in: float = 0.0
    ) -> None:
        self.figure = figure
        self.width_in = width_in
        self.height_in = height_in
        self._lifted_in = lifted_in
        self._shifted_in = shifted_in

    def _place(self, x: float, y: float) -> tuple[float, float]:
        """Convert inches on the sheet to fractions of the figure."""
        return (
            (x + self._shifted_in) / self.figure.get_figwidth(),
            (y + self._lifted_in) / self.figure.get_figheight(),
        )

    def axes(self, left: float, bottom: float, width: float, height: float, **options: Any) -> Axes:
        """Add axes whose position and size are given in inches, and return them."""
        size = (width / self.figure.get_figwidth(), height / self.figure.get_figheight())
        axes = self.figure.add_axes((*self._place(left, bottom), *size), **options)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(_with_thousands())
            axis.set_major_locator(_round())
        return axes

    def text(self, x: float, y: float, text: str, **options: Any) -> None:
        """Write a text at a position given in inches."""
        self.figure.text(*self._place(x, y), text, **options)

    def legend(
        self,
        handles: Sequence[Any],
        *,
        columns: int,
        length: float = 1.6,
        series: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Draw a legend along the sheet's upper edge, with its entries in reading order.

        `length` is the lines' length in font sizes. On a phone, one column breaks long names (`legend_lines`). Entries
        are linked to the marks of the series of their name, or as `series` maps it (`marks.describe`).
        """
        # matplotlib fills columns first, so the handles are dealt out to its columns
        handles = [handle for column in range(columns) for handle in handles[column::columns]]
        phone = self.width_in <= style.NARROW_WIDTH_IN
        names = [str(handle.get_label()) for handle in handles]
        if phone and columns == 1:
            for handle, name in zip(handles, names, strict=True):
                handle.set_label(in_legend(name))
        place = self._place(0.04 if phone else 0.1, self.height_in - 0.02)
        legend = self.figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=place,
            ncols=columns,
            handlelength=min(length, 1.2) if phone else length,
            handletextpad=0.5 if phone else 0.8,
            columnspacing=0.8 if phone else 1.4,
            borderpad=0,
        )
        for name, *entry in zip(names, legend.legend_handles, legend.get_texts(), strict=True):
            for artist in entry:
                if artist is not None:
                    describe(artist, series.get(name, name))


def _round() -> MaxNLocator:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator("auto", steps=[1, 2, 5, 10])


def _with_thousands() -> ScalarFormatter:
    from matplotlib.ticker import ScalarFormatter

    class WithThousands(ScalarFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:,.0f}" if abs(x) >= 1000 else super().__call__(x, pos)

    return WithThousands(useOffset=False)
