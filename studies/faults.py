"""Three of ten agents attack on CartPole, each attack in turn; and agents that are often not there.

python studies/faults.py        # can be stopped and started again; writes results/faults.jsonl
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mfpo import algorithms, envs
from mfpo.errors import Diverged
from mfpo.federation import ATTACKS, Faults, evaluate, make_engine, robust
from mfpo.runs.settings import resolve

RESULTS = Path(__file__).parent.parent / "results" / "faults.jsonl"
ENV, AGENTS, LIARS, EPISODES = "CartPole-v1", 10, 3, 300
METHODS = {  # name: algorithm, aggregation, rounds
    "MFPO, mean": ("mfpo", "own", 15),
    "MFPO, median": ("mfpo", "median", 15),
    "FedPG-BR": ("fedpg_br", "own", 60),
    "MFPO, geometric median": ("mfpo", "geometric-median", 15),
    "MFPO, FedPG-BR's filter": ("mfpo", "fedpg-br", 15),
}
ABSENT = Faults(participation=0.5, dropout=0.3)
SEEDS = (0, 1, 2)


def jobs() -> Iterator[tuple[dict[str, Any], Faults, int]]:
    """(method, attack) of every cell, what goes wrong, and for how many rounds."""
    yield {"method": "MFPO, mean", "attack": "half asked, 30 % of them absent"}, ABSENT, 40
    for method, (_, _, rounds) in METHODS.items():
        yield {"method": method, "attack": "none"}, Faults(), rounds
        for attack in ATTACKS:
            yield {"method": method, "attack": attack}, Faults(LIARS, attack), rounds


def run(method: str, faults: Faults, seed: int, rounds: int) -> dict[str, Any]:
    """The curve of one run, the score of its last policy, and how well lies were told from truth."""
    name, rule, _ = METHODS[method]
    env = envs.make(ENV)
    _, config = resolve({"env": ENV, "algorithm": name}, {})
    algorithm = robust(algorithms.make(name, config, env.spec, AGENTS), rule, AGENTS, LIARS)
    engine = make_engine("inprocess", algorithm, env, AGENTS, seed, 0, faults)
    state, curve, found = engine.start(), [], []
    try:
        for number in range(1, rounds + 1):
            state, log = engine.round(state, number)
            curve.append(round(float(np.nanmean(log.returns)), 2))
            found.append([log.merge.get(which, np.nan) for which in ("filter_precision", "filter_recall")])
    except Diverged:
        return {"curve": curve, "evaluation": None, "precision": None, "recall": None}
    score = evaluate(algorithm, env, algorithm.actor(state.server), seed, EPISODES).mean()
    precision, recall = (_mean(x) for x in np.array(found).T)
    return {"curve": curve, "evaluation": round(float(score), 2), "precision": precision, "recall": recall}


def _mean(values: np.ndarray) -> float | None:
    return None if np.isnan(values).all() else round(float(np.nanmean(values)), 3)


def main() -> None:
    """Run what is missing in the file."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    done = [json.loads(line)["job"] for line in lines]
    for cell, faults, rounds in jobs():
        for seed in SEEDS:
            job = cell | {"seed": seed}
            if job in done:
                continue
            row = {"job": job} | run(cell["method"], faults, seed, rounds)
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(job, row["evaluation"], row["precision"], row["recall"], flush=True)


if __name__ == "__main__":
    main()
