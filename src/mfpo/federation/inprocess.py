"""The default engine: all agents at once, spread over the JAX devices there are.

With a pure environment a whole round is one compiled program. With a hosted one the parts of a round are compiled, and
the host goes from one to the next.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mfpo.federation import round as federation_round
from mfpo.federation.round import Engine, RoundLog, State, StepLog, Work
from mfpo.federation.sampling import make_sampler
from mfpo.types import Algorithm, Array, Env, HostedEnv, Key, Metrics, PureEnv, PyTree, Trajectories

NAMES = ("inprocess",)

Spec: Any = PartitionSpec
gather: Any = jax.lax.with_sharding_constraint
EVERYWHERE, BY_AGENT, BY_STEP_AND_AGENT = Spec(), Spec("agents"), Spec(None, "agents")


Program = Callable[[State, Key, int, int], tuple[State, StepLog, Metrics]]  # state, seed, round, number of local steps


def make(algorithm: Algorithm, env: Env, agents: int, seed: int, devices: int) -> Engine:
    """The engine for `agents` agents on up to `devices` devices (0: all that divide the agents evenly)."""
    used = usable_devices(agents, devices)
    mesh = Mesh(np.array(jax.devices()[:used]), ("agents",))
    placement = State(NamedSharding(mesh, EVERYWHERE), NamedSharding(mesh, BY_AGENT))
    if isinstance(env, HostedEnv):
        program = hosted_round(algorithm, env, agents, mesh, jax.devices()[: devices or None])
    else:
        program = compiled_round(algorithm, env, agents, mesh)
    key = jax.random.key(seed)

    def round_(state: State, number: int) -> tuple[State, RoundLog]:
        steps = federation_round.count_steps(algorithm, number)
        state, log, metrics = program(jax.device_put(state, placement), key, number, steps)
        federation_round.check_finite(state.server, f"round {number}")
        return state, federation_round.host_log(log, metrics, steps)

    up, down = federation_round.message_bytes(algorithm)
    return Engine(used, up, down, functools.partial(federation_round.start, algorithm, agents, key), round_)


@functools.lru_cache(maxsize=8)
def compiled_round(algorithm: Algorithm, env: PureEnv, agents: int, mesh: Mesh) -> Program:
    """A round as one program; shared by all seeds of a setting."""
    work, sample = federation_round.make_work(algorithm), make_sampler(env, algorithm, agents)
    loop = federation_round.compiled_loop(algorithm.plan.initial_steps + algorithm.plan.local_steps)
    local = jax.shard_map(
        functools.partial(federation_round.local, work, sample, loop),
        mesh=mesh,
        in_specs=(BY_AGENT, BY_AGENT, EVERYWHERE, EVERYWHERE, EVERYWHERE, EVERYWHERE),
        out_specs=(BY_AGENT, BY_AGENT, BY_STEP_AND_AGENT),
        check_vma=False,
    )

    @functools.partial(jax.jit, donate_argnums=0)
    def program(state: State, seed: Key, number: Array, steps: Array) -> tuple[State, StepLog, Metrics]:
        download = algorithm.download(state.server)
        members, uploads, log = local(state.agents, jnp.arange(agents), download, seed, number, steps)
        server, metrics = _serve(algorithm, mesh, state.server, uploads, seed, number)
        return State(server, members), log, metrics

    return lambda state, seed, number, steps: program(state, seed, jnp.int32(number), jnp.int32(steps))


def hosted_round(
    algorithm: Algorithm, env: HostedEnv, agents: int, mesh: Mesh, devices: Sequence[jax.Device]
) -> Program:
    """A round whose environments are stepped on the host, between the compiled parts of the agents' work.

    The agents learn on the devices of the mesh; to sample there may be more of them.
    """
    part = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
    plain = federation_round.make_work(algorithm)
    everyones = (EVERYWHERE,) * 3  # seed, round, step
    work = Work(
        receive=jax.jit(part(plain.receive, in_specs=(BY_AGENT, EVERYWHERE), out_specs=BY_AGENT)),
        prepare=jax.jit(part(plain.prepare, in_specs=(BY_AGENT, BY_AGENT, *everyones), out_specs=BY_AGENT)),
        learn=jax.jit(part(plain.learn, in_specs=(BY_AGENT, BY_AGENT, BY_AGENT, *everyones), out_specs=BY_AGENT)),
        upload=jax.jit(part(plain.upload, in_specs=(BY_AGENT,), out_specs=BY_AGENT)),
    )
    on_host = make_sampler(env, algorithm, agents, devices)
    serve = jax.jit(functools.partial(_serve, algorithm, mesh))

    def sample(actors: PyTree, keys: Key, ids: Array, step: Array) -> Trajectories:
        here = devices[0]
        return on_host(jax.device_put(actors, here), jax.device_put(keys, here), ids, step)

    def program(state: State, seed: Key, number: int, steps: int) -> tuple[State, StepLog, Metrics]:
        loop = federation_round.host_loop(f"round {number}")
        ids, download, count = jnp.arange(agents), algorithm.download(state.server), jnp.int32(number)
        members, uploads, log = federation_round.local(
            work, sample, loop, state.agents, ids, download, seed, count, steps
        )
        server, metrics = serve(state.server, uploads, seed, count)
        return State(server, members), log, metrics

    return program


def _serve(
    algorithm: Algorithm, mesh: Mesh, server: PyTree, uploads: PyTree, seed: Key, number: Array
) -> tuple[PyTree, Metrics]:
    # on every device in full: a sum over a spread axis would depend on how many devices there are
    uploads = gather(uploads, NamedSharding(mesh, EVERYWHERE))
    everyone = jnp.ones(jax.tree.leaves(uploads)[0].shape[0], bool)
    return federation_round.serve(algorithm, server, uploads, everyone, seed, number)


def usable_devices(agents: int, most: int) -> int:
    """The largest number of devices present, at most `most` (0: no bound), that divides the number of agents."""
    available = min(jax.device_count(), agents, most or agents)
    return max(n for n in range(1, available + 1) if agents % n == 0)
