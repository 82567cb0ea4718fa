"""An environment to test with, and how tests speak to copies."""

import contextlib

import gymnasium
import numpy as np
from gymnasium import spaces

from mfpo.types import HostedEnv

INF = float("inf")
ANY_BOX, TWO = spaces.Box(-INF, INF, (2,), np.float64), spaces.Discrete(2)


class Toy(gymnasium.Env):
    """Remembers what it was given; observations are samples of its space, or what `say` returns."""

    def __init__(self, observation_space=ANY_BOX, action_space=TWO, say=None, size=3, slope=0.5, on=False, text="a"):
        self.observation_space, self.action_space = observation_space, action_space
        self.say, self.size, self.slope, self.on, self.text = say, size, slope, on, text
        self.actions, self.seeds, self.closed = [], [], False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.seeds.append(seed)
        self.actions = []
        return self.observe(), {}

    def step(self, action):
        self.actions.append(action)
        reward = {"reward": "much", "none": None, "vector": np.ones(1)}.get(self.say, self.slope)
        return self.observe(), reward, len(self.actions) == 9, False, {}

    def observe(self):
        self.last = self.observation_space.sample()
        if callable(self.say):
            self.last = self.say(len(self.actions))
        return self.last

    def close(self):
        self.closed = True


@contextlib.contextmanager
def copies_of(env: HostedEnv, *worlds):
    copies = env.open(worlds or [{}])
    try:
        yield copies, [copy.env.unwrapped for copy in copies._copies]
    finally:
        copies.close()


def seeds(*values):
    return np.array(values, np.uint64)


def all_of(n):
    return np.arange(n)
