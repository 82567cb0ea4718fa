"""Do more agents learn from fewer trajectories each? CartPole, 1 to 50 agents, batches so small that noise counts.

For every number of agents: with the stepsize of the preset, and with the best of four, chosen on other seeds.

    python studies/speedup.py       # can be stopped and started again; runs/speedup, then results/speedup.json
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from mfpo.reporting.records import Record, load_record
from mfpo.reporting.sweep import cost_to_reach
from mfpo.runs import machine, sweep
from mfpo.runs.entries import Entry
from mfpo.runs.settings import resolve

ROOT = Path(__file__).parent.parent
RUNS, RESULTS = ROOT / "runs" / "speedup", ROOT / "results" / "speedup.json"
AGENTS = (1, 2, 5, 10, 20, 50)
FIXED, STEPSIZES = 0.1, (0.05, 0.1, 0.2, 0.4)
SETTINGS: dict[str, Any] = {"env": "CartPole-v1", "rounds": 40, "evaluation_episodes": 200}
BATCH = {"local_steps": 4, "trajectories": 5}
TRIALS, SEEDS = range(3), range(3, 13)
SOLVED, EVERY = 475.0, 2


def entry(agents: int, stepsize: float, seed: int) -> Entry:
    """One run. The runs that count also measure the gradient, which changes nothing of what they learn."""
    measuring = {"reference_every": EVERY, "reference_trajectories": 500} if seed in SEEDS else {}
    settings, config = resolve(
        {**SETTINGS, **measuring, "agents": agents, "seed": seed}, {**BATCH, "stepsize": stepsize}
    )
    return Entry(RUNS / f"stepsize={stepsize:g}" / f"agents={agents}" / f"seed-{seed}", settings, config)


def run(points: dict[float, list[Entry]]) -> None:
    """Train what is missing of them."""

    def tell(entry: Entry, done: Any) -> None:
        print(entry.path.relative_to(RUNS), round(done.summary["evaluation"]["mean"], 1), flush=True)

    nothing = lambda *_: None  # noqa: E731
    sweep.run(sweep.Sweep(RUNS, "agents", points), sweep.Watch(nothing, nothing, tell, print))


def cost(record: Record) -> float:
    """Trajectories per agent until training episodes return 475; without, twice those there were."""
    reached = cost_to_reach(record, SOLVED, "trajectories_per_agent")
    return 2.0 * record.rows[-1]["trajectories_per_agent"] if reached is None else reached


def best_stepsize(agents: int) -> float:
    """The stepsize with the least mean cost over the trials."""
    means = {
        stepsize: np.mean([cost(load_record(entry(agents, stepsize, seed).path)) for seed in TRIALS])
        for stepsize in STEPSIZES
    }
    return min(means, key=means.__getitem__)


def outcome(agents: int, stepsize: float) -> dict[str, Any]:
    """What the runs that count came to: for every seed the returns of all rounds and the squared gradients measured."""
    records = [load_record(entry(agents, stepsize, seed).path) for seed in SEEDS]
    name = "reference_gradient_norm_squared"
    return {
        "agents": agents,
        "stepsize": stepsize,
        "returns": [[round(row["return_mean"], 1) for row in record.rows] for record in records],
        "gradients": [[round(row[name], 3) for row in record.rows if name in row] for record in records],
        "scores": [round(record.summary["evaluation"]["mean"], 1) for record in records],
    }


def main() -> None:
    """Search, run, write."""
    machine.prepare()
    for stepsize in STEPSIZES:
        run({n: [entry(n, stepsize, seed) for seed in TRIALS] for n in AGENTS})
    tuned = {n: best_stepsize(n) for n in AGENTS}
    for chosen in (dict.fromkeys(AGENTS, FIXED), tuned):
        run({n: [entry(n, chosen[n], seed) for seed in SEEDS] for n in AGENTS})
    document = {
        "batch": BATCH,
        "measured_every": EVERY,
        "fixed": [outcome(n, FIXED) for n in AGENTS],
        "tuned": [outcome(n, tuned[n]) for n in AGENTS],
    }
    RESULTS.write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
