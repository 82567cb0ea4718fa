"""Sampling from hosted environments: the episodes of all agents advance as one batch, driven from the host.

Per step of time, one compiled call evaluates the policies of all agents and one call steps every copy whose episode is
running. Where several cores can step an environment, each has a strip of the columns to itself, so that one strip's
policies are evaluated while another's copies are stepped. Seeds and keys are addressed as in `rollout`, so a resumed
run meets the same episodes.
"""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mfpo.errors import CopyFailed, StepFailed
from mfpo.random import inline
from mfpo.rollout import Act, Sampler
from mfpo.types import TIME_BLOCK, Array, Copies, HostedEnv, Key, PyTree, Trajectories

Flags = NDArray[np.bool_]  # [agents, columns], like everything here that is said of episodes
EVALUATION_COPIES = 32
WORTH_A_STRIP = 8  # copies; with fewer of them a second core mostly waits for Python


class Block:
    """The copies of some agents, a row for each agent, and where the episode in each of them stands."""

    def __init__(self, env: HostedEnv, copies: Copies, ids: NDArray[Any], columns: int) -> None:
        self.spec, self._copies, self._ids = env.spec, copies, ids
        self._where = ids[:, None] * columns + np.arange(columns)
        self.elapsed = np.zeros(self._where.shape, np.int32)  # steps of the running episodes
        self._total = np.zeros(self._where.shape)  # and what they were worth
        self.now: NDArray[Any] = np.zeros(0)  # [agents, columns, ...] observations

    def reset(self, mask: Flags, seeds: NDArray[np.uint64] | None = None) -> None:
        """Begin an episode in the columns of the mask."""
        if not mask.any():
            return
        try:
            shown = self._copies.reset(self._where[mask], None if seeds is None else seeds[mask])
        except CopyFailed as failure:
            raise self._failed(failure.copy, str(failure), "reset") from failure
        if not self.now.size:
            self.now = np.zeros((*mask.shape, *self.spec.observation_shape), shown.dtype)
        if self.spec.stack:
            self.now[mask] = 0
        self._show(mask, shown)
        self.elapsed[mask], self._total[mask] = 0, 0.0
        self._check(mask, self.now, "reset", "an observation")

    def step(self, mask: Flags, action: NDArray[Any]) -> tuple[NDArray[np.float32], Flags, Flags, NDArray[np.float64]]:
        """One step in the columns of the mask: reward, terminated, truncated; nothing in the others.

        And the score of every game that ended with it, NaN elsewhere.
        """
        reward, terminated, truncated = np.zeros(mask.shape, np.float32), np.zeros_like(mask), np.zeros_like(mask)
        score = np.full(mask.shape, np.nan)
        if not mask.any():
            return reward, terminated, truncated, score
        try:
            outcome = self._copies.step(self._where[mask], action[mask])
        except CopyFailed as failure:
            raise self._failed(failure.copy, str(failure), "step") from failure
        self._show(mask, outcome.shown)
        reward[mask], terminated[mask], truncated[mask] = outcome.reward, outcome.terminated, outcome.truncated
        self._check(mask, self.now, "step", "an observation")
        self._check(mask, reward, "step", "a reward")
        self.elapsed += mask
        self._total += reward
        truncated = (truncated | mask & (self.elapsed >= self.spec.horizon)) & ~terminated
        if outcome.score is None:
            score = np.where(terminated | truncated, self._total, np.nan)
        else:
            score[mask] = outcome.score
        return reward, terminated, truncated, score

    def newest(self) -> NDArray[Any]:
        """What has to be kept of the observations: of frames that are stacked, the newest."""
        return self.now[:, :, -1].copy() if self.spec.stack else self.now.copy()

    def _show(self, mask: Flags, shown: NDArray[Any]) -> None:
        if self.spec.stack:
            shown = np.concatenate([self.now[mask][:, 1:], shown[:, None]], axis=1)
        self.now[mask] = shown

    def _check(self, mask: Flags, values: NDArray[Any], call: str, what: str) -> None:
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = mask & ~np.isfinite(values.reshape(*mask.shape, -1)).all(axis=-1)
            if bad.any():
                raise self._failed(self._where[bad][0], f"it gave {what} that is not finite", call)

    def _failed(self, copy: int, reason: str, call: str) -> StepFailed:
        row, column = np.argwhere(self._where == copy)[0]
        when = f"step {self.elapsed[row, column] + 1} of its episode" if call == "step" else "reset"
        return StepFailed(f"The environment {self.spec.id} of agent {self._ids[row]} failed in {when}: {reason}")


class _Minds:
    """The policies of a block of agents. Few running episodes are gathered first, so that the others cost nothing."""

    def __init__(self, act: Act) -> None:
        def one(actor: PyTree, obs: Array, key: Array, h: Array) -> tuple[Array, Array]:
            return act(actor, obs, jax.random.fold_in(inline(jax.random.wrap_key_data(key)), 2 * h + 1))

        self._act = jax.jit(jax.vmap(jax.vmap(one, (None, 0, 0, 0))))

    def __call__(
        self, actors: PyTree, block: Block, keys: Array | NDArray[Any], h: NDArray[Any], running: Flags
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """action and aux [agents, columns, ...]; zero in columns that are not running, if those were left out."""
        columns = running.shape[1]
        width = 1 << int(running.sum(axis=1).max() - 1).bit_length()  # powers of two: few programs to compile
        if 2 * width > columns:
            action, aux = self._act(actors, block.now, keys, h)
            return np.asarray(action), np.asarray(aux)
        chosen = np.argsort(~running, axis=1, kind="stable")[:, :width]
        rows = np.arange(len(running))[:, None]
        few = self._act(actors, block.now[rows, chosen], np.asarray(keys)[rows, chosen], h[rows, chosen])
        spread = [np.zeros((len(running), columns, *x.shape[2:]), x.dtype) for x in few]
        for full, x in zip(spread, few, strict=True):
            full[rows, chosen] = np.asarray(x)
        return spread[0], spread[1]


class _Tape:
    """Records what happens in a block of columns."""

    def __init__(self, block: Block, slots: int) -> None:
        self._slots, self._record = slots, list[NDArray[Any]]()
        self._games, self._scores = np.zeros(block.elapsed.shape), np.zeros(block.elapsed.shape)
        self._before = np.moveaxis(block.now[:, :, :-1], 2, 1).copy() if block.spec.stack else None

    def write(self, h: int, *values: NDArray[Any]) -> None:
        """The values of one slot: observation, aux, reward, live, terminated, truncated."""
        if not self._record:
            self._record = [np.zeros((len(x), self._slots, *x.shape[1:]), x.dtype) for x in values]
        for record, x in zip(self._record, values, strict=True):
            record[:, h] = x

    def count(self, score: NDArray[np.float64]) -> None:
        """The scores of games that ended; NaN for the others."""
        over = ~np.isnan(score)
        if over.any():
            self._games += over
            self._scores[over] += score[over]

    def finish(self, last_obs: NDArray[Any]) -> Trajectories:
        """All of it, as one batch for every agent."""
        obs, *others = self._record
        if self._before is not None:
            obs = np.concatenate([self._before, obs], axis=1)
        length = others[2].any(axis=2).sum(axis=1).astype(np.int32)
        with np.errstate(invalid="ignore"):
            score = (self._scores / self._games).astype(np.float32)  # NaN where no game ended
        batch: Any = (obs, *others, last_obs.copy(), length, score)
        return Trajectories(*batch)


class _Strip:
    """Some columns of every agent, with the device that evaluates their policies."""

    def __init__(self, env: HostedEnv, agents: int, columns: slice, device: Any, learning: bool) -> None:
        self.env, self.columns, self.device = env, columns, device
        self.width = columns.stop - columns.start
        self.copies = open_copies(env, agents, self.width, learning)
        self.streams: dict[tuple[int, ...], Block] = {}  # of segments, by the agents they belong to

    def block(self, ids: NDArray[Any]) -> Block:
        """The columns of these agents."""
        return Block(self.env, self.copies, ids, self.width)


def _strips(env: HostedEnv, agents: int, columns: int, devices: Sequence[Any], learning: bool) -> list[_Strip]:
    """All columns, in as many strips as there are devices that are worth their threads."""
    n = max(min(len(devices), columns, agents * columns // WORTH_A_STRIP), 1) if env.parallel else 1
    ends = [round(i * columns / n) for i in range(n + 1)]
    return [_Strip(env, agents, slice(ends[i], ends[i + 1]), devices[i], learning) for i in range(n)]


T = TypeVar("T")


def _at_once(work: Callable[[_Strip], T], strips: Sequence[_Strip], pool: ThreadPoolExecutor) -> list[T]:
    """The work of every strip; if some fail, the failure of the first of them when all have come to an end."""
    if len(strips) == 1:
        return [work(strips[0])]
    running = [pool.submit(work, strip) for strip in strips]
    wait(running)
    return [future.result() for future in running]


Play = Callable[[_Strip, PyTree, Array, NDArray[np.uint64], NDArray[Any], int], Trajectories]
# strip, actors, keys and seeds of its columns, ids, step -> its trajectories


def _sampler(env: HostedEnv, agents: int, columns: int, devices: Sequence[Any] | None, play: Play) -> Sampler:
    strips = _strips(env, agents, columns, devices or jax.devices(), learning=True)
    pool = ThreadPoolExecutor(len(strips))

    def sample(actors: PyTree, keys: Key, ids: Array, step: Array) -> Trajectories:
        column_keys, seeds = _addresses(keys, columns)
        who, when = np.asarray(ids), int(step)

        def work(strip: _Strip) -> Trajectories:
            mine = strip.columns
            minds, draws = jax.device_put((actors, column_keys[:, mine]), strip.device)
            return play(strip, minds, draws, seeds[:, mine], who, when)

        return _join(_at_once(work, strips, pool))

    return sample


def _join(strips: list[Trajectories]) -> Trajectories:
    """The trajectories of all columns."""
    if len(strips) == 1:
        return strips[0]
    *timed, last_obs, length, score = zip(*strips, strict=True)
    batch: Any = [np.concatenate(parts, axis=2) for parts in timed]  # [agents, time, columns, ...]
    batch += [np.concatenate(last_obs, axis=1), np.max(length, axis=0), np.concatenate(score, axis=1)]
    return Trajectories(*batch)


def episode_sampler(
    env: HostedEnv, act: Act, agents: int, columns: int, devices: Sequence[Any] | None = None
) -> Sampler:
    """A sampler of whole episodes, one to a column."""
    minds = _Minds(act)
    slots = -(-env.spec.horizon // TIME_BLOCK) * TIME_BLOCK

    def play(
        strip: _Strip, actors: PyTree, keys: Array, seeds: NDArray[np.uint64], ids: NDArray[Any], step: int
    ) -> Trajectories:
        block, running, h = strip.block(ids), np.ones(seeds.shape, bool), 0
        block.reset(running, seeds)
        tape = _Tape(block, slots)
        while running.any():
            action, aux = minds(actors, block, keys, block.elapsed, running)
            seen = block.newest()
            reward, terminated, truncated, score = block.step(running, action)
            tape.write(h, seen, aux, reward, running, terminated, truncated)
            tape.count(score)
            running, h = running & ~terminated & ~truncated, h + 1
        return tape.finish(block.now)

    return _sampler(env, agents, columns, devices, play)


def segment_sampler(
    env: HostedEnv, act: Act, agents: int, columns: int, length: int, devices: Sequence[Any] | None = None
) -> Sampler:
    """A sampler of segments in which one episode follows the other.

    The segments of a round are one stream, which begins anew with the first local step: what lies between two rounds
    is in no checkpoint.
    """
    minds = _Minds(act)

    def play(
        strip: _Strip, actors: PyTree, keys: Array, seeds: NDArray[np.uint64], ids: NDArray[Any], step: int
    ) -> Trajectories:
        who, running = tuple(ids.tolist()), np.ones(seeds.shape, bool)
        if step == 0:
            strip.streams[who] = strip.block(ids)
            strip.streams[who].reset(running, seeds)
        block = strip.streams[who]
        tape = _Tape(block, length)
        for h in range(length):
            action, aux = minds(actors, block, keys, np.full(seeds.shape, h, np.int32), running)
            seen = block.newest()
            reward, terminated, truncated, score = block.step(running, action)
            last = h == length - 1
            tape.write(h, seen, aux, reward, running, terminated, running & ~terminated if last else truncated)
            tape.count(score)
            if last:
                batch = tape.finish(block.now)
            # after a truncated step a slot is left for the observation it led to; at the end there is `last_obs`
            block.reset(terminated | ~running | (truncated & last))
            running = ~truncated
        return batch

    return _sampler(env, agents, columns, devices, play)


def hosted_scores(env: HostedEnv, act: Act, actor: PyTree, key: Key, agent: int, episodes: int) -> NDArray[np.float64]:
    """The return of each of `episodes` whole episodes in the world of one agent."""
    columns = min(episodes, EVALUATION_COPIES)
    strips = _strips(env._replace(worlds=env.worlds[agent : agent + 1]), 1, columns, jax.devices(), learning=False)
    minds, actors = _Minds(act), jax.tree.map(lambda x: x[None], actor)
    keys, seeds = _addresses(key[None], episodes)

    def work(strip: _Strip) -> NDArray[np.float64]:
        share = slice(*(round(end * episodes / columns) for end in (strip.columns.start, strip.columns.stop)))
        block = strip.block(np.zeros(1, int))
        mine = np.asarray(keys[0, share]), seeds[0, share]
        return _play(block, minds, jax.device_put(actors, strip.device), *mine)

    try:
        with ThreadPoolExecutor(len(strips)) as pool:
            return np.concatenate(_at_once(work, strips, pool))
    finally:
        for strip in strips:
            strip.copies.close()


def _play(
    block: Block, minds: _Minds, actors: PyTree, keys: NDArray[Any], seeds: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """An episode for each seed. A column that is done with one begins the next that nobody has begun."""
    episodes = len(seeds)
    scores = np.zeros(episodes)
    playing = np.arange(block.elapsed.size)[None]  # which episode each column plays
    running, begun = np.ones(playing.shape, bool), playing.size
    block.reset(running, seeds[playing])
    while running.any():
        action, _ = minds(actors, block, keys[playing], block.elapsed, running)
        _, terminated, truncated, score = block.step(running, action)
        over = terminated | truncated
        scores[playing[over]] = score[over]
        free = np.flatnonzero(over[0])[: episodes - begun]
        running = running & ~over
        if free.size:
            playing[0, free] = np.arange(begun, begun + free.size)
            begun += free.size
            again = np.zeros_like(running)
            again[0, free] = True
            block.reset(again, seeds[playing])
            running |= again
    return scores


def open_copies(env: HostedEnv, agents: int, columns: int, learning: bool) -> Copies:
    """`columns` copies of every agent's world."""
    worlds = [dict(world) for world in env.worlds] or [{}] * agents
    return env.open([world for world in worlds for _ in range(columns)], learning=learning)


def _addresses(keys: Key, columns: int) -> tuple[Array, NDArray[np.uint64]]:
    """For every column of every agent the key its policy draws from, and the seed of its first episode."""
    of_column, words = _split(keys, columns)
    high, low = np.moveaxis(np.asarray(words).astype(np.uint64), -1, 0)
    return of_column, high << np.uint64(32) | low


@functools.partial(jax.jit, static_argnums=1)
def _split(keys: Key, columns: int) -> tuple[Array, Array]:
    each = jax.vmap(lambda key: jax.random.split(key, columns))(keys)
    words = jax.vmap(jax.vmap(lambda key: jax.random.bits(jax.random.fold_in(key, 0), (2,), jnp.uint32)))(each)
    return jax.random.key_data(each), words
