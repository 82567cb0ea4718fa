"""What acting at random is worth, in environments that nothing was tuned for: results/random.json.

    python studies/random_policy.py       # from the root of a clone

Actions are uniform over those there are; the agents' worlds are the usual one.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp

from mfpo import envs
from mfpo.hosted import hosted_scores
from mfpo.types import Array, Box, Discrete, EnvSpec, HostedEnv, Key, PyTree

RESULTS = Path(__file__).parent.parent / "results" / "random.json"
ENVS = ("Acrobot-v1", "Walker2d-v5", "examples.heating:Heating-v0")
EPISODES = 100


def score(name: str) -> float:
    """The mean return."""
    env = envs.make(name)
    assert isinstance(env, HostedEnv)

    def act(actor: PyTree, obs: Array, key: Key) -> tuple[Array, Array]:
        return (draw(env.spec, key),) * 2

    return float(hosted_scores(env, act, jnp.zeros(1), jax.random.key(0), 0, EPISODES).mean())


def draw(spec: EnvSpec, key: Key) -> Array:
    """An action."""
    if isinstance(spec.action, Discrete):
        return jax.random.randint(key, (), 0, spec.action.n)
    assert isinstance(spec.action, Box)
    low, high = jnp.array(spec.action.low), jnp.array(spec.action.high)
    return jax.random.uniform(key, low.shape, minval=low, maxval=high)


if __name__ == "__main__":
    scores = {name: score(name) for name in ENVS}
    print(scores)
    RESULTS.write_text(json.dumps({"episodes": EPISODES, "mean": scores}, indent=2) + "\n")
