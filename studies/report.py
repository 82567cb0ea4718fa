"""The tables and figures of the README and docs, made from what is committed under results/.

    python studies/report.py            # rewrites the marked blocks and the figures
    python studies/report.py --check    # fails if a block is not what the results say

A block is what stands between `<!-- results: NAME -->` and `<!-- end -->`.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mfpo.learning.planner import Assumptions
from mfpo.reporting.curves import figure
from mfpo.reporting.plans import plan_figure
from mfpo.reporting.records import Record, load_record
from mfpo.reporting.statistics import bootstrap_interval, iqm

ROOT = Path(__file__).parent.parent
RESULTS, IMAGES = ROOT / "results", ROOT / "docs" / "images"
DOCS = ("ablation", "analysis", "baselines", "environments", "faults", "presets")
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in DOCS),
)
SOLVED = 475.0
RATES = ("precision", "recall")
METHODS = ("MFPO", "FedAvg-PG", "heavy-ball", "no weights", "no server step")


def records(pattern: str, folder: str = "runs") -> list[Record]:
    """The committed runs whose folder matches."""
    return [load_record(path) for path in sorted((RESULTS / folder).glob(pattern))]


def rounds_to(rows: list[dict[str, Any]], score: float) -> float:
    """The first round whose mean return reaches the score; nan if none does."""
    return next((float(row["round"]) for row in rows if row["return_mean"] >= score), float("nan"))


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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
    return table(("environment", "score", "worst … best seed", "measured on", "rounds", "the paper"), rows)


def agents() -> str:
    """How many rounds and trajectories it takes with N agents."""
    groups: dict[int, list[Record]] = {}
    for run in [*records("agents*"), *records("cartpole-seed[012]")]:
        groups.setdefault(run.settings["agents"], []).append(run)
    rows = []
    for n, runs in sorted(groups.items()):
        rounds = np.array([rounds_to(run.rows, SOLVED) for run in runs])
        per_round = runs[0].rows[0]["trajectories_per_agent"]
        mean = float(np.mean(rounds))
        rows.append((str(n), f"{mean:.1f}", f"{mean * per_round:,.0f}", f"{mean * per_round * n:,.0f}", str(len(runs))))
    return table(("agents", "rounds to 475", "trajectories per agent", "trajectories in all", "seeds"), rows)


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
    return table(("environment", "stepsize", "round 1", "best round", "final score"), rows)


def speed() -> str:
    """The figures of benchmarks/speed.py."""
    values = json.loads((RESULTS / "speed.json").read_text())
    return table(("what", "measured"), [(name, f"{value:,}") for name, value in values.items()])


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
    return table(("trial", "seed", "1 million", "2 million", "4 million", "at the end", "final policy"), lines)


def locomotion() -> str:
    """MuJoCo at default settings and the same without momentum and without the correction."""
    rows = []
    for env, name, printed in (
        ("Hopper-v5", "hopper", "3,030.9 ± 68.8"),
        ("HalfCheetah-v5", "halfcheetah", "10,794.8 ± 520.2"),
    ):
        for method, folder in (("MFPO", "mfpo"), ("ν = 0", "no-momentum"), ("heavy-ball", "heavy-ball")):
            runs = records(f"{name}-{folder}-seed*")
            if not runs:
                continue
            means = [run.summary["evaluation"]["mean"] for run in runs]
            steps = max(run.rows[-1]["env_steps"] for run in runs)
            rows.append(
                (
                    env,
                    method,
                    f"{np.mean(means):,.0f}",
                    " ".join(f"{mean:,.0f}" for mean in means),
                    f"{steps / 1e6:.1f} million",
                    printed if method == "MFPO" else "",
                )
            )
    return table(("environment", "method", "score", "seeds", "environment steps, all agents", "the paper"), rows)


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
    return table(header, rows)


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

    return table(("attack", *methods), [(attack, *(cell(method, attack) for method in methods)) for attack in attacks])


def absent() -> str:
    """Learning although most agents are not there in most rounds."""
    rows = [json.loads(line) for line in (RESULTS / "faults.jsonl").read_text().splitlines()]
    found = [row for row in rows if "absent" in row["job"]["attack"]]
    return table(
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
    return table(("attack", *RATES), lines)


def comparison(name: str) -> str:
    """All algorithms on one environment."""
    rows = []
    found = records("*", f"compare/{name}")
    for algorithm in dict.fromkeys(run.settings["algorithm"] for run in found):
        runs = [run for run in found if run.settings["algorithm"] == algorithm]
        means = [run.summary["evaluation"]["mean"] for run in runs]
        solved = [
            next((r["trajectories_per_agent"] for r in run.rows if r["return_mean"] >= SOLVED), None) for run in runs
        ]
        low, high = bootstrap_interval(means, iqm)
        reached = [x for x in solved if x is not None]
        sent = np.mean([(run.summary["bytes_up"] + run.summary["bytes_down"]) / 1e6 for run in runs])
        rows.append(
            (
                algorithm,
                f"{np.mean(means):.1f}",
                f"{float(iqm(means)):.1f} [{float(low):.1f}, {float(high):.1f}]",
                f"{min(means):.1f}",
                f"{np.mean(reached):,.0f} ({len(reached)} of {len(runs)})" if reached else f"none of {len(runs)}",
                f"{np.mean([run.summary['trajectories_per_agent'] for run in runs]):,.0f}",
                f"{sent:,.1f}",
            )
        )
    head = ("algorithm", "score", "IQM", "worst seed", "trajectories per agent to 475", "in all", "MB, all agents")
    return table(head, rows)


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
    return table(header, lines)


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
    return table(("environment", "D", *METHODS), lines)


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
    return table(("quantity", "largest measured / bound", "in"), rows)


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
    return table(("constant", "assumed", "largest along the runs, exact"), rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "scores": scores,
    "agents": agents,
    "paper": paper,
    "speed": speed,
    "ablations": ablations,
    "locomotion": locomotion,
    "bounds": bounds,
    "constants": constants,
    "untuned": untuned,
    "faults": faults,
    "absent": absent,
    "caught": caught,
    "comparison cartpole": lambda: comparison("cartpole"),
    "search halfcheetah": lambda: search("halfcheetah"),
    "search hopper": lambda: search("hopper"),
    "ablation CartPole-v1": lambda: ablation("CartPole-v1"),
    "ablation Pendulum-v1": lambda: ablation("Pendulum-v1"),
}


def rewritten(text: str) -> str:
    """The page with every block made anew."""

    def block(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"<!-- results: {name} -->\n{BLOCKS[name]()}\n<!-- end -->"

    return re.sub(r"<!-- results: (.+?) -->.*?<!-- end -->", block, text, flags=re.DOTALL)


def figures() -> None:
    """The pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, env, threshold in (("cartpole", "CartPole-v1", SOLVED), ("pendulum", "Pendulum-v1", None)):
        paths = [run.path for run in records(f"{name}-seed*")]
        title = f"MFPO on {env}, 10 agents, {len(paths)} seeds"
        figure(paths, threshold=threshold, title=title).savefig(IMAGES / f"{name}.png", dpi=150)
    plan_figure(Assumptions(agents=20, target_eps=0.001)).savefig(IMAGES / "plan.png", dpi=150)


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = [page.name for page in PAGES if page.exists() and rewritten(page.read_text()) != page.read_text()]
    if check:
        print(f"not what the results say: {', '.join(stale)}" if stale else "the pages say what the results say")
        return 1 if stale else 0
    for page in PAGES:
        if page.exists():
            page.write_text(rewritten(page.read_text()))
    figures()
    return 0


if __name__ == "__main__":
    sys.exit(main())
