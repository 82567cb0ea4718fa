"""An environment of your own, in its own file: keep a room at 21 °C through a winter day.

    mfpo train examples.heating:Heating-v0 --agents 10 --world insulation=0.5..2

Every agent heats its own room; how well a room keeps its warmth differs from one to the next, and none of them tells
the others what it measured.
"""

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

TARGET = 21.0  # °C
STEP = 0.25  # hours


class Heating(gymnasium.Env):
    """See the room, the weather and the time of day; heat with 0 .. 100 % of the power; pay for discomfort and fuel."""

    observation_space = spaces.Box(-5.0, 5.0, (4,), np.float32)
    action_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def __init__(self, insulation: float = 1.0, power: float = 12.0) -> None:
        """`insulation` in hours until a third of the warmth is left, times ten; `power` in degrees per hour."""
        self.insulation, self.power = insulation, power
        self.room = self.outside = self.hour = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """A morning: the room is cold."""
        super().reset(seed=seed)
        self.hour = 0.0
        self.room, self.outside = self.np_random.uniform(8, 18), self.np_random.uniform(-8, 4)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """A quarter of an hour."""
        heat = float(action[0])
        leak = (self.room - self.outside) / (10 * self.insulation)
        self.room += STEP * (self.power * heat - leak) + self.np_random.normal(0, 0.05)
        self.outside += self.np_random.normal(0, 0.2)
        self.hour += STEP
        reward = -0.1 * abs(self.room - TARGET) - 0.05 * heat
        return self._observe(), reward, False, False, {}

    def _observe(self) -> np.ndarray:
        angle = 2 * math.pi * self.hour / 24
        seen = [(self.room - TARGET) / 10, self.outside / 10, math.sin(angle), math.cos(angle)]
        return np.array(seen, np.float32)


gymnasium.register("Heating-v0", entry_point=Heating, max_episode_steps=96)
