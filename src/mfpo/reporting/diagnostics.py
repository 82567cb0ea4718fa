"""What the analysis speaks about, along a run: a small panel per quantity, one above the other."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mfpo.errors import RunError
from mfpo.reporting import curves
from mfpo.reporting.curves import Curve, Group
from mfpo.reporting.statistics import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COUNTS = 1e-7  # of the largest value of a panel; what is smaller is as good as zero


class Panel(NamedTuple):
    """A quantity of the rows."""

    field: str
    title: str
    squared: bool = False  # it spans orders of magnitude, and an estimate of it may be negative
    measured: str = ""  # the same on samples of the server's own, where there are some


PANELS = (
    Panel(curves.RETURN, "return of an episode"),
    Panel("gradient_norm_squared", "squared gradient ‖∇J‖²", True, "reference_gradient_norm_squared"),
    Panel("gradient_error", "gradient error ‖ū − ∇J‖²", True),
    Panel("consensus_error", "consensus error Σ ‖uᵢ − ū‖²", True),
    Panel("drift", "drift, mean of ‖θᵢ − θ̄‖"),
    Panel("effective_sample_size", "effective sample size, share of a batch"),
)


def save_diagnostics(paths: Sequence[str | Path], out: str | Path, **options: Any) -> Path:
    """Draw `paths` (see `diagnostics_figure`) into the file `out`: PNG, SVG or PDF by its suffix."""
    return curves.save(lambda: diagnostics_figure(paths, **options), out)


def diagnostics_figure(
    paths: Sequence[str | Path], x: str = "rounds", threshold: float | None = None, title: str | None = None
) -> "Figure":
    """A panel for every quantity that any of the runs in `paths` reports; runs that do not are not in it."""
    groups = curves.groups_of(paths, x)
    ends = [curves.line_of(record, x)[0][-1] for group in groups for record in group.records]
    shown = [panel for panel in PANELS if any(_with(group, panel.field) for group in groups)]
    if [panel.field for panel in shown] in ([], [curves.RETURN]):
        raise RunError(
            "None of these runs reports a diagnostic: runs of mfpo do, unless an earlier version trained them. "
            "Leave out --diagnostics to see their returns."
        )
    scale, unit = curves.unit_of(max(ends), curves.AXES[x][2])
    rows = -(-len(shown) // 2)
    matplotlib, picture = curves.blank(9.6, 1.1 + 2.25 * rows, apart=0.08)
    with matplotlib.rc_context(curves.STYLE):
        grid = picture.subplots(rows, 2, sharex=True, squeeze=False)
        for panel, axes in zip(shown, grid.flat, strict=False):
            _fill(axes, panel, groups, x, scale)
        curves.draw_threshold(grid[0, 0], threshold)
        for axes in grid.flat[len(shown) :]:
            axes.set_axis_off()
        for axes in grid.flat[max(len(shown) - 2, 0) : len(shown)]:
            curves.label_costs(axes, curves.AXES[x][1] + unit)
            axes.tick_params(labelbottom=True)
        _head(picture, grid[0, 0], groups, title)
    return picture


def _with(group: Group, field: str) -> Group | None:
    """The group without runs that lack a field; None if that is all of them."""
    having = [record for record in group.records if any(row.get(field) is not None for row in record.rows)]
    return Group(group.label, having) if having else None


def _fill(axes: "Axes", panel: Panel, groups: list[Group], x: str, scale: float) -> None:
    drawn: list[Curve] = []
    for number, group in enumerate(groups):
        if having := _with(group, panel.field):
            drawn.append(curves.curve_of(having, x, panel.field))
            curves.draw_curve(axes, having, drawn[-1], scale, number)
        if panel.measured and (having := _with(group, panel.measured)):
            drawn.append(curves.curve_of(having, x, panel.measured))
            _points(axes, drawn[-1], scale, number)
    axes.set_title(panel.title, loc="left", fontsize=10, color=curves.FAINT)
    axes.margins(x=0.02)
    if panel.squared:
        _powers(axes, np.concatenate([curve.y for curve in drawn]))
    elif panel.field == "effective_sample_size":
        axes.set_ylim(top=1 + 0.03 * (1 - min(axes.get_ylim()[0], 0.99)))
    elif panel.field == "drift":
        axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])


def _points(axes: "Axes", curve: Curve, scale: float, number: int) -> None:
    """What was measured apart, as points with the interval of their mean, if there is one."""
    colour = curves.COLOURS[number % len(curves.COLOURS)]
    reach = np.stack([curve.y - curve.low, curve.high - curve.y]).clip(min=0.0)
    looks: dict[str, Any] = {"markersize": 5, "markerfacecolor": "white", "markeredgewidth": 1.4, "elinewidth": 1}
    axes.errorbar(curve.x / scale, curve.y, reach, fmt="o", color=colour, zorder=4, label="_measured", **looks)


def _powers(axes: "Axes", values: Floats) -> None:
    """Powers of ten, if there are any between; what is negative or hardly counts is in a linear part around zero."""
    from matplotlib.ticker import NullFormatter

    finite = values[np.isfinite(values)]
    largest = np.max(np.abs(finite), initial=0.0)
    if largest == 0 or np.min(finite) > largest / 10:
        return
    if np.min(finite) > COUNTS * largest:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
        return
    least = max(COUNTS * largest, np.quantile(np.abs(finite[finite != 0]), 0.2))
    first, last = int(np.ceil(np.log10(least))), int(np.ceil(np.log10(largest)))
    axes.set_yscale("symlog", linthresh=10.0**first, linscale=0.6)
    axes.axhline(0, color="#AAAAAA", linewidth=0.8, zorder=1)
    bottom = axes.get_ylim()[0]  # of bands and single runs, too
    decades = np.arange(first, last + 1)
    below = int(np.sum(10.0**decades <= -bottom))
    step = 1 + (len(decades) + below) // 8
    powers = 10.0 ** decades[step - 1 :: step]
    axes.set_yticks([*-powers[powers <= -bottom], 0, *powers])
    axes.set_ylim(bottom=bottom)
    axes.minorticks_off()


def _head(picture: "Figure", first: "Axes", groups: list[Group], title: str | None) -> None:
    """Title, what lines, bands and points are, and the names of the groups where there are several."""
    left: dict[str, Any] = {"x": 0.01, "ha": "left"}
    picture.suptitle(title or curves.title_of(groups), **left, fontweight="bold", fontsize=12)
    single = all(len(group.records) == 1 for group in groups)
    caption = "return: " * single + curves.caption_of(groups)
    if any(_with(group, panel.measured) for group in groups for panel in PANELS if panel.measured):
        caption += "; circles: ‖∇J‖² measured apart"
    picture.supxlabel(caption, **left, color=curves.FAINT, fontsize=8.5)
    handles, _ = first.get_legend_handles_labels()
    if len(handles) > 1:
        first.legend(loc="best", fontsize=8.5)
