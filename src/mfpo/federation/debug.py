"""The engine for finding faults: plain loops, and an error that names the round, the agent and the step."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from mfpo.federation import round as federation_round
from mfpo.federation.faults import NONE, Faults, as_acted
from mfpo.federation.logs import RoundLog, StepLog, host_log
from mfpo.federation.round import Engine, Service, State
from mfpo.federation.sampling import make_sampler, make_server_sampler
from mfpo.types import Algorithm, Env, HostedEnv, PyTree

NAMES = ("debug",)


def make(algorithm: Algorithm, env: Env, agents: int, seed: int, devices: int, faults: Faults = NONE) -> Engine:
    """One agent after the other, one step after the other, each checked. Uses one device whatever `devices` says."""
    key = jax.random.key(seed)
    work = federation_round.compiled(federation_round.make_work(algorithm, faults))
    service = federation_round.make_service(algorithm)
    service = Service(service.merge, *[jax.jit(part) for part in service[1:]])
    sample = make_sampler(env, as_acted(algorithm, env.spec, faults), agents)
    server_sample = make_server_sampler(env, algorithm)
    if not isinstance(env, HostedEnv):
        sample, server_sample = jax.jit(sample), server_sample and jax.jit(server_sample)

    def watched(side: PyTree, row: StepLog) -> PyTree:
        """Everything; but a segment in which no episode ended has no return."""
        return (side, row._replace(returns=row.lengths) if algorithm.plan.segment else row)

    def run_agent(agent: PyTree, i: int, download: PyTree, number: int) -> tuple[PyTree, PyTree, StepLog]:
        block = jax.tree.map(lambda x: x[None], agent)
        loop = federation_round.host_loop(f"round {number}, agent {i}", watched)
        steps = federation_round.count_steps(algorithm, number)
        return federation_round.local(
            work, sample, loop, block, jnp.array([i]), download, key, jnp.int32(number), steps
        )

    def round_(state: State, number: int) -> tuple[State, RoundLog]:
        download = algorithm.download(state.server)
        results = [
            run_agent(jax.tree.map(lambda x, i=i: x[i], state.agents), i, download, number) for i in range(agents)
        ]
        members, uploads = (_join([result[k] for result in results], axis=0) for k in (0, 1))
        log = _join([rows for _, _, rows in results], axis=1)
        present = federation_round.attend(faults, agents, key, jnp.int32(number))
        loop = federation_round.host_loop(f"round {number}, server", watched)
        server, service_log = federation_round.serve(
            service, server_sample, loop, state.server, uploads, present.answers, key, jnp.int32(number)
        )
        federation_round.check_finite(server, f"round {number}, server")
        steps = federation_round.count_steps(algorithm, number)
        after = federation_round.after_round(faults, present, server, members, state.agents)
        return after, host_log(log, service_log, present, steps, faults.byzantine)

    up, down = federation_round.message_bytes(algorithm)
    return Engine(1, up, down, functools.partial(federation_round.start, algorithm, agents, key), round_)


def _join(trees: list[Any], axis: int) -> Any:
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis), *trees)
