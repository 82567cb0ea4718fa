"""Atari games, ALE's v5 as Gymnasium vectorises them: each action lasts 4 frames, what is seen is grey, 84 by 84.

A game begins with up to 30 idle frames and, where the game waits for it, with the fire button. Every copy is a
vectoriser of its own: within one, some copies cannot be stepped without the others.
"""

import contextlib
import functools
import io
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mfpo.errors import ConfigError, CopyFailed, MissingExtra, UnknownName, did_you_mean
from mfpo.types import Discrete, EnvSpec, HostedEnv, Outcome

NAMES = ("ALE/Breakout-v5", "ALE/Pong-v5")  # any other game of ALE works too

HORIZON = 27_000  # half an hour of a game: 108,000 frames
ENDLESS = 2**31 - 2  # frames; cutting episodes is the caller's business
UNSEEDED = -1

Frames = NDArray[np.uint8]


class World(NamedTuple):
    """What agents may differ in."""

    sticky: float = 0.25  # the probability that a frame repeats the action before instead of the one given


class Game(NamedTuple):
    """What ALE knows a game by."""

    rom: str
    actions: int


def create(rom: str, sticky: float = World().sticky) -> Any:
    """A single copy, which shows its newest frame and the rewards of the game."""
    from ale_py.vector_env import AtariVectorEnv

    with contextlib.redirect_stdout(io.StringIO()):  # ale-py tells of every use of ALE_ROMS_DIR
        env = AtariVectorEnv(
            rom,
            num_envs=1,
            stack_num=1,
            reward_clipping=False,
            repeat_action_probability=sticky,
            max_num_frames_per_episode=ENDLESS,
        )
    return env.ale


@functools.cache
def load(name: str) -> Game:
    """Look the game up among those that ale-py registers with Gymnasium."""
    try:
        import ale_py.vector_env
        import gymnasium
    except ImportError:
        raise MissingExtra(name, "atari") from None
    entry = f"{ale_py.vector_env.__name__}:AtariVectorEnv"
    roms = {key: spec.kwargs["game"] for key, spec in gymnasium.registry.items() if spec.vector_entry_point == entry}
    if name not in roms:
        raise UnknownName(f"ALE has no game called {name!r}. {did_you_mean(name, roms)}")
    try:
        return Game(roms[name], len(create(roms[name]).get_action_set()))
    except OSError as error:
        where = "ALE_ROMS_DIR names another directory for them" if "ALE_ROMS_DIR" in os.environ else "it lost this one"
        raise ConfigError(
            f"The ROM of {name} ({roms[name]}.bin) cannot be read: {' '.join(str(error).split())}. ale-py brings its "
            f"ROMs along, but {where}; unset ALE_ROMS_DIR, or pip install --force-reinstall ale-py."
        ) from error


def check(name: str, given: Mapping[str, float]) -> World:
    """The world with these parameters."""
    world = World()._replace(**given)
    if not 0 <= world.sticky <= 1:
        raise ConfigError(f"The world of {name} has sticky = {world.sticky}, a probability: it has to be 0 to 1.")
    return world


class Consoles:
    """`Copies` of one game. Where they are for `learning`, a life is an episode, and rewards are -1, 0 or 1."""

    def __init__(self, game: Game, worlds: Sequence[World], learning: bool) -> None:
        self.actions, self.learning = game.actions, learning
        self.ales = [create(game.rom, world.sticky) for world in worlds]
        self.frames = np.zeros((len(worlds), 84, 84), np.uint8)  # the newest of each
        self.lives = np.zeros(len(worlds), np.int32)
        self.total = np.zeros(len(worlds))  # what the running games were worth
        self.over = np.ones(len(worlds), np.bool_)  # there is no game to step
        self.goes_on = np.zeros(len(worlds), np.bool_)  # an episode ended, but not the game

    def reset(self, which: NDArray[np.intp], seeds: NDArray[np.uint64] | None) -> Frames:
        """Begin games, but without a seed go on with one that has lives left."""
        new = which[~self.goes_on[which]] if seeds is None else which
        # ALE takes 31 bits
        seeds_ = [UNSEEDED] * len(new) if seeds is None else (seeds >> np.uint64(33)).tolist()
        with ThreadPoolExecutor() as pool:  # a seed makes ALE start its console anew, which takes 0.1 s
            list(pool.map(self.begin, new.tolist(), seeds_))
        self.total[new], self.over[new], self.goes_on[new] = 0.0, False, False
        return self.frames[which]

    def begin(self, copy: int, seed: int) -> None:
        """Begin a game."""
        try:
            shown, info = self.ales[copy].reset([0], [seed])
        except Exception as error:
            raise failed(copy, error) from error
        self.frames[copy], self.lives[copy] = shown[0, 0], info["lives"][0]

    def step(self, which: NDArray[np.intp], action: NDArray[Any]) -> Outcome:
        """One step in each."""
        possible = (action >= 0) & (action < self.actions)  # ALE would wait for ever
        if not possible.all():
            wrong = action[~possible][0]
            raise CopyFailed(int(which[~possible][0]), f"it has actions 0 to {self.actions - 1}, but got {wrong}")
        if self.over[which].any():  # ALE would begin the next game
            raise CopyFailed(int(which[self.over[which]][0]), "its game is over, and no other has begun")
        copies, results = which.tolist(), list[Any]()
        try:
            for i, a in zip(copies, action.tolist(), strict=True):
                self.ales[i].send([a], [1.0])
            for i in copies:
                results.append(self.ales[i].recv())
        except BaseException as error:
            self.close()  # results nobody waits for any more would pass for those of later steps
            if not isinstance(error, Exception):
                raise
            raise failed(i, error) from error
        shown, raw, over, _, info = zip(*results, strict=True)
        self.frames[which] = np.concatenate(shown)[:, 0]
        reward, terminated = np.concatenate(raw).astype(np.float32), np.concatenate(over)
        lives = np.concatenate([each["lives"] for each in info])
        self.total[which] += reward
        self.over[which] = terminated
        score = np.where(terminated, self.total[which], np.nan)
        if self.learning:
            lost = lives < self.lives[which]
            self.goes_on[which] = lost & ~terminated
            terminated, reward = terminated | lost, np.sign(reward)
        self.lives[which] = lives
        return Outcome(self.frames[which], reward, terminated, np.zeros(len(which), np.bool_), score)

    def close(self) -> None:
        """Free the consoles and their threads."""
        self.ales.clear()


def failed(copy: int, error: Exception) -> CopyFailed:
    """Whose exception it was."""
    return CopyFailed(copy, f"{type(error).__name__}: {error}")


def make(name: str) -> HostedEnv:
    """The environment, for any game as in "ALE/SpaceInvaders-v5"."""
    game = load(name)
    spec = EnvSpec(name, (4, 84, 84), Discrete(game.actions), HORIZON, stack=4)

    def open_(worlds: Sequence[Mapping[str, float]], learning: bool = False) -> Consoles:
        return Consoles(game, [check(name, world) for world in worlds], learning)

    return HostedEnv(spec, World(), open_)
