"""The only agent loop, `local`, and the only server loop, `serve`.

Both are written for a block of agents with a leading axis; an engine chooses the block (all agents of a device, or
one) and where it runs. Randomness is addressed, never consumed: every draw belongs to (seed, purpose, round, agent,
step), so the engine, the block and who answers first cannot change it.
"""

import functools
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfpo.errors import Diverged, MfpoError, StepFailed
from mfpo.federation import faults as faulty
from mfpo.federation.faults import Attendance, Faults
from mfpo.federation.logs import RoundLog, ServiceLog, StepLog
from mfpo.federation.turns import in_turn
from mfpo.learning import trees
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
    REFINE = 6
    ATTEND = 7
    LIE = 8
    MEASURE = 9


class State(NamedTuple):
    """All there is to a federation between two rounds; `agents` has a leading axis."""

    server: PyTree
    agents: PyTree


class Engine(NamedTuple):
    """Rounds count from 1. `round` may consume the state it is given."""

    devices: int  # in use, for sampling at least
    bytes_up: int  # per agent and round
    bytes_down: int
    start: Callable[[], State]
    round: Callable[[State, int], tuple[State, RoundLog]]
    sharing: int = 1  # engines at work side by side in this process


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


def attend(faults: Faults, agents: int, seed: Key, round_number: Array) -> Attendance:
    """Who takes part in a round."""
    return faulty.attendance(faults, address(seed, Purpose.ATTEND, round_number), agents)


def after_round(faults: Faults, attendance: Attendance, server: PyTree, learned: PyTree, before: PyTree) -> State:
    """The state a round leaves behind; agents that did not work are as they were before it."""
    absent = faulty.unreliable(faults)
    return State(server, trees.where_row(attendance.works, learned, before) if absent else learned)


def found(algorithm: Algorithm, seed: Key) -> PyTree:
    """The server before the first round."""
    return algorithm.init(address(seed, Purpose.INIT))


def join(algorithm: Algorithm, ids: Array, seed: Key) -> PyTree:
    """A block of agents before their first round."""
    return jax.vmap(algorithm.join)(jax.vmap(lambda i: address(seed, Purpose.JOIN, i))(ids))


def start(algorithm: Algorithm, agents: int, seed: Key) -> State:
    """The state before the first round."""
    return _beginning(algorithm, agents)(seed)


@functools.lru_cache(maxsize=8)  # shared by all seeds of a setting
def _beginning(algorithm: Algorithm, agents: int) -> Callable[[Key], State]:
    @jax.jit
    def program(seed: Key) -> State:  # the seed is an argument: as a constant XLA would work it all out while compiling
        return State(found(algorithm, seed), join(algorithm, jnp.arange(agents), seed))

    return program


class Work(NamedTuple):
    """The compiled parts of what a block of agents does. An engine may wrap them, `local` puts them together."""

    receive: Callable[[PyTree, PyTree], PyTree]  # agents, download -> agents
    prepare: Callable[[PyTree, Array, Key, Array, Array], tuple[PyTree, Key]]
    # agents, ids, seed, round, step -> actors, keys to sample with
    learn: Callable[[PyTree, Array, Trajectories, Key, Array, Array], tuple[PyTree, StepLog]]
    # agents, ids, batch, seed, round, step -> agents, log
    upload: Callable[[PyTree], PyTree]  # agents -> uploads
    lie: Callable[[PyTree, PyTree, PyTree, Array, Key, Array], PyTree] | None = None
    # uploads, those without having learned, those of the round before, ids, seed, round -> uploads


def make_work(algorithm: Algorithm, faults: Faults = faulty.NONE) -> Work:
    """The parts for an algorithm; liars among the agents are told by their ids.

    All agents sample together, then learn one after the other: on a CPU that is faster than a batch of small matrix
    products, and an agent's arithmetic does not depend on who else is in the block.
    """

    def keys(purpose: Purpose, ids: Array, seed: Key, round_number: Array, step: Array) -> Key:
        return jax.vmap(lambda i: address(seed, purpose, round_number, i, step))(ids)

    def prepare(agents: PyTree, ids: Array, seed: Key, round_number: Array, step: Array) -> tuple[PyTree, Key]:
        actors = jax.vmap(algorithm.actor)(agents)
        if faults.byzantine and faults.attack == "random-action":
            actors = (actors, ids < faults.byzantine)
        return actors, keys(Purpose.SAMPLE, ids, seed, round_number, step)

    def learn(
        agents: PyTree, ids: Array, batch: Trajectories, seed: Key, round_number: Array, step: Array
    ) -> tuple[PyTree, StepLog]:
        own = keys(Purpose.LEARN, ids, seed, round_number, step)
        seen = batch
        if faults.byzantine and faults.attack in faulty.OF_REWARDS:
            spoilt = jax.vmap(lambda x, key: faulty.spoil(faults.attack, x, key))(batch, own)
            seen = _for_liars(spoilt, batch, ids)
        agents, metrics = in_turn(algorithm.learn, agents, seen, own)
        return agents, StepLog(batch.score, jnp.sum(batch.live, axis=1), metrics)

    def lie(uploads: PyTree, untaught: PyTree, previous: PyTree, ids: Array, seed: Key, round_number: Array) -> PyTree:
        of_one = faulty.make_lie(faults.attack, faults.strength)
        own = jax.vmap(lambda i: address(seed, Purpose.LIE, round_number, i))(ids)
        previous = trees.where(round_number > 1, previous, untaught)
        lies = jax.vmap(of_one, (0, 0, 0, 0, None))(uploads, untaught, previous, own, address(seed, Purpose.LIE))
        return _for_liars(lies, uploads, ids)

    def _for_liars(lies: PyTree, truth: PyTree, ids: Array) -> PyTree:
        return trees.where_row(ids < faults.byzantine, lies, truth)

    lying = faults.byzantine and faults.attack in faulty.OF_UPLOADS
    receive, upload = jax.vmap(algorithm.receive, (0, None)), jax.vmap(algorithm.upload)
    return Work(receive, prepare, learn, upload, lie if lying else None)


def compiled(work: Work) -> Work:
    """The parts, each compiled by itself."""
    return Work(*[jax.jit(part) for part in work[:4]])._replace(lie=work.lie and jax.jit(work.lie))


def local_step(
    work: Work, sample: Sampler, agents: PyTree, ids: Array, seed: Key, round_number: Array, step: Array
) -> tuple[PyTree, StepLog]:
    """Every agent of the block samples with its policy and learns from what it saw."""
    actors, keys = work.prepare(agents, ids, seed, round_number, step)
    return work.learn(agents, ids, sample(actors, keys, ids, step), seed, round_number, step)


Body = Callable[[PyTree, Any], tuple[PyTree, StepLog]]  # agents, step -> agents, what the step reports
Loop = Callable[[Body, PyTree, Any], tuple[PyTree, StepLog | None]]
# body, agents, steps -> agents, what all steps report (None: there were none)


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
    previous = work.upload(agents) if work.lie else None
    received = work.receive(agents, download)
    untaught = work.upload(received) if work.lie else None
    learned, log = loop(
        lambda agents, step: local_step(work, sample, agents, ids, seed, round_number, step), received, steps
    )
    assert log is not None  # K is at least 1
    uploads = work.upload(learned)
    if work.lie:
        uploads = work.lie(uploads, untaught, previous, ids, seed, round_number)
    return learned, uploads, log


def compiled_loop(most: int) -> Loop:
    """A loop that is part of a compiled program; of its `most` rows only the first `steps` are written."""

    def loop(body: Body, agents: PyTree, steps: Array) -> tuple[PyTree, StepLog | None]:
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

    def loop(body: Body, agents: PyTree, steps: int) -> tuple[PyTree, StepLog | None]:
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
        return agents, jax.tree.map(lambda *x: jnp.stack(x), *rows) if rows else None

    return loop


class Service(NamedTuple):
    """The compiled parts of what the server does. An engine may wrap them, `serve` puts them together."""

    merge: Callable[[PyTree, PyTree, Array, Key, Array], tuple[PyTree, Metrics]]
    # server, uploads, mask, seed, round -> server, metrics
    refinements: Callable[[PyTree], Array]  # merged server -> their number
    prepare: Callable[[PyTree, Key, Array, Array], tuple[PyTree, Key]]
    # server, seed, round, step -> actors and keys to sample with, for a block of one
    refine: Callable[[PyTree, Trajectories, Key, Array, Array], tuple[PyTree, StepLog]]
    # server, the block's batch, seed, round, step -> server, log


def make_service(algorithm: Algorithm) -> Service:
    """The parts for an algorithm."""

    def merge(server: PyTree, uploads: PyTree, mask: Array, seed: Key, round_number: Array) -> tuple[PyTree, Metrics]:
        return algorithm.merge(server, uploads, mask, address(seed, Purpose.MERGE, round_number))

    def refinements(server: PyTree) -> Array:
        assert algorithm.refinements is not None  # it comes with `refine`
        return jnp.minimum(algorithm.refinements(server), algorithm.plan.server_steps)

    def prepare(server: PyTree, seed: Key, round_number: Array, step: Array) -> tuple[PyTree, Key]:
        block = jax.tree.map(lambda x: x[None], algorithm.actor(server))
        return block, address(seed, Purpose.REFINE, round_number, step, 0)[None]

    def refine(
        server: PyTree, batch: Trajectories, seed: Key, round_number: Array, step: Array
    ) -> tuple[PyTree, StepLog]:
        assert algorithm.refine is not None
        own: Trajectories = jax.tree.map(lambda x: x[0], batch)
        server, metrics = algorithm.refine(server, own, address(seed, Purpose.REFINE, round_number, step, 1))
        return server, StepLog(own.score, jnp.sum(own.live, axis=0), metrics)

    return Service(merge, refinements, prepare, refine)


def serve(
    service: Service,
    sample: Sampler | None,
    loop: Loop,
    server: PyTree,
    uploads: PyTree,
    mask: Array,
    seed: Key,
    round_number: Array,
) -> tuple[PyTree, ServiceLog]:
    """What the server does when the uploads are in. With a sampler, it refines what it merged on samples of its own."""
    server, metrics = service.merge(server, uploads, mask, seed, round_number)
    if sample is None:
        return server, ServiceLog(metrics)

    def refinement(server: PyTree, step: Array) -> tuple[PyTree, StepLog]:
        actors, keys = service.prepare(server, seed, round_number, step)
        return service.refine(server, sample(actors, keys, jnp.zeros(1, int), step), seed, round_number, step)

    steps = service.refinements(server)
    server, log = loop(refinement, server, steps)
    return server, ServiceLog(metrics, steps, log)


def message_bytes(algorithm: Algorithm) -> tuple[int, int]:
    """Bytes up and down, per agent and round."""
    key = jax.random.key(0)
    up = jax.eval_shape(lambda: algorithm.upload(algorithm.join(key)))
    down = jax.eval_shape(lambda: algorithm.download(algorithm.init(key)))
    return trees.count_bytes(up), trees.count_bytes(down)


def check_finite(tree: PyTree, where: str) -> None:
    """Raise `Diverged` if a number in the tree is not finite."""
    if not all(np.all(np.isfinite(np.asarray(x))) for x in jax.tree.leaves(tree)):
        raise Diverged(f"Training diverged: the parameters are not finite any more ({where}).")
