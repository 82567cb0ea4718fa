"""Sampling from hosted environments: the episodes of all agents advance as one batch, driven from the host.

Per step of time, one compiled call evaluates the policies of all agents and one call steps every copy whose episode is
running; segments of what a program can step are left to `streams`. Where several cores or processes can step an
environment, each has a strip of the batch to itself, so that one strip's policies are evaluated while another's copies
are stepped. Seeds and keys are addressed as in `rollout`, so a resumed run meets the same episodes.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mfpo.blocks import Block, Flags, Tape
from mfpo.random import draw_of_step
from mfpo.rollout import Act, Sampler
from mfpo.streams import Ready, make_stream
from mfpo.types import TIME_BLOCK, Array, Copies, HostedEnv, Key, PyTree, Trajectories

EVALUATION_COPIES = 32
WORTH_A_STRIP = 8  # copies; with fewer of them a second core mostly waits for Python


class _Minds:
    """The policies of a block of agents. Few running episodes are gathered first, so that the others cost nothing."""

    def __init__(self, act: Act) -> None:
        def one(actor: PyTree, obs: Array, key: Array, h: Array) -> tuple[Array, Array]:
            return act(actor, obs, draw_of_step(key, h))

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


class _Strip:
    """Some columns of some agents, with the device that evaluates their policies."""

    def __init__(
        self, env: HostedEnv, agents: slice, columns: slice, device: Any, learning: bool, together: bool
    ) -> None:
        self.env, self.agents, self.columns, self.device = env, agents, columns, device
        self.learning, self.together = learning, together
        self.blocks: dict[tuple[int, ...], Block] = {}  # of agents that are sampled for at the same time

    def rows(self, ids: NDArray[Any]) -> slice:
        """Which of these agents, whose numbers ascend, are here."""
        return slice(*np.searchsorted(ids, (self.agents.start, self.agents.stop)).tolist())

    def block(self, ids: NDArray[Any]) -> Block:
        """The columns of these agents, all of which are here, as the last call for them left them."""
        who = tuple(ids.tolist())
        if who not in self.blocks:
            width = self.columns.stop - self.columns.start
            copies = open_copies(self.env, who, width, self.learning, self.together)
            self.blocks[who] = Block(self.env, copies, who, width)
        return self.blocks[who]

    def close(self) -> None:
        """Close all copies; whoever asks for a block again gets new ones."""
        while self.blocks:
            self.blocks.popitem()[1].close()


def _strips(
    env: HostedEnv, agents: range, columns: int, devices: Sequence[Any], learning: bool, together: bool = False
) -> list[_Strip]:
    """The whole batch, in as many strips as there are devices that are worth their threads, or processes to step it.

    A strip is of whole agents if that comes out as even, so that a core needs no more policies than it must; else of
    some columns of every agent. `together`: all that agents sampled for at the same time have is stepped at once.
    """
    copies = len(agents) * columns
    n = min(len(devices), copies // WORTH_A_STRIP) if env.parallel else 1
    n = max(min(env.processes, copies) or n, 1)
    by_agents, by_columns = _even(len(agents), min(n, len(agents))), _even(columns, min(n, columns))
    if _largest(by_agents) * columns <= len(agents) * _largest(by_columns):
        first = agents.start
        parts = [(slice(first + start, first + stop), slice(0, columns)) for start, stop in pairwise(by_agents)]
    else:
        parts = [(slice(agents.start, agents.stop), slice(*ends)) for ends in pairwise(by_columns)]
    return [_Strip(env, *part, devices[i % len(devices)], learning, together) for i, part in enumerate(parts)]


def _even(total: int, n: int) -> list[int]:
    """Where n parts of so many begin, and the last one ends."""
    return [round(i * total / n) for i in range(n + 1)]


def _largest(ends: list[int]) -> int:
    return max(stop - start for start, stop in pairwise(ends))


T = TypeVar("T")


def _at_once(work: Callable[[_Strip], T], strips: Sequence[_Strip], pool: ThreadPoolExecutor) -> list[T]:
    """The work of every strip; if some fail, the failure of the first of them when all have come to an end.

    What failed is closed, as nobody knows how it stands. An interrupt does not wait for what other processes do.
    """

    def guarded(strip: _Strip) -> T:
        try:
            return work(strip)
        except BaseException:
            strip.close()
            raise

    if len(strips) == 1:
        return [guarded(strips[0])]
    running = [pool.submit(guarded, strip) for strip in strips]
    try:
        wait(running)
    except BaseException:
        stop = strips[0].env.stop
        while stop and wait(running, timeout=0.1).not_done:  # one that was about to start a process has it now
            stop()
        raise
    return [future.result() for future in running]


Play = Callable[[_Strip, PyTree, Array, NDArray[np.uint64], NDArray[Any], int], Trajectories]
# strip, actors, keys and seeds of its columns, ids, step -> its trajectories


def _sampler(
    env: HostedEnv, agents: range, columns: int, devices: Sequence[Any] | None, play: Play, together: bool = False
) -> Sampler:
    strips = _strips(env, agents, columns, devices or jax.devices(), learning=True, together=together)
    pool = ThreadPoolExecutor(len(strips))

    def sample(actors: PyTree, keys: Key, ids: Array, step: Array) -> Trajectories:
        column_keys, seeds = _addresses(keys, columns)
        who, when = np.asarray(ids), int(step)

        def work(strip: _Strip) -> Trajectories:
            rows = strip.rows(who)
            mine = rows, strip.columns
            some = actors if len(who[rows]) == len(who) else jax.tree.map(lambda x: x[rows], actors)
            minds, draws = jax.device_put((some, column_keys[mine]), strip.device)
            return play(strip, minds, draws, seeds[mine], who[rows], when)

        return _join(_at_once(work, [strip for strip in strips if who[strip.rows(who)].size], pool), len(who))

    return sample


def _join(strips: list[Trajectories], agents: int) -> Trajectories:
    """The trajectories of all columns of so many agents."""
    if len(strips) == 1:
        return strips[0]
    *timed, last_obs, length, score = zip(*strips, strict=True)  # timed is [agents, time, columns, ...]
    if len(length[0]) < agents:
        batch: Any = [np.concatenate(parts) for parts in (*timed, last_obs, length, score)]
    else:
        batch = [np.concatenate(parts, axis=2) for parts in timed]
        batch += [np.concatenate(last_obs, axis=1), np.max(length, axis=0), np.concatenate(score, axis=1)]
    return Trajectories(*batch)


def episode_sampler(
    env: HostedEnv, act: Act, agents: int, columns: int, devices: Sequence[Any] | None = None, first: int = 0
) -> Sampler:
    """A sampler of whole episodes, one to a column, for so many agents from number `first` on."""
    minds = _Minds(act)
    slots = -(-env.spec.horizon // TIME_BLOCK) * TIME_BLOCK

    def play(
        strip: _Strip, actors: PyTree, keys: Array, seeds: NDArray[np.uint64], ids: NDArray[Any], step: int
    ) -> Trajectories:
        block, running, h = strip.block(ids), np.ones(seeds.shape, bool), 0
        block.reset(running, seeds)
        tape = Tape(block, slots)
        while running.any():
            action, aux = minds(actors, block, keys, block.elapsed, running)
            tape.see(h)
            reward, terminated, truncated, score = block.step(running, action)
            tape.write(h, aux, reward, running, terminated, truncated)
            tape.count(score)
            running, h = running & ~terminated & ~truncated, h + 1
        return tape.finish(block.now)

    return _sampler(env, range(first, first + agents), columns, devices, play)


def segment_sampler(
    env: HostedEnv,
    act: Act,
    agents: int,
    columns: int,
    length: int,
    devices: Sequence[Any] | None = None,
    ready: Ready | None = None,
    first: int = 0,
) -> Sampler:
    """A sampler of segments in which one episode follows the other.

    The segments of a round are one stream, which begins anew with the first local step: what lies between two rounds
    is in no checkpoint. `ready` is that of `Algorithm`: with it, what a program can step is sampled as a `stream`.
    """
    minds, stream = _Minds(act), make_stream(env, act, ready, length) if ready and env.compiled else None

    def play(
        strip: _Strip, actors: PyTree, keys: Array, seeds: NDArray[np.uint64], ids: NDArray[Any], step: int
    ) -> Trajectories:
        block, running = strip.block(ids), np.ones(seeds.shape, bool)
        if step == 0:
            block.reset(running, seeds)
        if stream and strip.device.platform == "cpu" and block.room_for(length):
            return stream(block, actors, keys)
        tape = Tape(block, length)
        for h in range(length):
            action, aux = minds(actors, block, keys, np.full(seeds.shape, h, np.int32), running)
            tape.see(h)
            reward, terminated, truncated, score = block.step(running, action)
            last = h == length - 1
            tape.write(h, aux, reward, running, terminated, running & ~terminated if last else truncated)
            tape.count(score)
            if last:
                batch = tape.finish(block.now, all_in_use=True)
            # after a truncated step a slot is left for the observation it led to; at the end there is `last_obs`
            block.reset(terminated | ~running | (truncated & last))
            running = ~truncated
        return batch

    return _sampler(env, range(first, first + agents), columns, devices, play, together=True)


def hosted_scores(env: HostedEnv, act: Act, actor: PyTree, key: Key, agent: int, episodes: int) -> NDArray[np.float64]:
    """The return of each of `episodes` whole episodes in the world of one agent."""
    columns = min(episodes, EVALUATION_COPIES)
    strips = _strips(env, range(agent, agent + 1), columns, jax.devices(), learning=False)
    minds, actors = _Minds(act), jax.tree.map(lambda x: x[None], actor)
    keys, seeds = _addresses(key[None], episodes)

    def work(strip: _Strip) -> NDArray[np.float64]:
        share = slice(*(round(end * episodes / columns) for end in (strip.columns.start, strip.columns.stop)))
        block = strip.block(np.array([agent]))
        mine = np.asarray(keys[0, share]), seeds[0, share]
        return _play(block, minds, jax.device_put(actors, strip.device), *mine)

    try:
        with ThreadPoolExecutor(len(strips)) as pool:
            return np.concatenate(_at_once(work, strips, pool))
    finally:
        for strip in strips:
            strip.close()


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


def open_copies(env: HostedEnv, agents: Sequence[int], columns: int, learning: bool, together: bool) -> Copies:
    """`columns` copies of the world of each of these agents."""
    worlds = [dict(env.worlds[agent]) if env.worlds else {} for agent in agents]
    rows = [world for world in worlds for _ in range(columns)]
    return env.open(rows, learning=learning, together=together)


def _addresses(keys: Key, columns: int) -> tuple[Array, NDArray[np.uint64]]:
    """For every column of every agent the key its policy draws from, and the seed of its first episode."""
    of_column, words = _split(keys, columns)
    high, low = np.moveaxis(np.asarray(words).astype(np.uint64), -1, 0)
    return of_column, high << np.uint64(32) | low


@partial(jax.jit, static_argnums=1)
def _split(keys: Key, columns: int) -> tuple[Array, Array]:
    each = jax.vmap(lambda key: jax.random.split(key, columns))(keys)
    words = jax.vmap(jax.vmap(lambda key: jax.random.bits(jax.random.fold_in(key, 0), (2,), jnp.uint32)))(each)
    return jax.random.key_data(each), words
