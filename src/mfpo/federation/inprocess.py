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
from mfpo.federation.faults import NONE, Attendance, Faults, as_acted, check, unreliable
from mfpo.federation.logs import RoundLog, ServiceLog, StepLog, host_log
from mfpo.federation.round import Engine, Service, State, Work
from mfpo.federation.sampling import make_sampler, make_server_sampler
from mfpo.learning import trees
from mfpo.rollout import Sampler
from mfpo.types import Algorithm, Array, Env, HostedEnv, Key, Metrics, PureEnv, PyTree, Trajectories

NAMES = ("inprocess",)

Spec: Any = PartitionSpec
gather: Any = jax.lax.with_sharding_constraint
LARGE = 2**23  # bytes; an agent with a replay or frames to look at learns in place, a smaller one faster if not
EVERYWHERE, BY_AGENT, BY_STEP_AND_AGENT = Spec(), Spec("agents"), Spec(None, "agents")


Program = Callable[[State, Key, int, int], tuple[State, StepLog, ServiceLog, Attendance]]
# state, seed, round, number of local steps -> state, what the agents report, what the server reports, who was there


def make(algorithm: Algorithm, env: Env, agents: int, seed: int, devices: int, faults: Faults = NONE) -> Engine:
    """The engine for `agents` agents on up to `devices` devices (0: all there are, and that can be used)."""
    mesh = Mesh(np.array(jax.devices()[: usable_devices(agents, devices)]), ("agents",))
    if not isinstance(env, HostedEnv):
        return _engine(algorithm, agents, seed, mesh, compiled_round(algorithm, env, agents, mesh, faults), faults)
    sampling = jax.devices()[: devices or None]  # the agents need not be divided evenly over them
    program = hosted_round(algorithm, env, agents, mesh, sampling, faults)
    return _engine(algorithm, agents, seed, mesh, program, faults)._replace(devices=len(sampling))


def make_on(
    device: jax.Device, algorithm: Algorithm, env: PureEnv, agents: int, seed: int, faults: Faults = NONE
) -> Engine:
    """The engine on one device, whichever it is: several seeds can be trained side by side, each to the same bits."""
    check(faults, agents)
    mesh = Mesh(np.array([device]), ("agents",))
    return _engine(algorithm, agents, seed, mesh, compiled_round(algorithm, env, agents, mesh, faults), faults)


def _engine(algorithm: Algorithm, agents: int, seed: int, mesh: Mesh, program: Program, faults: Faults) -> Engine:
    placement = State(NamedSharding(mesh, EVERYWHERE), NamedSharding(mesh, BY_AGENT))
    key = jax.random.key(seed)

    def round_(state: State, number: int) -> tuple[State, RoundLog]:
        steps = federation_round.count_steps(algorithm, number)
        state, log, service_log, present = program(jax.device_put(state, placement), key, number, steps)
        federation_round.check_finite(state.server, f"round {number}")
        return state, host_log(log, service_log, present, steps, faults.byzantine)

    up, down = federation_round.message_bytes(algorithm)
    return Engine(mesh.size, up, down, functools.partial(federation_round.start, algorithm, agents, key), round_)


@functools.lru_cache(maxsize=8)
def compiled_round(algorithm: Algorithm, env: PureEnv, agents: int, mesh: Mesh, faults: Faults) -> Program:
    """A round as one program; shared by all seeds of a setting."""
    work = federation_round.make_work(algorithm, faults)
    sample = make_sampler(env, as_acted(algorithm, env.spec, faults), agents)
    loop = federation_round.compiled_loop(algorithm.plan.initial_steps + algorithm.plan.local_steps)
    local = jax.shard_map(
        functools.partial(federation_round.local, work, sample, loop),
        mesh=mesh,
        in_specs=(BY_AGENT, BY_AGENT, EVERYWHERE, EVERYWHERE, EVERYWHERE, EVERYWHERE),
        out_specs=(BY_AGENT, BY_AGENT, BY_STEP_AND_AGENT),
        check_vma=False,
    )
    service = _gathering(federation_round.make_service(algorithm), mesh)
    server_loop = federation_round.compiled_loop(algorithm.plan.server_steps)
    serve = functools.partial(federation_round.serve, service, make_server_sampler(env, algorithm), server_loop)

    @functools.partial(jax.jit, donate_argnums=0)
    def program(state: State, seed: Key, number: Array, steps: Array) -> tuple[State, StepLog, ServiceLog, Attendance]:
        present = federation_round.attend(faults, agents, seed, number)
        download = algorithm.download(state.server)
        members, uploads, log = local(state.agents, jnp.arange(agents), download, seed, number, steps)
        server, service_log = serve(state.server, uploads, present.answers, seed, number)
        after = federation_round.after_round(faults, present, server, members, state.agents)
        return after, log, service_log, present

    return lambda state, seed, number, steps: program(state, seed, jnp.int32(number), jnp.int32(steps))


def hosted_round(
    algorithm: Algorithm, env: HostedEnv, agents: int, mesh: Mesh, devices: Sequence[jax.Device], faults: Faults
) -> Program:
    """A round whose environments are stepped on the host, between the compiled parts of the agents' work.

    The agents learn on the devices of the mesh; to sample there may be more of them.
    """
    part = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
    plain = federation_round.make_work(algorithm, faults)
    everyones = (EVERYWHERE,) * 3  # seed, round, step
    agent = jax.eval_shape(lambda: algorithm.join(jax.random.key(0)))
    in_place = 0 if trees.count_bytes(agent) >= LARGE else ()
    spent = () if unreliable(faults) else in_place  # not if it may be needed again
    work = Work(
        receive=jax.jit(part(plain.receive, in_specs=(BY_AGENT, EVERYWHERE), out_specs=BY_AGENT), donate_argnums=spent),
        prepare=jax.jit(part(plain.prepare, in_specs=(BY_AGENT, BY_AGENT, *everyones), out_specs=BY_AGENT)),
        learn=jax.jit(
            part(plain.learn, in_specs=(BY_AGENT, BY_AGENT, BY_AGENT, *everyones), out_specs=BY_AGENT),
            donate_argnums=in_place,
        ),
        upload=jax.jit(part(plain.upload, in_specs=(BY_AGENT,), out_specs=BY_AGENT)),
        lie=plain.lie and jax.jit(plain.lie),
    )
    service = Service(*[jax.jit(part) for part in _gathering(federation_round.make_service(algorithm), mesh)])
    sample = _from_first(devices, make_sampler(env, as_acted(algorithm, env.spec, faults), agents, devices))
    server_sampler = make_server_sampler(env, algorithm, devices)
    server_sample = server_sampler and _from_first(devices, server_sampler)

    attend = jax.jit(functools.partial(federation_round.attend, faults, agents))

    def program(state: State, seed: Key, number: int, steps: int) -> tuple[State, StepLog, ServiceLog, Attendance]:
        present = attend(seed, jnp.int32(number))
        loop = federation_round.host_loop(f"round {number}")
        ids, download, count = jnp.arange(agents), algorithm.download(state.server), jnp.int32(number)
        members, uploads, log = federation_round.local(
            work, sample, loop, state.agents, ids, download, seed, count, steps
        )
        loop = federation_round.host_loop(f"round {number}, server")
        server, service_log = federation_round.serve(
            service, server_sample, loop, state.server, uploads, present.answers, seed, count
        )
        after = federation_round.after_round(faults, present, server, members, state.agents)
        return after, log, service_log, present

    return program


def _from_first(devices: Sequence[jax.Device], on_host: Sampler) -> Sampler:
    """The sampler, with everything it is given on the first of the devices."""

    def sample(actors: PyTree, keys: Key, ids: Array, step: Array) -> Trajectories:
        here = devices[0]
        return on_host(jax.device_put(actors, here), jax.device_put(keys, here), ids, step)

    return sample


def _gathering(service: Service, mesh: Mesh) -> Service:
    """The service, with the uploads on every device in full: a sum over a spread axis would depend on their number."""

    def merge(server: PyTree, uploads: PyTree, *others: Array) -> tuple[PyTree, Metrics]:
        return service.merge(server, gather(uploads, NamedSharding(mesh, EVERYWHERE)), *others)

    return service._replace(merge=merge)


def usable_devices(agents: int, most: int) -> int:
    """The largest number of devices present, at most `most` (0: no bound), that divides the number of agents."""
    available = min(jax.device_count(), agents, most or agents)
    return max(n for n in range(1, available + 1) if agents % n == 0)
