"""What a plan costs for every trade λ between local steps and trajectories."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mfpo.errors import ConfigError, MissingExtra
from mfpo.learning.planner import Assumptions, Plan, make_plans
from mfpo.reporting.curves import COLOURS, DASHES, FAINT, STYLE, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRID = 101


def save_plan_figure(assumed: Assumptions, out: str | Path) -> Path:
    """Draw into the file `out`: PNG, SVG or PDF by its suffix."""
    return save(lambda: plan_figure(assumed), out)


def plan_figure(assumed: Assumptions) -> "Figure":
    """K and D, rounds, and trajectories per agent against λ; the λ of the table are marked."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("a figure", "plot") from None
    if assumed.local_steps and assumed.trajectories:
        raise ConfigError("--out draws costs against λ, but --local-steps and --trajectories leave λ no choice.")
    marked = make_plans(assumed)
    fine = make_plans(replace(assumed, lambdas=tuple(np.linspace(0.0, 1.0, GRID).tolist())))
    with matplotlib.rc_context(STYLE):
        picture = Figure(figsize=(10.0, 3.6), dpi=160, layout="constrained")
        chosen, rounds, work = picture.subplots(1, 3)
        _draw(chosen, fine, marked, "local_steps", "K, local steps", 0)
        _draw(chosen, fine, marked, "trajectories", "D, trajectories per step", 1)
        _draw(rounds, fine, marked, "rounds", "rounds", 2)
        _draw(work, fine, marked, "trajectories_per_agent", "trajectories", 3)
        _decorate(chosen, "what the theorem chooses", logarithmic=True)
        _decorate(rounds, "communication rounds")
        _decorate(work, "trajectories per agent")
        chosen.legend(loc="upper center", fontsize=9)
        agents = "1 agent" if assumed.agents == 1 else f"{assumed.agents:,} agents"
        title = f"{agents}, target ε = {assumed.target_eps:g} (K and D are whole numbers, hence the jumps)"
        picture.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return picture


def _draw(axes: "Axes", fine: list[Plan], marked: list[Plan], field: str, label: str, number: int) -> None:
    line: dict[str, Any] = {"linewidth": 2, "linestyle": DASHES[number] if number < 2 else "-", "label": label}
    for plans, style in ((fine, line), (marked, {"linestyle": "none", "marker": "o", "markersize": 4.5})):
        lambdas = np.array([plan.lam for plan in plans], float)
        axes.plot(lambdas, [getattr(plan, field) for plan in plans], color=COLOURS[number], **style)


def _decorate(axes: "Axes", title: str, logarithmic: bool = False) -> None:
    from matplotlib.ticker import StrMethodFormatter

    axes.set_xlabel("λ")
    axes.set_title(title, loc="left", fontsize=10, color=FAINT)
    if logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(0.8, 4 * axes.get_ylim()[1])  # room for the legend
    else:
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    if axes.get_ylim()[1] < 1e7:
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
