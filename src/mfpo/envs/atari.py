"""Atari games, ALE's v5 as Gymnasium vectorises them: each action lasts 4 frames, what is seen is grey, 84 by 84.

A game begins with up to 30 idle frames and, where the game waits for it, with the fire button. Copies of the same world
that are stepped together share one of ALE's vectorisers, within which some cannot be stepped without the others; any
other copy has one of its own, which costs a sixteenth more. Those that share one begin the next game in the step that
ends one, and can be stepped by a compiled program, if ale-py was built for that.
"""

import contextlib
import functools
import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mfpo.errors import ConfigError, CopyFailed, MissingExtra, UnknownName, did_you_mean
from mfpo.types import Array, Compiled, Discrete, EnvSpec, HostedEnv, Outcome

NAMES = ("ALE/Breakout-v5", "ALE/Pong-v5")  # any other game of ALE works too

HORIZON = 27_000  # half an hour of a game: 108,000 frames
ENDLESS = 2**31 - 2  # frames; to cut episodes is the caller's business
UNSEEDED = -1


class World(NamedTuple):
    """What agents may differ in."""

    sticky: float = 0.25  # the probability that a frame repeats the action before instead of the one given


def create(rom: str, world: World, copies: int = 1, autoreset: str = "NextStep") -> Any:
    """A vectoriser, which shows the newest frame of every copy and the rewards of the game."""
    from ale_py.vector_env import AtariVectorEnv

    how: dict[str, Any] = {
        "stack_num": 1,
        "reward_clipping": False,
        "max_num_frames_per_episode": ENDLESS,
        "autoreset_mode": autoreset,
    }
    with contextlib.redirect_stdout(io.StringIO()):  # ale-py tells of every use of ALE_ROMS_DIR
        return AtariVectorEnv(rom, num_envs=copies, repeat_action_probability=world.sticky, **how).ale


@functools.cache
def load(name: str) -> tuple[str, int]:
    """The ROM, looked up among the games that ale-py registers with Gymnasium, and the number of actions."""
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
        return roms[name], len(create(roms[name], World()).get_action_set())
    except OSError as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(
            f"The ROM of {name} could not be read: {reason}. It comes with ale-py: unset ALE_ROMS_DIR if that names "
            "another directory, or else pip install --force-reinstall ale-py."
        ) from error


def check(name: str, given: Mapping[str, float]) -> World:
    """The world with these parameters."""
    world = World()._replace(**given)
    if not 0 <= world.sticky <= 1:
        raise ConfigError(f"The world of {name} has sticky = {world.sticky}, a probability: it has to be 0 to 1.")
    return world


class Consoles:
    """`Copies` of one game. Where they are for `learning`, a life is an episode, and rewards are -1, 0 or 1.

    Of copies that are stepped `together`, one whose game ends shows the start of the next.
    """

    def __init__(self, rom: str, actions: int, worlds: Sequence[World], learning: bool, together: bool) -> None:
        self.actions, self.learning, self.together = actions, learning, together
        first = [i for i, world in enumerate(worlds) if not i or not together or world != worlds[i - 1]]
        self.rows = [slice(start, stop) for start, stop in zip(first, [*first[1:], len(worlds)], strict=True)]
        autoreset = "SameStep" if together else "NextStep"
        self.ales = [create(rom, worlds[row.start], row.stop - row.start, autoreset) for row in self.rows]
        self.group = np.repeat(np.arange(len(first)), [row.stop - row.start for row in self.rows])  # of every copy
        self.frames = np.zeros((len(worlds), 84, 84), np.uint8)  # the newest of each
        self.lives = np.zeros(len(worlds), np.int32)
        self.total = np.zeros(len(worlds))  # what the running games were worth
        self.over = np.ones(len(worlds), np.bool_)  # there is no game to step
        self.goes_on = np.zeros(len(worlds), np.bool_)  # the episode is over, but not the game, or the next has begun

    def reset(self, which: NDArray[np.intp], seeds: NDArray[np.uint64] | None) -> NDArray[np.uint8]:
        """Begin games; but without a seed, go on with one that has lives left, or has just begun."""
        new = which[~self.goes_on[which]] if seeds is None else which
        ale_seeds = np.full(len(new), UNSEEDED) if seeds is None else (seeds >> np.uint64(33)).astype(int)  # of 31 bits
        groups = self.group[new]
        with ThreadPoolExecutor() as pool:  # a seed makes ALE load its ROM again, which takes 0.1 s
            list(pool.map(lambda g: self.begin(g, new[groups == g], ale_seeds[groups == g]), set(groups.tolist())))
        self.total[new], self.over[which], self.goes_on[new] = 0.0, False, False
        return self.frames[which]

    def begin(self, group: int, copies: NDArray[np.intp], seeds: NDArray[np.int_]) -> None:
        """Begin games in some copies of a group."""
        within = copies - self.rows[group].start
        try:
            shown, info = self.ales[group].reset(within.tolist(), seeds.tolist())
        except Exception as error:
            raise CopyFailed(int(copies[0]), f"{type(error).__name__}: {error}") from error
        self.frames[copies], self.lives[copies] = shown[within, 0], info["lives"][within]

    def step(self, which: NDArray[np.intp], action: NDArray[Any]) -> Outcome:
        """One step in each. ALE itself waits for ever on an impossible action, and after a game begins the next."""
        wrong = ~((action >= 0) & (action < self.actions))
        if wrong.any():
            reason = f"it has the actions 0 to {self.actions - 1}, but was given {action[wrong][0]}"
            raise CopyFailed(int(which[wrong][0]), reason)
        if self.over[which].any():
            raise CopyFailed(int(which[self.over[which]][0]), "its game is over, and no other has begun")
        raw, lives = np.zeros(len(self.frames), np.float32), self.lives[which]
        pressed, left_out = np.zeros(len(self.frames), np.int64), np.ones(len(self.frames), np.bool_)
        pressed[which], left_out[which] = action, False
        meant = [(self.ales[group], self.rows[group]) for group in np.unique(self.group[which])]
        try:
            for ale, row in meant:
                ale.send(pressed[row].tolist(), [1.0] * (row.stop - row.start))
            for ale, row in meant:
                shown, raw[row], self.over[row], _, info = ale.recv()
                self.frames[row], self.lives[row] = shown[:, 0], info["lives"]
                self.over[row] |= left_out[row]
                self.goes_on[row] &= ~left_out[row]
        except BaseException as error:
            self.close()  # what nobody received would pass for the results of later steps
            if isinstance(error, Exception):
                raise CopyFailed(row.start, f"{type(error).__name__}: {error}") from error
            raise
        reward, terminated, lost = raw[which], self.over[which], self.lives[which] < lives
        self.total[which] += reward
        shown, uncut = self.frames[which], np.zeros(len(which), np.bool_)
        score = np.where(terminated, self.total[which], np.nan)
        self.total[which[terminated]] = 0.0
        self.goes_on[which] = (self.learning & lost & ~terminated) | (self.together & terminated)
        if not self.learning:
            return Outcome(shown, reward, terminated, uncut)
        return Outcome(shown, np.sign(reward), terminated | lost, uncut, score)

    def compiled(self) -> Compiled:
        """How a program steps all of them."""
        assert self.learning and self.together

        def enter() -> Games:
            return Games([np.frombuffer(ale.handle(), np.uint8) for ale in self.ales], self.lives, self.total)

        def leave(games: Games) -> None:
            self.lives, self.total = np.array(games.lives), np.array(games.total, float)
            self.over[:], self.goes_on[:] = False, False

        return Compiled(Step(tuple(row.stop - row.start for row in self.rows)), enter, leave)

    def close(self) -> None:
        """Free the consoles and their threads."""
        self.ales.clear()


class Games(NamedTuple):
    """Where consoles stand, in a compiled program."""

    handles: Any  # of their vectorisers
    lives: Any
    total: Any  # what the running games were worth


@dataclass(frozen=True)
class Step:
    """A step in vectorisers with so many copies each, in a compiled program: as `Consoles.step`, for learning."""

    sizes: tuple[int, ...]

    def __call__(self, games: Games, action: Array) -> tuple[Games, Outcome]:
        """All that there are, one vectoriser after the other."""
        ends = np.cumsum(self.sizes)[:-1].tolist()
        parts = [
            _call(n)(handle, pressed, jnp.ones(n, jnp.float32))
            for n, handle, pressed in zip(self.sizes, games.handles, jnp.split(action, ends), strict=True)
        ]
        handles, *results = zip(*parts, strict=True)
        shown, raw, over, _, _, lives, *_ = (jnp.concatenate(x) for x in results)
        total = games.total + raw
        score = jnp.where(over, total, jnp.nan)
        uncut, reward = jnp.zeros_like(over), jnp.sign(raw).astype(jnp.float32)
        outcome: Any = (shown[:, 0], reward, over | (lives < games.lives), uncut, score)
        return Games(list(handles), lives, jnp.where(over, 0.0, total)), Outcome(*outcome)


TARGET = "mfpo_ale_step"


@functools.cache
def programmable() -> bool:
    """Whether ale-py was built with what a compiled program calls; if so, programs can call it from now on."""
    import ale_py

    library: Any = getattr(ale_py, "_ale_py", None)
    if not hasattr(library, "VectorXLAStep"):
        return False
    jax.ffi.register_ffi_target(TARGET, library.VectorXLAStep(), platform="cpu")
    return True


def _call(n: int) -> Callable[..., Sequence[Array]]:
    """A step of a vectoriser of n copies: handle, actions, strengths of the paddle -> handle, and what came of it."""
    array: Any = jax.ShapeDtypeStruct
    handle, shown = array((8,), jnp.uint8), array((n, 1, 84, 84), jnp.uint8)
    number, flag = array((n,), jnp.int32), array((n,), jnp.bool_)
    # rewards, terminations, truncations, ids, lives, numbers of frames in all and in the game
    result = (handle, shown, number, flag, flag, number, number, number, number)
    # no `has_side_effect`: each call hangs on the handle and the actions of the one before, so none can be left out or
    # doubled; with it, JAX keeps a token of every program, and tells of a failure again when the process ends
    return jax.ffi.ffi_call(TARGET, result)


def make(name: str) -> HostedEnv:
    """The environment, for any game as in "ALE/SpaceInvaders-v5"."""
    rom, actions = load(name)
    spec = EnvSpec(name, (4, 84, 84), Discrete(actions), HORIZON, stack=4)

    def open_(worlds: Sequence[Mapping[str, float]], learning: bool = False, together: bool = False) -> Consoles:
        return Consoles(rom, actions, [check(name, world) for world in worlds], learning, together)

    return HostedEnv(spec, World(), open_, compiled=Consoles.compiled if programmable() else None)
