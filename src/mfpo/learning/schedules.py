"""Stepsize alpha_t and momentum nu_t as functions of the learning step t = 1, 2, ..."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from mfpo.types import Array

Schedule = Callable[[Array], Array]


def make(config: Any, agents: int) -> tuple[Schedule, Schedule]:
    """alpha_t and nu_t, as `stepsize_rule` and `momentum_rule` of an algorithm's config say."""
    if config.stepsize_rule == "theorem":
        return theorem(agents, config.local_steps, config.trajectories, config.theorem_smoothness, config.theorem_sigma)
    alpha = geometric(config.stepsize, config.stepsize_decay)
    if config.momentum_rule == "paper":
        return alpha, paper_momentum(alpha)
    return alpha, constant(config.momentum)


def geometric(alpha: float, decay: float) -> Schedule:
    """alpha * decay^t. The paper prints 1e-4 * 0.99^-t and says that it decreases, which is decay = 0.99."""
    return lambda t: alpha * decay ** t.astype(jnp.float32)


def constant(value: float) -> Schedule:
    """The same at every step."""
    return lambda t: jnp.float32(value)


def paper_momentum(alpha: Schedule) -> Schedule:
    """nu_t = 1 - 3 alpha_t (the paper's experiments)."""
    return lambda t: jnp.clip(1.0 - 3.0 * alpha(t), 0.0, 1.0)


def theorem(
    agents: int, local_steps: int, trajectories: int, smoothness: float, sigma: float
) -> tuple[Schedule, Schedule]:
    """The pair of the convergence theorem.

    alpha_t = c_alpha / (c_t + sigma^2 t)^(1/3) and nu_{t+1} = 1 - c_nu alpha_t^2, with N agents, K local steps, D
    trajectories, smoothness L~ and gradient standard deviation sigma.
    """
    n, k, d, big_l = float(agents), float(local_steps), float(trajectories), smoothness
    c_nu = big_l**2 / (24 * k * (d * n) ** 2) + 64 * big_l**2 / (d * n)
    c_alpha = (d * n * sigma) ** (2 / 3) / big_l
    floor = max(c_nu**3 * c_alpha**3 / (2**12 * k**3 * big_l**3), 2 * sigma**2)
    start = 2**12 * k**3 * (d * n) ** 2 * sigma**2

    def alpha(t: Array) -> Array:
        c_t = jnp.maximum(floor, start - sigma**2 * t)
        return jnp.asarray(c_alpha / jnp.cbrt(c_t + sigma**2 * t))

    return alpha, lambda t: 1.0 - c_nu * alpha(t - 1) ** 2
