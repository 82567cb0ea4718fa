"""Learning curves of one run or many: seeds of the same setting become one line with its uncertainty."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mfpo.errors import ConfigError, MissingExtra, RunError, did_you_mean
from mfpo.reporting.numbers import score_text
from mfpo.reporting.records import Record, load_record
from mfpo.reporting.statistics import Floats, bootstrap_interval, mean
from mfpo.runs import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Choice of the horizontal axis -> field of a row, label, and the names of its thousands, millions and billions.
COUNTS = ("", " (thousands)", " (millions)", " (billions)")
BYTES = (" (bytes)", " (kB)", " (MB)", " (GB)")
AXES: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "rounds": (("round",), "communication rounds", COUNTS),
    "trajectories": (("trajectories_per_agent",), "trajectories per agent", COUNTS),
    "steps": (("env_steps",), "environment steps, all agents", COUNTS),
    "bytes": (("bytes_up", "bytes_down"), "bytes sent, all agents, up and down", BYTES),
}
FORMATS = (".png", ".svg", ".pdf")
RETURN, EVALUATION = "return_mean", "evaluation_mean"

# Okabe and Ito's colours, in the order that keeps neighbours apart for every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
INK, FAINT = "#222222", "#6B6B6B"
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#AAAAAA",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "mfpo",
}

# Fields that do not make two runs different experiments.
SAME_EXPERIMENT = (
    "seed", "engine", "devices", "processes", "preset",
    "evaluation_episodes", "evaluation_every", "reference_every", "reference_trajectories",
)  # fmt: skip


class Group(NamedTuple):
    """Runs that differ in their seed only."""

    label: str
    records: list[Record]


class Curve(NamedTuple):
    """A group, ready to draw."""

    x: Floats
    y: Floats
    low: Floats
    high: Floats
    each: list[tuple[Floats, Floats]]  # the single runs, if there are several


def group_runs(records: Sequence[Record]) -> list[Group]:
    """Runs of the same setting together, in the order given, each group named by what sets it apart."""
    together: dict[str, list[Record]] = {}
    for record in records:
        together.setdefault(repr(sorted(_setting(record).items())), []).append(record)
    members = list(together.values())
    return [Group(label, group) for label, group in zip(_labels(members), members, strict=True)]


def _setting(record: Record) -> dict[str, Any]:
    both = record.settings | record.config
    return {name: value for name, value in both.items() if name not in SAME_EXPERIMENT}


def _labels(members: list[list[Record]]) -> list[str]:
    settings = [_setting(group[0]) for group in members]
    presets = [str(group[0].settings.get("preset")) for group in members]
    algorithms = {s.get("algorithm") for s in settings}
    shared = [name for name in settings[0] if all(name in s for s in settings)]
    differing = [name for name in shared if len({repr(s[name]) for s in settings}) > 1]
    if len(members) == 1:
        return ["training"]
    labels = []
    for setting, preset in zip(settings, presets, strict=True):
        parts = [f"{name.replace('_', ' ')} {_short(setting[name])}" for name in differing if name != "algorithm"]
        if len(parts) > 3 and len(set(presets)) == len(presets):
            parts = [f"preset {preset}"]
        if len(algorithms) > 1 or not parts:
            parts.insert(0, str(setting.get("algorithm")))
        labels.append(", ".join(parts[:4]))
    if len(set(labels)) < len(labels):  # too much differs for a label: the directories tell them apart
        return [group[0].path.name for group in members]
    return labels


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "×".join(map(str, value)) if isinstance(value, list) else str(value)


def curve_of(group: Group, x: str = "rounds", field: str = RETURN) -> Curve:
    """One run: the mean return of each round ± the spread of its episodes. Several: their mean and its 95% interval.

    A `field` of the rows that is not of returns has no spread of its own.
    """
    lines = [line_of(record, x, field) for record in group.records]
    if len(lines) == 1:
        xs, ys = lines[0]
        if field not in (RETURN, EVALUATION):
            return Curve(xs, ys, ys, ys, [])
        std, least, most = (
            _column(_rows_with(group.records[0], field), field.replace("mean", name)) for name in ("std", "min", "max")
        )
        low, high = np.fmax(ys - std, least), np.fmin(ys + std, most)  # a band must not promise what no episode did
        return Curve(xs, ys, low, high, [])
    first = lines[0][0]
    if all(np.array_equal(xs, first) for xs, _ in lines):
        grid, table = first, np.stack([ys for _, ys in lines])
    else:  # environment steps differ from seed to seed: compare at the same places, where every run has been
        grid = np.linspace(max(xs[0] for xs, _ in lines), min(xs[-1] for xs, _ in lines), 200)
        table = np.stack([np.interp(grid, xs, ys) for xs, ys in lines])
    low, high = bootstrap_interval(table)
    return Curve(grid, mean(table), low, high, lines)


def line_of(record: Record, x: str, field: str = RETURN) -> tuple[Floats, Floats]:
    """A field of the rows against a cost. Rounds without a return leave a gap, those without another field are out."""
    if not record.rows:
        raise RunError(f"{record.path} has no finished round yet; there is nothing to draw.")
    rows = _rows_with(record, field)
    xs: Floats = np.sum([_column(rows, cost) for cost in AXES[x][0]], axis=0)
    return xs, _column(rows, field)


def _rows_with(record: Record, field: str) -> list[dict[str, Any]]:
    return [row for row in record.rows if field == RETURN or row.get(field) is not None]


def measure_of(groups: list[Group]) -> str:
    """What to draw: the policies judged on the way, if all the runs did that; else the episodes they learned from."""
    judged = all(_rows_with(record, EVALUATION) for group in groups for record in group.records)
    return EVALUATION if judged else RETURN


def _column(rows: list[dict[str, Any]], name: str) -> Floats:
    return np.array([np.nan if row.get(name) is None else row[name] for row in rows], float)


def groups_of(paths: Sequence[str | Path], x: str) -> list[Group]:
    """The runs in `paths`, to be drawn against `x`."""
    if x not in AXES:
        raise ConfigError(f"--x is {x!r}. {did_you_mean(x, AXES)}")
    return group_runs([load_record(path) for path in paths])


def figure(
    paths: Sequence[str | Path],
    x: str = "rounds",
    threshold: float | None = None,
    labels: Sequence[str] | None = None,
    title: str | None = None,
) -> "Figure":
    """The learning curves of the runs in `paths`; `labels` replaces the names of the groups, in their order."""
    groups = groups_of(paths, x)
    if labels is not None:
        if len(labels) != len(groups):
            raise ConfigError(f"There are {len(groups)} different settings, but {len(labels)} labels; give one each.")
        groups = [Group(label, group.records) for label, group in zip(labels, groups, strict=True)]
    return figure_of(groups, x, threshold, title)


def figure_of(
    groups: list[Group], x: str, threshold: float | None = None, title: str | None = None, ordered: bool = False
) -> "Figure":
    """A line per group. Groups that are `ordered`, by a number, are told apart by shades, without the single runs."""
    matplotlib, picture = blank(8.6 if ordered else 7.2, 4.3)
    field = measure_of(groups)
    if len(groups) == 1 and field == EVALUATION:
        groups = [Group("on the way", groups[0].records)]
    curves = [curve_of(group, x, field) for group in groups]
    colours: Sequence[Any] = COLOURS
    if ordered:
        curves = [curve._replace(each=[]) for curve in curves]
        colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(groups)))
    with matplotlib.rc_context(STYLE):
        axes = picture.add_subplot()
        scale, unit = unit_of(max(curve.x[-1] for curve in curves), AXES[x][2])
        for number, (group, curve) in enumerate(zip(groups, curves, strict=True)):
            draw_curve(axes, group, curve, scale, number, colours)
        if len(groups) == 1 and len(groups[0].records) == 1:
            _mark_evaluation(axes, groups[0].records[0], line_of(groups[0].records[0], x)[0][-1] / scale)
        _decorate(axes, groups, title, AXES[x][1] + unit, threshold, field)
        legend = axes.get_legend()
        if ordered and legend is not None:  # there are many lines: beside them, not among them
            legend.set_loc("center left")
            legend.set_bbox_to_anchor((1.01, 0.5))
    return picture


def blank(width: float, height: float, apart: float = 0.04) -> "tuple[Any, Figure]":
    """Matplotlib, and an empty figure of this size and with panels so far apart, in inches; or how to install it."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise MissingExtra("a figure", "plot") from None
    layout = ConstrainedLayoutEngine(h_pad=apart, w_pad=apart)
    return matplotlib, Figure(figsize=(width, height), dpi=160, layout=layout)


def unit_of(largest: float, names: tuple[str, ...]) -> tuple[float, str]:
    """What to divide by, and what to call it. Counts below 100,000 are written out."""
    start = 1e5 if names is COUNTS else 1e3
    if largest < start:
        return 1.0, names[0]
    power = min(3, int(np.log10(largest) // 3))
    return 1000.0**power, names[power]


def draw_curve(
    axes: "Axes", group: Group, curve: Curve, scale: float, number: int, colours: Sequence[Any] = COLOURS
) -> None:
    """A line with its band, and a thin one per run; the number of the group decides on its looks."""
    colour = colours[number % len(colours)]
    dash = DASHES[number // len(colours) % len(DASHES)]
    axes.fill_between(curve.x / scale, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0)
    for xs, ys in curve.each:
        axes.plot(xs / scale, ys, color=colour, alpha=0.2, linewidth=0.8, label="_run")
    line: dict[str, Any] = {"color": colour, "linestyle": dash, "linewidth": 2}
    if len(curve.x) <= 40 and len(group.records) == 1:
        line |= {"marker": "o", "markersize": 3.5}
    axes.plot(curve.x / scale, curve.y, **line, label=group.label)


def _mark_evaluation(axes: "Axes", record: Record, last: float) -> None:
    """The number that counts: the final policy on fresh episodes."""
    evaluation = record.summary.get("evaluation")
    if not evaluation or evaluation.get("mean") is None:
        return
    score = evaluation["mean"]
    text = f"evaluation {score_text(score, evaluation['std'])} ({evaluation['episodes']} episodes)"
    axes.plot([last], [score], "D", color=COLOURS[1], ms=7, mec="white", zorder=5, label=text, clip_on=False)


def label_costs(axes: "Axes", xlabel: str) -> None:
    """The horizontal axis: round numbers, and whole ones where things are counted."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set_xlabel(xlabel)
    axes.margins(x=0.02)
    whole = "(" not in xlabel  # a number of things, not of millions of them
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=whole, min_n_ticks=1))
    if whole:
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def draw_threshold(axes: "Axes", threshold: float | None) -> None:
    """A dashed line at this return, if there is one."""
    if threshold is not None:
        dashed: dict[str, Any] = {"color": FAINT, "linewidth": 1, "linestyle": (0, (4, 3)), "zorder": 1}
        axes.axhline(threshold, **dashed, label=f"threshold {threshold:g}")


def _decorate(
    axes: "Axes", groups: list[Group], title: str | None, xlabel: str, threshold: float | None, field: str
) -> None:
    label_costs(axes, xlabel)
    axes.set_ylabel("return of an episode")
    draw_threshold(axes, threshold)
    axes.set_title(title or title_of(groups), loc="left", fontweight="bold", fontsize=12, pad=22)
    above: dict[str, Any] = {"xy": (0, 1), "xytext": (0, 7), "xycoords": "axes fraction", "textcoords": "offset points"}
    axes.annotate(caption_of(groups, field), **above, color=FAINT, fontsize=8.5)
    handles, _ = axes.get_legend_handles_labels()
    if len(handles) > 1:
        axes.legend(loc="best", fontsize=9)


def title_of(groups: list[Group]) -> str:
    """What all runs have in common."""
    records = [record for group in groups for record in group.records]
    parts = []
    for name, form in (("env", "{}"), ("algorithm", "{}"), ("agents", "{} agents")):
        values = {record.settings.get(name) for record in records}
        if len(values) == 1:
            value = values.pop()
            parts.append("1 agent" if (name, value) == ("agents", 1) else form.format(value))
    return " · ".join(parts) or "learning curves"


def caption_of(groups: list[Group], field: str = RETURN) -> str:
    """What lines and bands are."""
    episodes = "training episodes" if field == RETURN else "fresh episodes"
    seeds = sorted({len(group.records) for group in groups})
    if seeds == [1]:
        return f"mean over the {episodes} of a round; band: ± one standard deviation"
    count = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"mean over {count} seeds, {episodes}; band: 95% bootstrap interval of the mean"


def save_figure(paths: Sequence[str | Path], out: str | Path, **options: Any) -> Path:
    """Draw `paths` (see `figure`) into the file `out`: PNG, SVG or PDF by its suffix."""
    return save(lambda: figure(paths, **options), out)


def save(draw: "Callable[[], Figure]", out: str | Path) -> Path:
    """Write what is drawn into the file `out`; nothing is drawn for a format that does not exist."""
    out = Path(out)
    if out.suffix.lower() not in FORMATS:
        raise ConfigError(f"{out} should end in one of {', '.join(FORMATS)}; the suffix chooses the format.")
    drawn = io.BytesIO()
    draw().savefig(drawn, format=out.suffix.lower()[1:])
    try:
        files.replace(out, drawn.getvalue())
    except OSError as error:
        raise RunError(f"The figure {out} cannot be written: {files.reason(error)}.") from None
    return out
