"""A game of catch from frames: shows in minutes what Pong shows in hours. Prints the share of balls caught per round.

    python studies/catch.py mfpo agents=2 rounds=30 stepsize=3e-4
    python studies/catch.py fedavg_ppo agents=1 rounds=16 epochs=3

Settings are those of the algorithm; the run is added to results/search/catch.jsonl. Who acts at random catches one ball
in six.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from mfpo import algorithms
from mfpo.config import build
from mfpo.federation import make_engine
from mfpo.runs import machine
from mfpo.types import Discrete, EnvSpec, HostedEnv, Outcome

EXAMPLES = (__doc__ or "").split("\n\n")[1]
ROWS = Path(__file__).parent.parent / "results" / "search" / "catch.jsonl"
SIZE, BALLS, FALL, REACH, STRIDE = 84, 8, 3, 6, 3
MOVES = STRIDE * np.array([0, 0, -1, 1, -1, 1])  # as in Pong two actions each do the same
SPEC = EnvSpec("catch", (4, SIZE, SIZE), Discrete(len(MOVES)), horizon=300, stack=4)
SHARED = {
    "hidden": [],
    "value_hidden": [],
    "activation": "relu",
    "gamma": 0.95,
    "gae_lambda": 0.9,
    "trajectories": 2,
    "env_steps": 100,
    "entropy": 0.01,
    "stepsize_decay": 1.0,
    "value_updates": 10,
    "value_samples": 100,
}
OWN = {
    "mfpo": {"step": "adam", "adam_beta1": 0.0, "adam_beta2": 0.99, "advantage_cap": 3.0, "local_steps": 20},
    "fedavg_ppo": {"clip": 0.1, "epochs": 3, "minibatch": 128, "local_steps": 10},
}


class Catch:
    """Balls fall one after the other, to be met by a paddle at the bottom: 1 if it is there, -1 if not."""

    def __init__(self, n: int) -> None:
        self.rng: dict[int, np.random.Generator] = {}
        self.x, self.y, self.speed, self.paddle = (np.zeros(n, int) for _ in range(4))
        self.left, self.total = np.zeros(n, int), np.zeros(n)

    def drop(self, i: int) -> None:
        self.x[i], self.y[i], self.speed[i] = self.rng[i].integers(4, SIZE - 4), 4, self.rng[i].integers(-3, 4)

    def show(self, which: np.ndarray) -> np.ndarray:
        frames = np.full((len(which), SIZE, SIZE), 87, np.uint8)
        frames[:, SIZE - 4 :] = 140
        for frame, i in zip(frames, which, strict=True):
            frame[self.y[i] : self.y[i] + 3, self.x[i] : self.x[i] + 2] = 236
            frame[SIZE - 6 : SIZE - 4, max(self.paddle[i] - 5, 0) : self.paddle[i] + 5] = 180
        return frames

    def reset(self, which: np.ndarray, seeds: np.ndarray | None) -> np.ndarray:
        for row, i in enumerate(which):
            if seeds is not None:
                self.rng[i] = np.random.default_rng(int(seeds[row]))
            self.left[i], self.total[i], self.paddle[i] = BALLS, 0, SIZE // 2
            self.drop(i)
        return self.show(which)

    def step(self, which: np.ndarray, action: np.ndarray) -> Outcome:
        self.paddle[which] = np.clip(self.paddle[which] + MOVES[action], 5, SIZE - 5)
        self.y[which] += FALL
        self.x[which] += self.speed[which]
        outside = (self.x[which] < 2) | (self.x[which] > SIZE - 4)
        self.speed[which] = np.where(outside, -self.speed[which], self.speed[which])
        self.x[which] = np.clip(self.x[which], 2, SIZE - 4)
        down = self.y[which] >= SIZE - 8
        met = np.where(np.abs(self.x[which] - self.paddle[which]) <= REACH, 1.0, -1.0)
        reward = np.where(down, met, 0.0).astype(np.float32)
        self.total[which] += reward
        self.left[which] -= down
        over = self.left[which] == 0
        for i in which[down]:
            self.drop(i)
        score = np.where(over, self.total[which], np.nan)
        return Outcome(self.show(which), reward, over, np.zeros(len(which), bool), score)

    def close(self) -> None:
        pass


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def main() -> None:
    """Train, print, keep."""
    if not sys.argv[1:] or not all("=" in word for word in sys.argv[2:]):
        sys.exit(f"usage: catch.py ALGORITHM [SETTING=VALUE …], for example\n{EXAMPLES}")
    name, given = sys.argv[1], dict(word.split("=", 1) for word in sys.argv[2:])
    settings: dict[str, Any] = {**SHARED, **OWN.get(name, {}), **{k: _read(v) for k, v in given.items()}}
    row: dict[str, Any] = {"algorithm": name, "settings": dict(settings), "curve": []}
    row |= {"standardised_frames": True, "centred_units": True, "centred_gradients": True}
    agents, rounds = settings.pop("agents", 2), settings.pop("rounds", 30)
    machine.prepare()
    algorithm = algorithms.make(name, build(algorithms.config_class(name), settings, "here"), SPEC, agents)
    env = HostedEnv(SPEC, None, lambda worlds, learning=False: Catch(len(worlds)))
    engine = make_engine("inprocess", algorithm, env, agents, seed=0)
    state, steps, at = engine.start(), 0, time.process_time()
    for number in range(1, rounds + 1):
        state, log = engine.round(state, number)
        steps += int(log.lengths.sum())
        caught = round((float(np.nanmean(log.returns)) / BALLS + 1) / 2, 3)
        row["curve"].append([steps, caught])
        print(f"{steps:>9,} steps  {caught:6.1%} caught  {time.process_time() - at:5.0f} CPU-s", flush=True)
    with ROWS.open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
