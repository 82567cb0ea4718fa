"""The engine for finding faults: plain loops, and an error that names the round, the agent and the step."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from mfpo.errors import MfpoError, StepFailed
from mfpo.federation import round as federation_round
from mfpo.federation.round import Engine, RoundLog, State, StepLog
from mfpo.rollout import make_sampler
from mfpo.types import Algorithm, PureEnv, PyTree

NAMES = ("debug",)


def make(algorithm: Algorithm, env: PureEnv, agents: int, seed: int, devices: int) -> Engine:
    """One agent after the other, one step after the other, each checked. Uses one device whatever `devices` says."""
    key = jax.random.key(seed)
    one_step = jax.jit(functools.partial(federation_round.local_step, algorithm, make_sampler(env, algorithm)))

    def run_agent(agent: PyTree, i: int, download: PyTree, number: int) -> tuple[PyTree, StepLog]:
        block = jax.tree.map(lambda x: x[None], algorithm.receive(agent, download))
        rows = []
        for step in range(federation_round.count_steps(algorithm, number)):
            where = f"round {number}, agent {i}, step {step}"
            try:
                block, row = one_step(block, jnp.array([i]), key, jnp.int32(number), jnp.int32(step))
                jax.block_until_ready((block, row))  # type: ignore[no-untyped-call]  # its exceptions belong here too
            except MfpoError:
                raise
            except Exception as error:
                raise StepFailed(f"{type(error).__name__} in {where}: {error}") from error
            federation_round.check_finite((block, row), where)
            rows.append(row)
        return jax.tree.map(lambda x: x[0], block), _stack(rows, axis=0)

    def round_(state: State, number: int) -> tuple[State, RoundLog]:
        download = algorithm.download(state.server)
        results = [
            run_agent(jax.tree.map(lambda x, i=i: x[i], state.agents), i, download, number) for i in range(agents)
        ]
        members = [agent for agent, _ in results]
        uploads = _stack([algorithm.upload(agent) for agent in members], axis=0)
        log = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *[rows for _, rows in results])
        everyone = jnp.ones(agents, bool)
        server, metrics = federation_round.serve(algorithm, state.server, uploads, everyone, key, jnp.int32(number))
        federation_round.check_finite(server, f"round {number}, server")
        steps = federation_round.count_steps(algorithm, number)
        return State(server, _stack(members, axis=0)), federation_round.host_log(log, metrics, steps)

    up, down = federation_round.message_bytes(algorithm)
    return Engine(1, up, down, functools.partial(federation_round.start, algorithm, agents, key), round_)


def _stack(trees: list[Any], axis: int) -> Any:
    return jax.tree.map(lambda *x: jnp.stack(x, axis), *trees)
