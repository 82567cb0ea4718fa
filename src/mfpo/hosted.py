"""Sampling from hosted environments: the episodes of all agents advance as one batch, driven from the host.

Per step of time, one compiled call evaluates the policies of all agents and one call steps every copy whose episode is
running. Seeds and keys are addressed as in `rollout`, so a resumed run meets the same episodes.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mfpo.errors import CopyFailed, StepFailed
from mfpo.random import inline
from mfpo.rollout import Act
from mfpo.types import TIME_BLOCK, Array, Copies, HostedEnv, Key, PyTree, Trajectories

Flags = NDArray[np.bool_]  # [agents, columns], like everything here that is said of episodes
HostSampler = Callable[[PyTree, Key, Array, Array], Trajectories]  # actors[n], keys[n], ids[n], step -> batches[n]
EVALUATION_COPIES = 32


class Block:
    """The copies of some agents, a row for each agent, and where the episode in each of them stands."""

    def __init__(self, env: HostedEnv, copies: Copies, ids: NDArray[Any], columns: int) -> None:
        self.spec, self._copies, self._ids = env.spec, copies, ids
        self._where = ids[:, None] * columns + np.arange(columns)
        self.elapsed = np.zeros(self._where.shape, np.int32)  # steps of the running episodes
        self.total = np.zeros(self._where.shape)  # and what they were worth
        self.now: NDArray[Any] = np.zeros(0)  # [agents, columns, ...] observations

    def reset(self, mask: Flags, seeds: NDArray[np.uint64]) -> None:
        """Begin an episode in the columns of the mask."""
        if not mask.any():
            return
        try:
            obs = self._copies.reset(self._where[mask], seeds[mask])
        except CopyFailed as failure:
            raise self._failed(failure.copy, str(failure), "reset") from failure
        if not self.now.size:
            self.now = np.zeros((*mask.shape, *self.spec.observation_shape), obs.dtype)
        self.now[mask] = obs
        self.elapsed[mask], self.total[mask] = 0, 0.0
        self._check(mask, self.now, "reset", "an observation")

    def step(self, mask: Flags, action: NDArray[Any]) -> tuple[NDArray[np.float32], Flags, Flags]:
        """One step in the columns of the mask: reward, terminated, truncated; nothing in the others."""
        reward, terminated, truncated = np.zeros(mask.shape, np.float32), np.zeros_like(mask), np.zeros_like(mask)
        if not mask.any():
            return reward, terminated, truncated
        try:
            result = self._copies.step(self._where[mask], action[mask])
        except CopyFailed as failure:
            raise self._failed(failure.copy, str(failure), "step") from failure
        self.now[mask], reward[mask], terminated[mask], truncated[mask] = result
        self._check(mask, self.now, "step", "an observation")
        self._check(mask, reward, "step", "a reward")
        self.elapsed += mask
        self.total += reward
        truncated |= mask & (self.elapsed >= self.spec.horizon)
        return reward, terminated, truncated & ~terminated

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
        self, actors: PyTree, block: Block, keys: NDArray[Any], h: NDArray[Any], running: Flags
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """action and aux [agents, columns, ...]; zero in columns that are not running, if those were left out."""
        columns = running.shape[1]
        width = 1 << int(running.sum(axis=1).max() - 1).bit_length()  # powers of two: few programs to compile
        if 2 * width > columns:
            action, aux = self._act(actors, block.now, keys, h)
            return np.asarray(action), np.asarray(aux)
        chosen = np.argsort(~running, axis=1, kind="stable")[:, :width]
        rows = np.arange(len(running))[:, None]
        few = self._act(actors, block.now[rows, chosen], keys[rows, chosen], h[rows, chosen])
        spread = [np.zeros((len(running), columns, *x.shape[2:]), x.dtype) for x in few]
        for full, x in zip(spread, few, strict=True):
            full[rows, chosen] = np.asarray(x)
        return spread[0], spread[1]


class _Tape:
    """Records what happens in a block of columns."""

    def __init__(self, shape: tuple[int, int], slots: int) -> None:
        self._shape, self._slots = shape, slots
        self._record: list[NDArray[Any]] = []
        self._ended, self._scores = np.zeros(shape), np.zeros(shape)

    def write(self, h: int, *values: NDArray[Any]) -> None:
        """The values of one slot: observation, aux, reward, live, terminated, truncated."""
        if not self._record:
            agents, columns = self._shape
            self._record = [np.zeros((agents, self._slots, columns, *x.shape[2:]), x.dtype) for x in values]
        for record, x in zip(self._record, values, strict=True):
            record[:, h] = x

    def count(self, ended: Flags, total: NDArray[Any]) -> None:
        """The scores of the episodes that ended."""
        self._ended += ended
        self._scores += np.where(ended, total, 0.0)

    def finish(self, last_obs: NDArray[Any]) -> Trajectories:
        """All of it, as one batch for every agent."""
        live = self._record[3]
        with np.errstate(invalid="ignore"):
            score = (self._scores / self._ended).astype(np.float32)  # NaN where no episode ended
        batch: Any = (*self._record, last_obs.copy(), live.any(axis=2).sum(axis=1).astype(np.int32), score)
        return Trajectories(*batch)


def episode_sampler(env: HostedEnv, act: Act, agents: int, columns: int) -> HostSampler:
    """A sampler of whole episodes, one to a column."""
    copies, minds = open_copies(env, agents, columns), _Minds(act)
    slots = -(-env.spec.horizon // TIME_BLOCK) * TIME_BLOCK

    def sample(actors: PyTree, keys: Key, ids: Array, step: Array) -> Trajectories:
        del step
        block = Block(env, copies, np.asarray(ids), columns)
        column_keys, seeds = _addresses(keys, columns)
        tape, running, h = _Tape(seeds.shape, slots), np.ones(seeds.shape, bool), 0
        block.reset(running, seeds)
        while running.any():
            action, aux = minds(actors, block, column_keys, block.elapsed, running)
            seen = block.now.copy()
            reward, terminated, truncated = block.step(running, action)
            tape.write(h, seen, aux, reward, running, terminated, truncated)
            tape.count(terminated | truncated, block.total)
            running, h = running & ~terminated & ~truncated, h + 1
        return tape.finish(block.now)

    return sample


def segment_sampler(env: HostedEnv, act: Act, agents: int, columns: int, length: int) -> HostSampler:
    """A sampler of segments in which one episode follows the other.

    The segments of a round are one stream, which begins anew with the first local step: what lies between two rounds
    is in no checkpoint.
    """
    copies, minds = open_copies(env, agents, columns), _Minds(act)
    streams: dict[tuple[int, ...], tuple[Block, NDArray[np.uint64]]] = {}  # with the seeds of their episodes

    def sample(actors: PyTree, keys: Key, ids: Array, step: Array) -> Trajectories:
        column_keys, seeds = _addresses(keys, columns)
        who = tuple(np.asarray(ids).tolist())
        running = np.ones(seeds.shape, bool)
        if step == 0:
            streams[who] = Block(env, copies, np.array(who), columns), seeds
            streams[who][0].reset(running, seeds)
        block, seeds = streams[who]
        tape = _Tape(seeds.shape, length)
        for h in range(length):
            action, aux = minds(actors, block, column_keys, np.full(seeds.shape, h, np.int32), running)
            seen = block.now.copy()
            reward, terminated, truncated = block.step(running, action)
            last = h == length - 1
            tape.write(h, seen, aux, reward, running, terminated, running & ~terminated if last else truncated)
            tape.count(terminated | truncated, block.total)
            if last:
                batch = tape.finish(block.now)
            # after a truncated step a slot is left for the observation it led to; at the end there is `last_obs`
            over = terminated | ~running | (truncated & last)
            seeds += over
            block.reset(over, seeds)
            running = ~truncated
        return batch

    return sample


def hosted_scores(env: HostedEnv, act: Act, actor: PyTree, key: Key, agent: int, episodes: int) -> NDArray[np.float64]:
    """The return of each of `episodes` whole episodes in the world of one agent."""
    columns = min(episodes, EVALUATION_COPIES)
    copies = open_copies(env._replace(worlds=env.worlds[agent : agent + 1]), 1, columns)
    try:
        return _play(Block(env, copies, np.zeros(1, int), columns), _Minds(act), actor, key, episodes)
    finally:
        copies.close()


def _play(block: Block, minds: _Minds, actor: PyTree, key: Key, episodes: int) -> NDArray[np.float64]:
    """A column that is done with its episode begins the next one that nobody has begun."""
    keys, seeds = _addresses(key[None], episodes)
    actors = jax.tree.map(lambda x: x[None], actor)
    scores = np.zeros(episodes)
    playing = np.arange(block.elapsed.size)[None]  # which episode each column plays
    running, begun = np.ones(playing.shape, bool), playing.size
    block.reset(running, seeds[0, playing])
    while running.any():
        action, _ = minds(actors, block, keys[0, playing], block.elapsed, running)
        reward, terminated, truncated = block.step(running, action)
        np.add.at(scores, playing[running], reward[running])
        over = terminated | truncated
        free = np.flatnonzero(over[0])[: episodes - begun]
        running = running & ~over
        if free.size:
            playing[0, free] = np.arange(begun, begun + free.size)
            begun += free.size
            again = np.zeros_like(running)
            again[0, free] = True
            block.reset(again, seeds[0, playing])
            running |= again
    return scores


def open_copies(env: HostedEnv, agents: int, columns: int) -> Copies:
    """`columns` copies of every agent's world."""
    worlds = [dict(world) for world in env.worlds] or [{}] * agents
    return env.open([world for world in worlds for _ in range(columns)])


def _addresses(keys: Key, columns: int) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """For every column of every agent the key its policy draws from, and the seed of its first episode."""
    of_column, words = _split(keys, columns)
    high, low = np.moveaxis(np.asarray(words).astype(np.uint64), -1, 0)
    return np.asarray(of_column), high << np.uint64(32) | low


@functools.partial(jax.jit, static_argnums=1)
def _split(keys: Key, columns: int) -> tuple[Array, Array]:
    each = jax.vmap(lambda key: jax.random.split(key, columns))(keys)
    words = jax.vmap(jax.vmap(lambda key: jax.random.bits(jax.random.fold_in(key, 0), (2,), jnp.uint32)))(each)
    return jax.random.key_data(each), words
