"""An environment whose step takes as long as it is told to, and holds Python's lock all the while."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Busy(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-1.0, 1.0, (8,))
    action_space = spaces.Discrete(3)

    def __init__(self, microseconds: float = 0.0) -> None:
        self.seconds = 1e-6 * microseconds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            pass
        return np.zeros(8, np.float32), 0.0, False, False, {}


gymnasium.register("Busy-v0", Busy, max_episode_steps=50)
