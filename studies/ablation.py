"""Where does the importance-weighted correction earn its keep? MFPO against its own ablations.

Every method gets the same search: twelve trials, whose step rules and stepsizes are the same for all methods, each with
values of the choices that only some have (momentum, kind and cap of the weights). A trial is scored by its mean return
over the search rounds; the best one is then run on ten other seeds for thirty rounds.

    python studies/ablation.py search CartPole-v1     # then: final CartPole-v1; both can be stopped and started again
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mfpo import algorithms, envs
from mfpo.algorithms.mfpo import Config
from mfpo.config import build
from mfpo.errors import Diverged
from mfpo.federation import evaluate, make_engine
from mfpo.types import Algorithm

RESULTS = Path(__file__).parent.parent / "results" / "ablation"
AGENTS, LOCAL_STEPS, EPISODES = 10, 10, 1000
SEARCH_ROUNDS, SEARCH_SEEDS = 12, (1000,)
FINAL_ROUNDS, FINAL_SEEDS = 30, tuple(range(10))
BATCHES = (5, 20, 2)
TRIALS: dict[
    str, tuple[float, ...]
] = {  # stepsizes by step rule, in an order unrelated to the choices they are paired with
    "normalised": (0.1, 0.3),
    "adam": (0.02, 0.04, 0.08, 0.01),
    "natural": (0.12, 0.08, 0.27, 0.18, 0.4, 0.05),
}
FLOOR = {"CartPole-v1": 8.0, "Pendulum-v1": -1800.0}  # what a diverged run is worth from then on
COMMON = {
    "CartPole-v1": {"baseline": "time", "hidden": [16, 16], "activation": "relu", "normalise_advantages": False},
    "Pendulum-v1": {"baseline": "value", "hidden": [32, 32], "value_hidden": [32, 32], "value_updates": 10},
}
SHARED = {"local_steps": LOCAL_STEPS, "stepsize_decay": 0.99, "normalise_observations": False, "gae_lambda": 0.95}
MOMENTUM: dict[str, tuple[Any, ...]] = {"momentum": (0.5, 0.8, 0.3, 0.9)}
WEIGHTS: dict[str, tuple[Any, ...]] = {
    "weights": ("action", "decision", "trajectory"),
    "weight_cap": (2.0, 2.0, 2.0, 1.0, 1.0, 1.0),
}
METHODS: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {  # fixed settings, choices
    "MFPO": ({}, MOMENTUM | WEIGHTS),
    "FedAvg-PG": ({"momentum": 0.0}, {}),
    "heavy-ball": ({"correction": "none"}, MOMENTUM),
    "no weights": ({"weights": "none"}, MOMENTUM),
    "no server step": ({"server_adjustment": False}, MOMENTUM | WEIGHTS),
}


def trials(method: str) -> list[dict[str, Any]]:
    """The trials of a method: the j-th stepsize of a rule goes with the j-th value of every choice, in turns."""
    fixed, choices = METHODS[method]
    return [
        {"step": step, "stepsize": stepsize}
        | fixed
        | {name: values[j % len(values)] for name, values in choices.items()}
        for step, stepsizes in TRIALS.items()
        for j, stepsize in enumerate(stepsizes)
    ]


def run(env_id: str, algorithm: Algorithm, seed: int, rounds: int) -> dict[str, Any]:
    """The curve of one run, and the score of its last policy unless it diverged."""
    env = envs.make(env_id)
    engine = make_engine("inprocess", algorithm, env, AGENTS, seed)
    state, curve = engine.start(), []
    try:
        for number in range(1, rounds + 1):
            state, log = engine.round(state, number)
            curve.append(round(float(log.returns.mean()), 2))
    except Diverged:
        return {"curve": curve + [FLOOR[env_id]] * (rounds - len(curve)), "evaluation": FLOOR[env_id], "diverged": True}
    score = evaluate(algorithm, env, algorithm.actor(state.server), seed, EPISODES).mean()
    return {"curve": curve, "evaluation": round(float(score), 2), "diverged": False}


def read(path: Path) -> list[dict[str, Any]]:
    """The rows written so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def extend(path: Path, env_id: str, jobs: Iterator[tuple[dict[str, Any], dict[str, Any], int, int]]) -> None:
    """Run what is missing in the file. A job is (name of the row, settings, seed, rounds)."""
    done = {json.dumps([row["job"], row["settings"]], sort_keys=True) for row in read(path)}
    path.parent.mkdir(parents=True, exist_ok=True)
    made: tuple[Any, Any] = (None, None)
    for name, settings, seed, rounds in jobs:
        job = name | {"seed": seed}
        if json.dumps([job, settings], sort_keys=True) in done:
            continue
        if made[0] != settings:  # seeds of one setting share the compiled program
            config = build(Config, SHARED | COMMON[env_id] | settings, "the study")
            made = settings, algorithms.make("mfpo", config, envs.make(env_id).spec, AGENTS)
        row = {"job": job, "settings": settings} | run(env_id, made[1], seed, rounds)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(job, settings, np.mean(row["curve"]).round(1), row["evaluation"], flush=True)


def search_jobs(batches: Sequence[int]) -> Iterator[tuple[dict[str, Any], dict[str, Any], int, int]]:
    """Every trial of every method at every batch size."""
    for d in batches:
        for method in METHODS:
            for i, trial in enumerate(trials(method)):
                for seed in SEARCH_SEEDS:
                    yield {"method": method, "D": d, "trial": i}, {"trajectories": d} | trial, seed, SEARCH_ROUNDS


def best(rows: list[dict[str, Any]], method: str, d: int) -> dict[str, Any]:
    """The settings with the best mean return over search rounds and seeds."""
    scores: dict[str, list[float]] = {}
    for row in rows:
        if row["job"]["method"] == method and row["job"]["D"] == d:
            scores.setdefault(json.dumps(row["settings"]), []).append(float(np.mean(row["curve"])))
    winner: dict[str, Any] = json.loads(max(scores, key=lambda settings: np.mean(scores[settings])))
    return winner


def final_jobs(
    rows: list[dict[str, Any]], batches: Sequence[int]
) -> Iterator[tuple[dict[str, Any], dict[str, Any], int, int]]:
    """The winner of every search, on fresh seeds."""
    for d in batches:
        for method in METHODS:
            for seed in FINAL_SEEDS:
                yield {"method": method, "D": d}, best(rows, method, d), seed, FINAL_ROUNDS


def main() -> None:
    """Run one stage for one environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("search", "final"))
    parser.add_argument("env", choices=tuple(COMMON))
    parser.add_argument("--trajectories", type=int, nargs="*", default=BATCHES, choices=BATCHES, help="only these D")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 1)  # one process per environment keeps both cores busy
    search = RESULTS / f"search-{options.env}.jsonl"
    if options.stage == "search":
        extend(search, options.env, search_jobs(options.trajectories))
    else:
        extend(RESULTS / f"final-{options.env}.jsonl", options.env, final_jobs(read(search), options.trajectories))


if __name__ == "__main__":
    main()
