"""An environment of your own, in its own file: keep a room at 21 °C through a winter day.

    mfpo train examples.heating:Heating-v0 --agents 10 --world insulation=0.5..2 --out runs/heating
    mfpo play runs/heating

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
    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012

    def __init__(self, insulation: float = 1.0, power: float = 12.0, render_mode: str | None = None) -> None:
        """`insulation` in hours until a third of the warmth is left, times ten; `power` in degrees per hour."""
        self.insulation, self.power, self.render_mode = insulation, power, render_mode
        self.room = self.outside = self.hour = self.heat = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """A morning: the room is cold."""
        super().reset(seed=seed)
        self.hour = self.heat = 0.0
        self.room, self.outside = self.np_random.uniform(8, 18), self.np_random.uniform(-8, 4)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """A quarter of an hour."""
        self.heat = float(action[0])
        leak = (self.room - self.outside) / (10 * self.insulation)
        self.room += STEP * (self.power * self.heat - leak) + self.np_random.normal(0, 0.05)
        self.outside += self.np_random.normal(0, 0.2)
        self.hour += STEP
        reward = -0.1 * abs(self.room - TARGET) - 0.05 * self.heat
        return self._observe(), reward, False, False, {}

    def render(self) -> np.ndarray:
        """A thermometer outside and one in the house, with a mark at 21 °C; the heater glows as far as it is on."""
        y, x = np.mgrid[:160, :240]
        picture = np.full((160, 240, 3), (176, 206, 232), np.uint8)
        picture[abs(x - 160) < np.minimum(2 * y, 70)] = (222, 205, 180)  # the house
        picture[y > 148] = (110, 130, 100)  # the ground

        def draw(left: int, right: int, low: float, high: float, colour: tuple[int, int, int]) -> None:
            """A bar from `low` to `high`, in °C."""
            top, bottom = np.interp((high, low), (-15, 35), (140, 20)).astype(int)
            picture[top:bottom, left:right] = colour

        for left, celsius, colour in ((40, self.outside, (50, 100, 190)), (130, self.room, (200, 50, 40))):
            draw(left - 2, left + 18, -15, 35, (60, 60, 60))
            draw(left, left + 16, -15, 35, (255, 255, 255))
            draw(left, left + 16, -15, celsius, colour)
            draw(left - 8, left + 24, TARGET, TARGET + 0.5, (0, 0, 0))
        draw(175, 215, -15, 5, (60, 60, 60))  # the heater
        draw(175, 215, -15, -15 + 20 * self.heat, (250, 150, 20))
        return picture

    def _observe(self) -> np.ndarray:
        angle = 2 * math.pi * self.hour / 24
        seen = [(self.room - TARGET) / 10, self.outside / 10, math.sin(angle), math.cos(angle)]
        return np.array(seen, np.float32)


gymnasium.register("Heating-v0", entry_point=Heating, max_episode_steps=96)
