"""Blocks of the pages that tell of single runs: those under results/runs, results/search and results/compare."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from mfpo.reporting.comparison import table_of
from mfpo.reporting.records import Record, load_record
from mfpo.reporting.tables import markdown

RESULTS = Path(__file__).parent.parent / "results"
SOLVED = 475.0


def records(pattern: str, folder: str = "runs") -> list[Record]:
    """The committed runs whose folder matches."""
    return [load_record(path) for path in sorted((RESULTS / folder).glob(pattern))]


def rounds_to(rows: list[dict[str, Any]], score: float) -> float:
    """The first round whose mean return reaches the score; nan if none does."""
    return next((float(row["round"]) for row in rows if row["return_mean"] >= score), float("nan"))


def scores() -> str:
    """The two environments at default settings, next to the paper."""
    rows = []
    for env, folder, solved_at, printed in (
        ("CartPole-v1", "cartpole-seed*", SOLVED, "500.0 ± 0.0"),
        ("Pendulum-v1", "pendulum-seed*", -200.0, "−115.5 ± 51.4"),
    ):
        runs = records(folder)
        means = [run.summary["evaluation"]["mean"] for run in runs]
        episodes = runs[0].summary["evaluation"]["episodes"]
        solved = [rounds_to(run.rows, solved_at) for run in runs]
        rows.append(
            (
                env,
                f"{np.mean(means):.1f}".replace("-", "−"),
                f"{min(means):.1f} … {max(means):.1f}".replace("-", "−"),
                f"{len(runs)} seeds × {episodes:,} episodes",
                f"{np.mean(solved):.1f} (worst {max(solved):.0f}) to {solved_at:.0f}".replace("-", "−"),
                printed,
            )
        )
    return markdown(("environment", "score", "worst … best seed", "measured on", "rounds", "the paper"), rows)


def paper() -> str:
    """The printed settings, run literally."""
    names = {"paper": "1e-4 × 0.99^t (decreasing, as the text says)", "paper-growing": "1e-4 × 0.99^−t (as printed)"}
    rows = []
    for run in records("paper*"):
        last = run.summary.get("evaluation", {}).get("mean")
        best = max(row["return_mean"] for row in run.rows) if run.rows else float("nan")
        outcome = f"{last:.1f}" if last is not None else f"not finite in round {len(run.rows) + 1}"
        first = f"{run.rows[0]['return_mean']:.1f}" if run.rows else "–"
        cells = (run.settings["env"], names[run.settings["preset"]], first, f"{best:.1f}" if run.rows else "–", outcome)
        rows.append(tuple(cell.replace("-1", "−1") if i > 1 else cell for i, cell in enumerate(cells)))
    return markdown(("environment", "stepsize", "round 1", "best round", "final score"), rows)


def speed(name: str) -> str:
    """The figures of a benchmark."""
    values = json.loads((RESULTS / f"{name}.json").read_text())
    return markdown(("what", "measured"), [(name, f"{value:,}") for name, value in values.items()])


def search(name: str) -> str:
    """What was tried: the average of the training episodes on the way, and the score of the final policy."""
    lines = []
    for run in records(f"{name}-*", "search"):
        at = {row["env_steps"]: row["return_mean"] for row in run.rows}
        score = run.summary.get("evaluation", {})
        judged = score and run.summary["rounds"] == len(run.rows)
        lines.append(
            (
                run.path.name.removeprefix(f"{name}-"),
                str(run.settings["seed"]),
                *(f"{at[steps]:,.0f}" if steps in at else "–" for steps in (1_000_000, 2_000_000, 4_000_000)),
                f"{run.rows[-1]['return_mean']:,.0f} at {run.rows[-1]['env_steps'] / 1e6:.1f} million",
                f"{score['mean']:,.0f} ± {score['std']:,.0f}" if judged else "–",
            )
        )
    return markdown(("trial", "seed", "1 million", "2 million", "4 million", "at the end", "final policy"), lines)


ABLATED = {
    "MFPO": "mfpo",
    "MFPO, longer": "longer",
    "MFPO, longest": "longest",
    "ν = 0": "no-momentum",
    "heavy-ball": "heavy-ball",
}
EARLIER = {
    "MFPO": "earlier-mfpo",
    "MFPO, γ = 0.995": "earlier-gamma995",
    "MFPO, longer": "earlier-longer",
    "MFPO, longest": "earlier-longest",
    "ν = 0": "earlier-no-momentum",
    "heavy-ball": "earlier-heavy-ball",
}
BASELINES = {
    "MFPO": "mfpo",
    "Fed-SAC": "fed_sac",
    "FedAvg-PPO": "fedavg_ppo",
    "FedPG-BR": "fedpg_br",
    "Fed-DQN": "fed_dqn",
}
LOCOMOTION, ATARI = ("Hopper-v5", "HalfCheetah-v5"), ("ALE/Pong-v5", "ALE/Breakout-v5")
PAPER = {
    "Hopper-v5": {"MFPO": "3,031 ± 69", "Fed-SAC": "2,446 ± 377", "FedPG-BR": "1,998 ± 298", "Fed-DQN": "1,855 ± 295"},
    "HalfCheetah-v5": {
        "MFPO": "10,795 ± 520",
        "Fed-SAC": "8,562 ± 775",
        "FedPG-BR": "6,719 ± 754",
        "Fed-DQN": "6,056 ± 843",
    },
    "ALE/Pong-v5": {"MFPO": "20.8 ± 0.2", "Fed-SAC": "18.8 ± 2.2", "FedPG-BR": "10.5 ± 9.2", "Fed-DQN": "14.6 ± 2.5"},
    "ALE/Breakout-v5": {
        "MFPO": "336.5 ± 42.1",
        "Fed-SAC": "286.2 ± 54.3",
        "FedPG-BR": "255.6 ± 47.8",
        "Fed-DQN": "128.1 ± 51.6",
    },
}


def against_paper(methods: dict[str, str], environments: tuple[str, ...]) -> str:
    """The runs of each method at default settings, next to the paper."""
    rows = []
    for env in environments:
        digits = 0 if env in LOCOMOTION else 1
        for method, folder in methods.items():
            runs = records(f"{env.split('/')[-1].split('-')[0].lower()}-{folder}-seed*")
            if not runs:
                continue
            means = [run.summary["evaluation"]["mean"] for run in runs]
            steps = max(run.rows[-1]["env_steps"] for run in runs)
            rows.append(
                (
                    env,
                    method,
                    f"{np.mean(means):,.{digits}f}".replace("-", "−"),
                    " ".join(f"{mean:,.{digits}f}" for mean in means).replace("-", "−"),
                    f"{steps / 1e6:.1f} million",
                    PAPER[env].get(method, ""),
                )
            )
    return markdown(("environment", "method", "score", "seeds", "environment steps, all agents", "the paper"), rows)


def untuned() -> str:
    """Environments that nothing was tuned for, next to acting at random."""
    random = json.loads((RESULTS / "random.json").read_text())["mean"]
    rows = []
    for run in records("untuned-*"):
        env = run.settings["env"]
        steps, score = run.rows[-1]["env_steps"], run.summary["evaluation"]["mean"]
        cells = (f"{random[env]:.1f}", f"{run.rows[0]['return_mean']:.1f}", f"{score:.1f}")
        rows.append(
            (f"`{env}`", *(cell.replace("-", "−") for cell in cells), f"{steps:,}", str(run.settings["agents"]))
        )
    header = ("environment", "at random", "first round", "final policy", "environment steps", "agents")
    return markdown(header, rows)


def comparison(name: str, solved: float) -> str:
    """All algorithms on one environment, and what it took them to a score."""
    lines = []
    for row in table_of([run.path for run in records("*", f"compare/{name}")]):
        runs = records(f"{row['algorithm']}-*", f"compare/{name}")
        costs = [cost_to(run.rows, solved) for run in runs]
        reached = [cost for cost in costs if cost is not None]
        low, high = row["interval"]
        lines.append(
            (
                row["algorithm"],
                f"{row['mean']:.1f}",
                f"{row['iqm']:.1f} [{low:.1f}, {high:.1f}]",
                f"{min(row['scores']):.1f}",
                f"{np.mean(reached):,.0f} ({len(reached)} of {len(runs)})" if reached else f"none of {len(runs)}",
                f"{row['trajectories_per_agent']:,.0f}",
                f"{(row['bytes_up'] + row['bytes_down']) / 1e6:,.1f}",
            )
        )
    to_solve = f"trajectories per agent to {solved:.0f}".replace("-", "−")
    head = ("algorithm", "score", "IQM", "worst seed", to_solve, "in all", "MB, all agents")
    return markdown(head, [tuple(cell.replace("-", "−") for cell in line) for line in lines])


def cost_to(rows: list[dict[str, Any]], score: float) -> float | None:
    """The trajectories per agent after which the mean return of a round reaches the score."""
    return next((row["trajectories_per_agent"] for row in rows if row["return_mean"] >= score), None)
