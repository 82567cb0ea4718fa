"""A world of three states, two actions and two steps: 36 trajectories, so that expectations are sums.

A policy is a row of logits per state and a shared one, so β₁ = √2·√2 (the norm of e_a - π is below √2, that of an
observation with a constant is √2) and β₂ = 1/2·2.
"""

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfpo.learning.policies import Policy, make_policy
from mfpo.learning.theory import Problem
from mfpo.types import Array, Discrete, EnvSpec, Key, PureEnv

REWARD = np.array([[0.0, 1.0], [0.2, 0.9], [0.6, 0.1]])  # [state, action], between 0 and 1
NEXT = np.array(
    [[[0.8, 0.1, 0.1], [0.1, 0.3, 0.6]], [[0.2, 0.6, 0.2], [0.5, 0.4, 0.1]], [[0.1, 0.1, 0.8], [0.4] * 2 + [0.2]]]
)
FIRST = np.array([0.4, 0.4, 0.2])
H, GAMMA = 2, 0.2
SPEC = EnvSpec("three states", (3,), Discrete(2), H)
SIGMA_W = 0.1  # assumed; checked along the run
PROBLEM = Problem(H, reward_bound=1.0, gamma=GAMMA, beta1=2.0, beta2=1.0, sigma_w=SIGMA_W)


def world() -> PureEnv:
    """The world as the engines see it; an observation says which state it is."""

    def draw(key: Key, p: Array) -> Array:
        return jnp.sum(jax.random.uniform(key) >= jnp.cumsum(p)[:-1])

    def step(state: Array, action: Array, key: Key) -> tuple[Array, Array, Array]:
        after = draw(key, jnp.asarray(NEXT, jnp.float32)[state, action])
        return after, jnp.asarray(REWARD, jnp.float32)[state, action], jnp.bool_(False)

    return PureEnv(
        SPEC, lambda key: draw(key, jnp.asarray(FIRST, jnp.float32)), lambda state: jax.nn.one_hot(state, 3), step
    )


def policy() -> Policy:
    """Logits that are linear in the observation, as MFPO makes them without hidden units."""
    return make_policy(SPEC, (), "tanh", 1.0, "tanh")


def log_pi(theta: Array) -> Array:
    """log π(a|s) [state, action]."""
    pi = policy()

    def of_state(obs: Array) -> Array:
        dist = pi.distribution(pi.unravel(theta), obs)
        return jax.vmap(lambda a: pi.log_prob(dist, a))(jnp.arange(2))

    return jax.vmap(of_state)(jnp.eye(3))


def objective(theta: Array) -> Array:
    """J(θ) = -E[discounted return], by dynamic programming."""
    pi, value = jnp.exp(log_pi(theta)), jnp.zeros(3)
    for _ in range(H):
        value = jnp.sum(pi * (REWARD + GAMMA * NEXT @ value), axis=1)
    return -jnp.dot(FIRST, value)


def best_objective() -> float:
    """J*: the least J, of always taking the better action."""
    value = np.zeros(3)
    for _ in range(H):
        value = np.max(REWARD + GAMMA * NEXT @ value, axis=1)
    return -float(FIRST @ value)


class Moments(NamedTuple):
    """Exact, by enumeration of all trajectories."""

    gradient: Array  # E[g(θ; τ)]
    variance: Array  # E||g - ∇J||²
    weight_variance: Array  # Var(w) of the weights from θ to θ_old


def moments(theta: Array, theta_old: Array) -> Moments:
    """Of REINFORCE's estimate at θ, and of the importance weights towards another policy."""
    paths = np.array(list(itertools.product(range(3), range(2), range(3), range(2))))
    s1, a1, s2, a2 = paths.T
    dynamics = FIRST[s1] * NEXT[s1, a1, s2]
    returns = REWARD[s1, a1] + GAMMA * REWARD[s2, a2]

    def log_prob(theta: Array) -> Array:
        table = log_pi(theta)
        return table[s1, a1] + table[s2, a2]

    now, old = log_prob(theta), log_prob(theta_old)
    p, g = dynamics * jnp.exp(now), -returns[:, None] * jax.jacobian(log_prob)(theta)
    gradient = p @ g
    weight_variance = jnp.sum(p * jnp.expm1(old - now) ** 2)  # the mean weight is 1
    return Moments(gradient, p @ jnp.sum((g - gradient) ** 2, axis=1), weight_variance)


def estimator_sigma(samples: int = 20_000) -> float:
    """σ_g: a tenth above the largest standard deviation found among random policies, from uniform to deterministic."""
    size = policy().init(jax.random.key(0)).size
    theta = jax.random.normal(jax.random.key(1), (samples, size)) * jnp.linspace(0.0, 4.0, samples)[:, None]
    variance = jax.jit(jax.vmap(lambda t: moments(t, t).variance))(theta)
    return round(1.1 * math.sqrt(float(variance.max())), 3)
