"""The only agent loop, `local`, and the only server loop, `serve`.

Both are written for a block of agents with a leading axis; an engine chooses the block (all agents of a device, or
one) and where it runs. Randomness is addressed, never consumed: every draw belongs to (seed, purpose, round, agent,
step), so the engine, the block and who answers first cannot change it.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfpo.errors import Diverged, MfpoError, StepFailed
from mfpo.rollout import Sampler
from mfpo.types import Algorithm, Array, Key, Metrics, PyTree, Trajectories


class Purpose(IntEnum):
    """What a stream of random numbers is for."""

    INIT = 0
    JOIN = 1
    SAMPLE = 2
    LEARN = 3
    MERGE = 4
    EVALUATE = 5


class State(NamedTuple):
    """All there is to a federation between two rounds; `agents` has a leading axis."""

    server: PyTree
    agents: PyTree


class StepLog(NamedTuple):
    """What the local steps of a block report; leading axes [steps, agents]."""

    returns: Array  # [.., D]
    lengths: Array  # [.., D]
    metrics: Metrics


class RoundLog(NamedTuple):
    """What a round reports, on the host."""

    returns: np.ndarray  # [steps, N, D] of every episode
    lengths: np.ndarray  # [steps, N, D]
    learn: dict[str, np.ndarray]  # [steps, N]
    merge: dict[str, float]


class Engine(NamedTuple):
    """Rounds count from 1. `round` may consume the state it is given."""

    devices: int
    bytes_up: int  # per agent and round
    bytes_down: int
    start: Callable[[], State]
    round: Callable[[State, int], tuple[State, RoundLog]]


def address(seed: Key, purpose: Purpose, *where: Any) -> Key:
    """The key of one draw: `where` is round, agent, step, as far as they apply."""
    key = jax.random.fold_in(seed, purpose)
    for number in where:
        key = jax.random.fold_in(key, number)
    return key


def count_steps(algorithm: Algorithm, round_number: int) -> int:
    """How many local steps the given round has."""
    extra = algorithm.plan.initial_steps if round_number == 1 else 0
    return algorithm.plan.local_steps + extra


def start(algorithm: Algorithm, agents: int, seed: Key) -> State:
    """The state before the first round."""

    @jax.jit
    def program(seed: Key) -> State:  # the seed is an argument: as a constant XLA would work it all out while compiling
        keys = jax.vmap(lambda i: address(seed, Purpose.JOIN, i))(jnp.arange(agents))
        return State(algorithm.init(address(seed, Purpose.INIT)), jax.vmap(algorithm.join)(keys))

    state: State = program(seed)
    return state


class Work(NamedTuple):
    """The compiled parts of what a block of agents does. An engine may wrap them, `local` puts them together."""

    receive: Callable[[PyTree, PyTree], PyTree]  # agents, download -> agents
    prepare: Callable[[PyTree, Array, Key, Array, Array], tuple[PyTree, Key]]
    # agents, ids, seed, round, step -> actors, keys to sample with
    learn: Callable[[PyTree, Array, Trajectories, Key, Array, Array], tuple[PyTree, StepLog]]
    # agents, ids, batch, seed, round, step -> agents, log
    upload: Callable[[PyTree], PyTree]  # agents -> uploads


def make_work(algorithm: Algorithm) -> Work:
    """The parts for an algorithm.

    All agents sample together, then learn one after the other: on a CPU that is faster than a batch of small matrix
    products, and an agent's arithmetic does not depend on who else is in the block.
    """

    def keys(purpose: Purpose, ids: Array, seed: Key, round_number: Array, step: Array) -> Key:
        return jax.vmap(lambda i: address(seed, purpose, round_number, i, step))(ids)

    def prepare(agents: PyTree, ids: Array, seed: Key, round_number: Array, step: Array) -> tuple[PyTree, Key]:
        return jax.vmap(algorithm.actor)(agents), keys(Purpose.SAMPLE, ids, seed, round_number, step)

    def learn(
        agents: PyTree, ids: Array, batch: Trajectories, seed: Key, round_number: Array, step: Array
    ) -> tuple[PyTree, StepLog]:
        own = keys(Purpose.LEARN, ids, seed, round_number, step)
        agents, metrics = jax.lax.map(lambda x: algorithm.learn(*x), (agents, batch, own))
        return agents, StepLog(batch.score, jnp.sum(batch.live, axis=1), metrics)

    return Work(jax.vmap(algorithm.receive, (0, None)), prepare, learn, jax.vmap(algorithm.upload))


def local_step(
    work: Work, sample: Sampler, agents: PyTree, ids: Array, seed: Key, round_number: Array, step: Array
) -> tuple[PyTree, StepLog]:
    """Every agent of the block samples with its policy and learns from what it saw."""
    actors, keys = work.prepare(agents, ids, seed, round_number, step)
    return work.learn(agents, ids, sample(actors, keys, ids, step), seed, round_number, step)


Body = Callable[[PyTree, Any], tuple[PyTree, StepLog]]  # agents, step -> agents, what the step reports
Loop = Callable[[Body, PyTree, Any], tuple[PyTree, StepLog]]  # body, agents, steps -> agents, what all steps report


def local(
    work: Work,
    sample: Sampler,
    loop: Loop,
    agents: PyTree,
    ids: Array,
    download: PyTree,
    seed: Key,
    round_number: Array,
    steps: Any,
) -> tuple[PyTree, PyTree, StepLog]:
    """What a block of agents does between two communications: (agents, uploads, log of all steps).

    `loop` repeats a local step: inside a compiled program, or on the host where the environment is.
    """
    agents, log = loop(
        lambda agents, step: local_step(work, sample, agents, ids, seed, round_number, step),
        work.receive(agents, download),
        steps,
    )
    return agents, work.upload(agents), log


def compiled_loop(most: int) -> Loop:
    """A loop that is part of a compiled program; of its `most` rows only the first `steps` are written."""

    def loop(body: Body, agents: PyTree, steps: Array) -> tuple[PyTree, StepLog]:
        def advance(step: Array, carry: tuple[PyTree, StepLog]) -> tuple[PyTree, StepLog]:
            agents, row = body(carry[0], step)
            return agents, jax.tree.map(lambda rows, x: rows.at[step].set(x), carry[1], row)

        shapes = jax.eval_shape(lambda: body(agents, jnp.int32(0))[1])
        log = jax.tree.map(lambda s: jnp.zeros((most, *s.shape), s.dtype), shapes)
        result: tuple[PyTree, StepLog] = jax.lax.fori_loop(0, steps, advance, (agents, log))
        return result

    return loop


def host_loop(where: str, watched: Callable[[PyTree, StepLog], PyTree] | None = None) -> Loop:
    """A loop in Python. An exception says where it happened; what is `watched` must be finite after every step."""

    def loop(body: Body, agents: PyTree, steps: int) -> tuple[PyTree, StepLog]:
        rows = []
        for step in range(steps):
            here = f"{where}, step {step}"
            try:
                agents, row = body(agents, jnp.int32(step))
                jax.block_until_ready((agents, row))  # type: ignore[no-untyped-call]  # its exceptions belong here too
            except StepFailed as error:
                raise StepFailed(f"{error} ({here})") from error
            except MfpoError:
                raise
            except Exception as error:
                raise StepFailed(f"{type(error).__name__} in {here}: {error}") from error
            if watched:
                check_finite(watched(agents, row), here)
            rows.append(row)
        return agents, jax.tree.map(lambda *x: jnp.stack(x), *rows)

    return loop


def serve(
    algorithm: Algorithm, server: PyTree, uploads: PyTree, mask: Array, seed: Key, round_number: Array
) -> tuple[PyTree, Metrics]:
    """What the server does when the uploads are in."""
    return algorithm.merge(server, uploads, mask, address(seed, Purpose.MERGE, round_number))


def count_bytes(tree: PyTree) -> int:
    """The size of a message: its arrays, without the envelope."""
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def message_bytes(algorithm: Algorithm) -> tuple[int, int]:
    """Bytes up and down, per agent and round."""
    key = jax.random.key(0)
    up = jax.eval_shape(lambda: algorithm.upload(algorithm.join(key)))
    down = jax.eval_shape(lambda: algorithm.download(algorithm.init(key)))
    return count_bytes(up), count_bytes(down)


def host_log(log: StepLog, merge: Metrics, steps: int) -> RoundLog:
    """The log as NumPy arrays, without the rows of steps that did not take place."""
    rows: Any = jax.tree.map(lambda x: np.asarray(x)[:steps], log)
    return RoundLog(rows.returns, rows.lengths, rows.metrics, {k: float(v) for k, v in merge.items()})


def check_finite(tree: PyTree, where: str) -> None:
    """Raise `Diverged` if a number in the tree is not finite."""
    if not all(np.all(np.isfinite(np.asarray(x))) for x in jax.tree.leaves(tree)):
        raise Diverged(f"Training diverged: the parameters are not finite any more ({where}).")
