"""The default engine: a round of all agents is one compiled program, spread over the JAX devices there are."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mfpo.federation import round as federation_round
from mfpo.federation.round import Engine, RoundLog, State, StepLog
from mfpo.rollout import make_sampler
from mfpo.types import Algorithm, Array, Key, Metrics, PureEnv

NAMES = ("inprocess",)

Spec: Any = PartitionSpec
gather: Any = jax.lax.with_sharding_constraint
EVERYWHERE, BY_AGENT, BY_STEP_AND_AGENT = Spec(), Spec("agents"), Spec(None, "agents")


def make(algorithm: Algorithm, env: PureEnv, agents: int, seed: int, devices: int) -> Engine:
    """The engine for `agents` agents on up to `devices` devices (0: all that divide the agents evenly)."""
    used = usable_devices(agents, devices)
    mesh = Mesh(np.array(jax.devices()[:used]), ("agents",))
    placement = State(NamedSharding(mesh, EVERYWHERE), NamedSharding(mesh, BY_AGENT))
    program = compiled_round(algorithm, env, agents, mesh)
    key = jax.random.key(seed)

    def round_(state: State, number: int) -> tuple[State, RoundLog]:
        steps = federation_round.count_steps(algorithm, number)
        state, log, metrics = program(jax.device_put(state, placement), key, jnp.int32(number), jnp.int32(steps))
        federation_round.check_finite(state.server, f"round {number}")
        return state, federation_round.host_log(log, metrics, steps)

    up, down = federation_round.message_bytes(algorithm)
    return Engine(used, up, down, functools.partial(federation_round.start, algorithm, agents, key), round_)


@functools.lru_cache(maxsize=8)
def compiled_round(
    algorithm: Algorithm, env: PureEnv, agents: int, mesh: Mesh
) -> Callable[[State, Key, Array, Array], tuple[State, StepLog, Metrics]]:
    """(state, seed, round, number of local steps) -> what the round gives; shared by all seeds of a setting."""
    local = jax.shard_map(
        functools.partial(federation_round.local, algorithm, make_sampler(env, algorithm)),
        mesh=mesh,
        in_specs=(BY_AGENT, BY_AGENT, EVERYWHERE, EVERYWHERE, EVERYWHERE, EVERYWHERE),
        out_specs=(BY_AGENT, BY_AGENT, BY_STEP_AND_AGENT),
        check_vma=False,
    )

    @functools.partial(jax.jit, donate_argnums=0)
    def program(state: State, seed: Key, number: Array, steps: Array) -> tuple[State, StepLog, Metrics]:
        download = algorithm.download(state.server)
        members, uploads, log = local(state.agents, jnp.arange(agents), download, seed, number, steps)
        # on every device in full: a sum over a spread axis would depend on how many devices there are
        uploads = gather(uploads, NamedSharding(mesh, EVERYWHERE))
        everyone = jnp.ones(agents, bool)
        server, metrics = federation_round.serve(algorithm, state.server, uploads, everyone, seed, number)
        return State(server, members), log, metrics

    return program


def usable_devices(agents: int, most: int) -> int:
    """The largest number of devices present, at most `most` (0: no bound), that divides the number of agents."""
    available = min(jax.device_count(), agents, most or agents)
    return max(n for n in range(1, available + 1) if agents % n == 0)
