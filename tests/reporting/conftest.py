"""Run directories made by hand: reports read plain files, so nothing has to be trained."""

import json
from pathlib import Path

import numpy as np
import pytest
import tomli_w

SETTINGS = {
    "env": "CartPole-v1",
    "algorithm": "mfpo",
    "preset": "default",
    "agents": 10,
    "rounds": 30,
    "seed": 0,
    "engine": "inprocess",
    "devices": 0,
    "evaluation_episodes": 100,
}
CONFIG = {"local_steps": 10, "trajectories": 20, "momentum": 0.8, "hidden": [16, 16]}


def write_run(path: Path, *, rounds: int = 30, finished: bool = True, speed: float = 6.0, **changes: object) -> Path:
    """A run that learned along a smooth curve; `changes` go to the settings or the config, wherever they belong."""
    settings = SETTINGS | {"rounds": rounds} | {k: v for k, v in changes.items() if k in SETTINGS}
    config = CONFIG | {k: v for k, v in changes.items() if k not in SETTINGS}
    path.mkdir(parents=True)
    (path / "config.toml").write_text(tomli_w.dumps({"run": settings, settings["algorithm"]: config}))
    rng = np.random.default_rng(settings["seed"])
    rows = []
    for t in range(1, rounds + 1):
        level = 500 / (1 + np.exp(-(t - speed) / 1.5)) - 15 * rng.random() * (t < 14)
        spread = 110 * np.exp(-(((t - speed) / 4) ** 2)) + 2 * (t < 20)
        rows.append(
            {
                "round": t,
                "env_steps": int(70_000 * t + 900 * settings["seed"]),
                "trajectories_per_agent": 200 * t,
                "bytes_up": 31_000 * t,
                "bytes_down": 29_000 * t,
                "return_mean": float(level),
                "return_std": float(spread),
                "return_min": float(max(8, level - 2.5 * spread)),
                "return_max": 500.0,
                "length_mean": float(level),
                "drift": 0.1,
                "seconds": 0.4,
                "cpu_seconds": 0.7,
            }
        )
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        evaluation = {"mean": 500.0, "std": 0.0, "episodes": 100, "returns": [500.0] * 100}
        (path / "summary.json").write_text(json.dumps({"evaluation": evaluation}))
    return path


@pytest.fixture
def make_run(tmp_path):
    """Write a run into the test's own directory; the name is unique unless given."""
    made: list[Path] = []

    def make(name: str = "", **changes: object) -> Path:
        made.append(write_run(tmp_path / (name or f"run{len(made)}"), **changes))
        return made[-1]

    return make
