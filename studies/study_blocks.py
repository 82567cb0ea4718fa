"""Blocks of the pages that tell of studies: many short runs of which only a line each is kept."""

import json
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from run_blocks import RESULTS, SOLVED

from mfpo.reporting import curves
from mfpo.reporting.statistics import bootstrap_interval, iqm
from mfpo.reporting.sweep import table_text
from mfpo.reporting.tables import markdown

GRADIENT = 1e4
RATES = ("precision", "recall")
CATCH = {  # the rule
    "gamma": 0.95,
    "entropy": 0.01,
    "momentum": 0.8,
    "normalise_advantages": True,
    "cg_damping": 0.1,
    "value_updates": 10,
    "value_stepsize": 1e-3,
}
METHODS = ("MFPO", "FedAvg-PG", "heavy-ball", "no weights", "no server step")


def faults() -> str:
    """Scores with three liars among ten agents: the mean over seeds and the worst of them."""
    rows = [json.loads(line) for line in (RESULTS / "faults.jsonl").read_text().splitlines()]
    methods = list(dict.fromkeys(row["job"]["method"] for row in rows))
    attacks = [a for a in dict.fromkeys(row["job"]["attack"] for row in rows) if "absent" not in a]

    def cell(method: str, attack: str) -> str:
        scores = [
            row["evaluation"] or 0.0 for row in rows if (row["job"]["method"], row["job"]["attack"]) == (method, attack)
        ]
        return f"{np.mean(scores):.0f} ({min(scores):.0f})" if scores else "–"

    return markdown(
        ("attack", *methods), [(attack, *(cell(method, attack) for method in methods)) for attack in attacks]
    )


def absent() -> str:
    """Learning although most agents are not there in most rounds."""
    rows = [json.loads(line) for line in (RESULTS / "faults.jsonl").read_text().splitlines()]
    found = [row for row in rows if "absent" in row["job"]["attack"]]
    return markdown(
        ("seed", "first round at 475", "final score"),
        [
            (
                str(row["job"]["seed"]),
                str(next((i for i, x in enumerate(row["curve"], 1) if x >= SOLVED), "none")),
                f"{row['evaluation']:.1f}",
            )
            for row in found
        ],
    )


def caught() -> str:
    """How well FedPG-BR's filter tells lies from truth."""
    rows = [json.loads(line) for line in (RESULTS / "faults.jsonl").read_text().splitlines()]
    lines = []
    for attack in dict.fromkeys(row["job"]["attack"] for row in rows):
        found = [row for row in rows if row["job"]["attack"] == attack and row["job"]["method"] == "FedPG-BR"]
        if found and found[0]["recall"] is not None:
            means = [np.mean([row[which] for row in found if row[which] is not None]) for which in RATES]
            lines.append((attack, *(f"{x:.2f}" for x in means)))
    return markdown(("attack", *RATES), lines)


def final_rows(env: str) -> list[dict[str, Any]]:
    """The final runs of the ablation study."""
    path = RESULTS / "ablation" / f"final-{env}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def spread(values: list[float]) -> str:
    """Mean and 95% bootstrap interval."""
    low, high = bootstrap_interval(values)
    return f"{np.mean(values):.1f} [{float(low):.1f}, {float(high):.1f}]".replace("-", "−")


def ablation(env: str) -> str:
    """MFPO against its ablations, each with the best setting of the same search."""
    rows = final_rows(env)
    lines = []
    for d in (2, 5, 20):
        for method in METHODS:
            mine = [row for row in rows if row["job"]["method"] == method and row["job"]["D"] == d]
            if not mine:
                continue
            settings = mine[0]["settings"]
            chosen = f"{settings['step']} {settings['stepsize']:g}"
            if settings.get("momentum"):
                chosen += f", ν {settings['momentum']:g}"
            if "weight_cap" in settings:
                chosen += f", w per {settings['weights']} ≤ {settings['weight_cap']:g}"
            scores = [row["evaluation"] for row in mine]
            lines.append(
                (
                    str(d),
                    method,
                    chosen,
                    spread([float(np.mean(row["curve"])) for row in mine]),
                    spread(scores),
                    f"{float(iqm(scores)):.1f}".replace("-", "−"),
                    f"{min(scores):.1f}".replace("-", "−"),
                    str(len(mine)),
                )
            )
    if not lines:
        return "Not run yet."
    header = (
        "D",
        "method",
        "chosen setting",
        "mean return of 30 rounds",
        "final score",
        "its IQM",
        "worst seed",
        "seeds",
    )
    return markdown(header, lines)


def ablations() -> str:
    """Mean return of the thirty rounds with its interval, and final score, of every method."""
    lines = []
    for env in ("CartPole-v1", "Pendulum-v1"):
        for d in (2, 5, 20):
            cells = []
            for method in METHODS:
                mine = [row for row in final_rows(env) if row["job"]["method"] == method and row["job"]["D"] == d]
                low, high = (float(x) for x in bootstrap_interval([float(np.mean(row["curve"])) for row in mine]))
                mean, final = np.mean([row["curve"] for row in mine]), np.mean([row["evaluation"] for row in mine])
                cells.append(f"{mean:.0f} [{low:.0f}, {high:.0f}] → {final:.0f}".replace("-", "−"))
            lines.append((env, str(d), *cells))
    return markdown(("environment", "D", *METHODS), lines)


def bounds() -> str:
    """Measured errors against what the analysis guarantees."""
    results = json.loads((RESULTS / "bounds.json").read_text())
    many, long = results["many"], results["long"]
    last = long["last"]
    rows = [
        (name, f"{many['largest'][name]:.2g}", f"{many['runs']} runs of {many['rounds']:,} rounds")
        for name in ("gradient error", "consensus error", "drift")
    ]
    where = f"{long['runs']} runs of {long['rounds']:,} rounds"
    rows += [(name, f"{long['largest'][name]:.2g}", where) for name in ("gradient error", "consensus error", "drift")]
    name = "average squared gradient"
    rows.append((name, f"{long['largest'][name]:.2g}", where))
    rows.append((f"{name}, at the end", f"{last['average']:.2g} / {last['schedule_bound']:.2g}", where))
    rows.append((f"{name}, at the end, as printed", f"{last['average']:.2g} / {last['printed_bound']:,.0f}", where))
    moved = f"{max(many['synchronisation'], long['synchronisation']):.1g}"
    rows.append(("change of the gradient error by a synchronisation, relative", moved, "largest of all"))
    return markdown(("quantity", "largest measured / bound", "in"), rows)


def constants() -> str:
    """What the analysis assumes, and the largest seen along the runs."""
    results = json.loads((RESULTS / "bounds.json").read_text())
    seen = {
        name: max(part["assumptions"][name] for part in results.values()) for name in results["many"]["assumptions"]
    }
    rows = []
    for name, symbol in (
        ("sigma", "σ_g, standard deviation of g"),
        ("sigma_w", "σ_w, standard deviation of w"),
        ("smoothness", "L, change of ∇J per distance"),
        ("weight_growth", "c_w, variance of w per squared distance"),
    ):
        rows.append((symbol, f"{results['many']['assumed'][name]:.3g}", f"{seen[name]:.2g}"))
    return markdown(("constant", "assumed", "largest along the runs, exact"), rows)


def swept(option: str) -> str:
    """The table of one of the paper's three studies."""
    numbers = json.loads((RESULTS / "sweeps" / f"{option}.json").read_text())
    return table_text(option, numbers["values"])


def speedup() -> str:
    """Trajectories per agent to a score and to a gradient norm, with one stepsize for all and with the best of four."""
    found = json.loads((RESULTS / "speedup.json").read_text())
    lines = []
    for fixed, tuned in zip(found["fixed"], found["tuned"], strict=True):
        cells = [f"{fixed['agents']}"]
        for point in (fixed, tuned):
            cells += [_cost_cell(costs(point, found, which)) for which in ("score", "gradient")]
            cells += [f"{point['stepsize']:g}"] if point is tuned else []
        lines.append(cells)
    score, gradient = f"to {SOLVED:.0f}", f"to ‖∇J‖² below {GRADIENT:,.0f}"
    return markdown(
        ("agents", f"α 0.1: {score}", f"α 0.1: {gradient}", f"best α: {score}", f"best α: {gradient}", "best α"), lines
    )


def costs(point: dict[str, Any], found: dict[str, Any], which: str) -> list[float | None]:
    """For every seed the trajectories per agent after which it is reached; None where it never is."""
    per_round = found["batch"]["local_steps"] * found["batch"]["trajectories"]
    if which == "score":
        rounds = [next((i for i, x in enumerate(each, 1) if x >= SOLVED), None) for each in point["returns"]]
    else:
        rounds = [_settled(each, found["measured_every"]) for each in point["gradients"]]
    return [None if number is None else float(number * per_round) for number in rounds]


def _settled(gradients: list[float], every: int) -> int | None:
    """The round from which no squared gradient is above the bound any more: it is small at first, too."""
    last_above = max((i for i, x in enumerate(gradients) if x > GRADIENT), default=-1)
    return (last_above + 2) * every if last_above + 1 < len(gradients) else None


def _cost_cell(each: list[float | None]) -> str:
    reached = [x for x in each if x is not None]
    if len(reached) < len(each):
        return f"{len(reached)} of {len(each)} seeds"
    low, high = bootstrap_interval(reached)
    return f"{np.mean(reached):,.0f} [{float(low):,.0f}, {float(high):,.0f}]"


def speedup_figure() -> Figure:
    """Trajectories per agent against the number of agents, beside the ideal of half as many for twice the agents."""
    found = json.loads((RESULTS / "speedup.json").read_text())
    matplotlib, picture = curves.blank(9.6, 4.3)
    with matplotlib.rc_context(curves.STYLE):
        goals = (("score", f"training return of {SOLVED:.0f}"), ("gradient", f"squared gradient below {GRADIENT:,.0f}"))
        for axes, (which, goal) in zip(picture.subplots(1, 2), goals, strict=True):
            for number, (name, label) in enumerate((("fixed", "stepsize 0.1"), ("tuned", "best stepsize of four"))):
                points = [(point["agents"], costs(point, found, which)) for point in found[name]]
                _draw_costs(axes, points, label, curves.COLOURS[number], ideal=name == "fixed")
            axes.set(xscale="log", yscale="log", xlabel="agents", ylabel="trajectories per agent")
            ticks = [point["agents"] for point in found["fixed"]]
            axes.set_xticks(ticks, [str(n) for n in ticks])
            axes.minorticks_off()
            axes.set_title(f"to a {goal}", loc="left", fontsize=11)
            axes.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,g}"))
        picture.axes[0].legend(loc="best", fontsize=9)
    return picture


def _draw_costs(axes: Any, points: list[tuple[int, list[float | None]]], label: str, colour: Any, ideal: bool) -> None:
    """The mean over seeds with its interval, where all reach the goal; single seeds as dots."""
    for n, each in points:
        reached = [x for x in each if x is not None]
        axes.plot([n] * len(reached), reached, ".", color=colour, alpha=0.25, ms=7, mew=0)
    whole = [(n, [x for x in each if x is not None]) for n, each in points if None not in each]
    if not whole:
        return
    n, means = np.array([n for n, _ in whole]), np.array([np.mean(each) for _, each in whole])
    low, high = np.array([bootstrap_interval(each) for _, each in whole]).T
    axes.errorbar(n, means, [means - low, high - means], color=colour, marker="o", capsize=3, label=label)
    if ideal:
        axes.plot(n, means[0] * n[0] / n, color=curves.FAINT, linestyle=(0, (4, 3)), label="ideal, 1/N", zorder=1)


def catch() -> str:
    """Every run of studies/catch.py in which games came to an end: what was tried, and the balls caught at the end."""
    rows = [json.loads(line) for line in (RESULTS / "search" / "catch.jsonl").read_text().splitlines()]
    lines = []
    for row in sorted(rows, key=lambda row: (row["algorithm"], row["settings"].get("step", ""))):
        given, shares = row["settings"], [share for _, share in row["curve"][-4:] if share is not None]
        if not shares:
            continue
        notes = [f"{name} = {given[name]}" for name, usual in CATCH.items() if given.get(name, usual) != usual]
        notes += [] if row.get("standardised_units", True) else ["units not standardised"]
        notes += ["frames standardised"] if row.get("standardised_frames", False) else []
        notes += [f"{what} centred" for what in ("units", "gradients") if row.get(f"centred_{what}", False)]
        notes += [f"{row['background']} background"] if row.get("background", "bright") != "bright" else []
        method = "FedAvg-PPO" if row["algorithm"] == "fedavg_ppo" else f"MFPO, {given['step']}"
        lines.append(
            (
                method,
                str(given.get("agents", 2)),
                str(given["local_steps"]),
                str(given["trajectories"]),
                str(given["env_steps"]),
                f"{given['stepsize']:g}",
                ", ".join(notes),
                f"{row['curve'][-1][0]:,}",
                f"{np.mean(shares):.0%}",
            )
        )
    titles = ("method", "agents", "K", "D", "steps per agent and local step", "stepsize", "other", "steps", "caught")
    return markdown(titles, lines)
