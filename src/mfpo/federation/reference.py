"""How far the direction a server follows is from the gradient it stands for, measured every few rounds.

The gradient is the mean over batches like those an agent learns from, drawn in the server's own environment (the world
that all agents share, else the usual one) with the policy the direction belongs to. Nothing is learned from them, and
their random numbers have an address of their own: a run that measures trains the same policy as one that does not.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mfpo.errors import ConfigError
from mfpo.federation.logs import RoundLog
from mfpo.federation.round import Engine, Purpose, State, address, host_loop
from mfpo.federation.sampling import make_sampler, of_server
from mfpo.learning import diagnostics, trees
from mfpo.types import TIME_BLOCK, Algorithm, Array, Env, EnvSpec, HostedEnv, Key, Metrics, Plan, PyTree, Trajectories

MOST_COLUMNS = 128  # sampled at once; a hosted environment needs a copy for each
MOST_NUMBERS = 2**24  # in the observations of as many


class Amount(NamedTuple):
    """How the trajectories are drawn: two halves of `calls` times `batches` batches each."""

    batches: int
    calls: int


def amount(plan: Plan, spec: EnvSpec, trajectories: int) -> Amount:
    """At least as many trajectories as asked for, no more of them at once than fit in memory.

    Where columns are segments, each place in the stream of a round is met equally often.
    """
    slots = plan.segment or -(-spec.horizon // TIME_BLOCK) * TIME_BLOCK
    columns = min(MOST_COLUMNS, MOST_NUMBERS // (slots * math.prod(spec.observation_shape)))
    needed = -(-trajectories // (2 * plan.episodes))
    batches = max(min(needed, columns // plan.episodes), 1)
    calls = -(-needed // batches)
    return Amount(batches, -(-calls // plan.local_steps) * plan.local_steps if plan.segment else calls)


def measured(engine: Engine, algorithm: Algorithm, env: Env, seed: int, every: int, trajectories: int) -> Engine:
    """The engine; every so many rounds it also reports the error of the direction and the square of the gradient."""
    if algorithm.reference is None:
        raise ConfigError(
            f"--reference-every is {every}, but this algorithm's server follows no direction that stands for a "
            "gradient; leave it out, or use mfpo with its server-side adjustment."
        )
    measure = (make_measure if isinstance(env, HostedEnv) else _shared_measure)(algorithm, env, trajectories)
    key = jax.random.key(seed)

    def round_(state: State, number: int) -> tuple[State, RoundLog]:
        if number % every:
            return engine.round(state, number)
        before = jax.tree.map(jnp.copy, state.server)  # the round may consume the other
        state, log = engine.round(state, number)
        found = measure(before, state.server, key, number)
        return state, log._replace(merge=log.merge | {name: float(value) for name, value in found.items()})

    return engine._replace(round=round_)


def make_measure(algorithm: Algorithm, env: Env, trajectories: int) -> Callable[[PyTree, PyTree, Key, int], Metrics]:
    """Server before and after a round, seed, number of the round -> what `diagnostics.against_reference` says."""
    assert algorithm.reference is not None
    stand, direction, _ = algorithm.reference
    size = amount(algorithm.plan, env.spec, trajectories)
    estimate = _make_estimate(algorithm, env, size.batches)
    device, prepare = jax.devices()[0], jax.jit(stand)
    compare = jax.jit(lambda agent, *halves: diagnostics.against_reference(direction(agent), *halves))
    nothing: Any = ()  # a call reports no more than its gradient

    def measure(before: PyTree, after: PyTree, seed: Key, number: int) -> Metrics:
        agent = prepare(*jax.device_put((before, after), device))
        loop = host_loop(f"round {number}, reference")

        def half(which: int) -> PyTree:
            key = address(seed, Purpose.MEASURE, number, which)
            blank = trees.zeros_like(direction(agent))
            total, _ = loop(lambda g, call: (trees.add(g, estimate(agent, key, call)), nothing), blank, size.calls)
            return trees.scale(1 / size.calls, total)

        found: Metrics = compare(agent, half(0), half(1))
        return found

    return measure


_shared_measure = functools.lru_cache(maxsize=8)(make_measure)  # one program for all seeds of a setting


def _make_estimate(algorithm: Algorithm, env: Env, batches: int) -> Callable[[PyTree, Key, Array], PyTree]:
    """Agent, key, number of the call -> the mean gradient of so many batches drawn with its policy."""
    assert algorithm.reference is not None
    gradient, plan = algorithm.reference.gradient, algorithm.plan
    sample = make_sampler(of_server(env, batches), algorithm, batches)
    ids = jnp.arange(batches)

    def prepare(agent: PyTree, key: Key, call: Array) -> tuple[PyTree, Key]:
        actors = jax.tree.map(lambda x: jnp.broadcast_to(x, (batches, *x.shape)), algorithm.actor(agent))
        return actors, jax.vmap(lambda i: address(key, Purpose.SAMPLE, call, i))(ids)

    def mean(agent: PyTree, drawn: Trajectories) -> PyTree:
        return jax.tree.map(lambda g: jnp.mean(g, axis=0), jax.lax.map(functools.partial(gradient, agent), drawn))

    def estimate(agent: PyTree, key: Key, call: Array) -> PyTree:
        return mean(agent, sample(*prepare(agent, key, call), ids, call % plan.local_steps))

    if not isinstance(env, HostedEnv):
        return jax.jit(estimate)
    prepare, mean = jax.jit(prepare), jax.jit(mean)
    return estimate
