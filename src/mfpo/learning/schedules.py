"""Stepsize alpha_t and momentum nu_t as functions of the learning step t = 1, 2, ..."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from mfpo.learning import theory
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
    """The pair of the convergence theorem, `theory.alpha` and `theory.nu`.

    N agents, K local steps, D trajectories, smoothness L~; sigma, the gradient's standard deviation, cancels.
    """
    setting = theory.Setting(agents, local_steps, trajectories, smoothness, sigma)
    return lambda t: theory.alpha(setting, t, jnp), lambda t: theory.nu(setting, t, jnp)
