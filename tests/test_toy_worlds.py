"""Worlds whose best policy is known: an algorithm must find it."""

import jax
import jax.numpy as jnp
import pytest

from mfpo import algorithms
from mfpo.config import build
from mfpo.federation import evaluate, make_engine
from mfpo.types import Box, Discrete, EnvSpec, PureEnv

AGENTS = 4
NETS = {"hidden": [16], "value_hidden": [16]}
REPLAY = {"local_steps": 5, "trajectories": 4, "hidden": [32], "activation": "tanh", "updates_per_step": 1.0}
SMALL = {
    "mfpo": NETS | {"local_steps": 5, "trajectories": 8, "fisher_samples": 64},
    "fedpg_br": NETS | {"trajectories": 20, "stepsize": 0.02, "stepsize_decay": 0.997},
    "fedavg_ppo": NETS | {"local_steps": 5, "trajectories": 8, "stepsize": 0.01, "minibatch": 64},
    "fed_sac": REPLAY | {"stepsize": 5e-3, "target_rate": 0.05, "initial_temperature": 0.1},
    "fed_dqn": REPLAY | {"stepsize": 5e-3, "target_rate": 0.05, "epsilon_steps": 500, "bins": 21},
}
ROUNDS = {"fedpg_br": 120, "fed_dqn": 40}
STEPS = {"natural": 0.2, "adam": 0.05, "normalised": 0.3, "plain": 0.3}


def signs() -> PureEnv:
    """Five steps; the action that matches the sign of the observation is worth 1. Best return: 5."""

    def step(state, action, key):
        return jax.random.normal(key), jnp.where(action == (state > 0), 1.0, 0.0), jnp.bool_(False)

    return PureEnv(EnvSpec("signs", (1,), Discrete(2), 5), jax.random.normal, lambda s: s[None], step)


def patience() -> PureEnv:
    """Taking (action 1) pays 1 and ends; waiting (action 0) pays nothing, but 5 at the third time. Best return: 5."""

    def step(state, action, key):
        state = state + 1
        return state, jnp.where(action == 1, 1.0, jnp.where(state == 3, 5.0, 0.0)), (action == 1) | (state == 3)

    return PureEnv(
        EnvSpec("patience", (4,), Discrete(2), 10), lambda k: jnp.int32(0), lambda s: jax.nn.one_hot(s, 4), step
    )


def follow() -> PureEnv:
    """Five steps; the cost is the squared distance of the action to the observation. Best return: 0."""

    def step(state, action, key):
        return jax.random.uniform(key, minval=-1.0), -((action[0] - state) ** 2), jnp.bool_(False)

    def reset(key):
        return jax.random.uniform(key, minval=-1.0)

    return PureEnv(EnvSpec("follow", (1,), Box((-2.0,), (2.0,)), 5), reset, lambda s: s[None], step)


def score(world: PureEnv, name: str, settings: dict, rounds: int) -> float:
    config = build(algorithms.config_class(name), SMALL[name] | settings, "the test")
    algorithm = algorithms.make(name, config, world.spec, AGENTS)
    engine = make_engine("inprocess", algorithm, world, AGENTS, seed=1)
    state = engine.start()
    for number in range(1, rounds + 1):
        state, _ = engine.round(state, number)
    return float(evaluate(algorithm, world, algorithm.actor(state.server), 1, 500, greedy=True).mean())


WORLDS = {"signs": (signs, 5.0, 0.15), "patience": (patience, 5.0, 0.01), "follow": (follow, 0.0, 0.06)}
CASES = [
    pytest.param(
        name, *case, id=f"{world}-{name}", marks=[] if name == "mfpo" or world == "signs" else pytest.mark.slow
    )
    for name in SMALL
    for world, case in WORLDS.items()
]


@pytest.mark.parametrize(("name", "world", "best", "slack"), CASES)
def test_the_best_policy_is_found(name, world, best, slack):
    assert score(world(), name, {}, rounds=ROUNDS.get(name, 15)) == pytest.approx(best, abs=slack)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.slow
def test_every_step_rule_finds_it(step):
    settings = {"step": step, "stepsize": STEPS[step], "baseline": "time", "normalise_observations": False}
    assert score(signs(), "mfpo", settings, rounds=15) == pytest.approx(5.0, abs=0.15)
