"""`mfpo plan`: what the theorem asks for, as a table and a figure."""

import argparse
from collections.abc import Sequence
from typing import Any

from mfpo.cli.aside import tell
from mfpo.cli.flags import add_fields
from mfpo.config import build, field_types
from mfpo.learning.planner import Assumptions, Pilot, Plan, make_plans
from mfpo.reporting.numbers import bytes_text

WHAT_IT_IS = (
    "It holds for the theorem's own schedules and the constants assumed below, which are no measurements: a plan shows "
    "how K, D and N trade. Runs with the default settings use other steps and are not bound by it."
)


def fill(parser: argparse.ArgumentParser) -> None:
    """The flags: a field of `Assumptions` each."""
    parser.usage = "mfpo plan [options]"
    parser.description = f"{parser.description} {WHAT_IT_IS}"
    fields = list(field_types(Assumptions))
    of_problem = fields[fields.index("gap") :]
    wanted = tuple(name for name in fields if name not in of_problem)
    add_fields(parser.add_argument_group("the plan"), Assumptions, {}, skip=tuple(of_problem))
    add_fields(parser.add_argument_group("what is assumed of the problem"), Assumptions, {}, skip=wanted)
    add_fields(parser.add_argument_group("or what is measured of it"), Pilot, {})
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object, and nothing else")
    output.add_argument("--out", metavar="FILE", help="draw the costs against λ: .png, .svg or .pdf")
    parser.set_defaults(command=plan)


def plan(args: argparse.Namespace) -> int:
    """Make the plans, draw them if asked to, print them."""
    given = vars(args)
    pilot = build(Pilot, {name: given[name] for name in field_types(Pilot) if name in given}, "the pilot")
    values = {name: given[name] for name in field_types(Assumptions) if name in given}
    assumed, estimates = build(Assumptions, values, "the plan"), None
    if pilot.pilot:
        assumed, estimates = _measured(pilot, assumed, values)
    plans = make_plans(assumed)
    figure = None
    if args.out:
        from mfpo.reporting.plans import save_plan_figure

        figure = save_plan_figure(assumed, args.out)
    if args.json:
        tell(_as_json(assumed, plans, figure) | {"pilot": estimates})
        return 0
    if estimates:
        print(_pilot_text(pilot, estimates, "gap" in values))
    print(_heading(assumed))
    print(table(plans))
    if len(plans) > 1 and all(plan.local_steps == plan.trajectories == 1 for plan in plans):
        print("So few steps, compared with N², leave no trade: K and D round to 1 whatever λ is.")
    if figure:
        print(figure)
    return 0


def _measured(pilot: Pilot, assumed: Assumptions, given: dict[str, Any]) -> tuple[Assumptions, dict[str, Any]]:
    """The assumptions with estimates in place of defaults, and the estimates."""
    from mfpo.runs import machine

    machine.prepare()
    from mfpo.runs.pilot import estimate

    estimates = estimate(pilot, assumed.gamma)._asdict()
    known = {name: value for name, value in estimates.items() if name in field_types(Assumptions)}
    return build(Assumptions, known | given, "the plan"), estimates


def _pilot_text(pilot: Pilot, found: dict[str, Any], gap_given: bool) -> str:
    of_gap = "" if gap_given else "; the gap is not measured: give --gap"
    return (
        f"{pilot.pilot}, {found['pilot_trajectories']:,} trajectories: σ_g = {found['sigma']:.4g}, L̃ = "
        f"{found['smoothness']:.4g}, σ_w = {found['sigma_w']:.2g} (steps of {found['step']:.2g}), H = "
        f"{found['horizon']:,}, d = {found['parameters']:,}{of_gap}"
    )


def _heading(a: Assumptions) -> str:
    agents = "1 agent" if a.agents == 1 else f"{a.agents:,} agents"
    source = "" if a.smoothness else " (the lemmas' worst case)"
    return (
        f"{agents}, ε = {a.target_eps:g}; L̃ = {a.overall_smoothness:.4g}{source}, σ_g = {a.sigma:.4g}, "
        f"gap {a.gap:g}; bound: {a.bound}; costs are per agent"
    )


def table(plans: Sequence[Plan]) -> str:
    """A line per plan, with every λ that asks for it: K and D are whole numbers, so several may ask for the same."""
    from mfpo.reporting.tables import markdown

    head = ("λ", "K", "D", "D̃", "rounds", "trajectories", "steps, at most", "up", "down", "α", "1-ν")
    asked: dict[Plan, list[float]] = {}
    for p in plans:
        asked.setdefault(p._replace(lam=None), []).extend([] if p.lam is None else [p.lam])
    lines = [
        (
            ", ".join(f"{lam:g}" for lam in lambdas) or "–",
            f"{p.local_steps:,}",
            f"{p.trajectories:,}",
            f"{p.initial_trajectories:,}",
            f"{p.rounds:,}",
            f"{p.trajectories_per_agent:,}",
            f"{p.env_steps_per_agent:,}",
            bytes_text(p.bytes_up),
            bytes_text(p.bytes_down),
            f"{p.stepsize:.2e}",
            f"{1 - p.momentum:.2e}",
        )
        for p, lambdas in asked.items()
    ]
    return markdown(head, lines)


def _as_json(a: Assumptions, plans: Sequence[Plan], figure: object) -> dict[str, Any]:
    from mfpo.config import as_dict

    assumed = as_dict(a) | {"smoothness": a.overall_smoothness}
    rows = [{"lambda" if name == "lam" else name: value for name, value in p._asdict().items()} for p in plans]
    return {"assumptions": assumed, "plans": rows, "figure": str(figure) if figure else None}
