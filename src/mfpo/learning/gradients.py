"""Policy gradients of a batch of trajectories, one backward pass each."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mfpo.learning import trees
from mfpo.learning.policies import Policy, distributions, look
from mfpo.learning.timeline import map_over_time, over_time
from mfpo.types import Array, PyTree, Trajectories


def log_probs(policy: Policy, dist: PyTree, action: Array) -> Array:
    """log pi(a|s) for a block of steps [H, D]."""
    return jax.vmap(jax.vmap(policy.log_prob))(dist, action)


class Cost(NamedTuple):
    """What a step costs besides, by what the policy makes of an observation: the error of a value function, say."""

    of: Callable[[Array, Array], Array]  # features [..., n], target [...] -> cost [...]
    target: Array  # [H, D]


def policy_gradient(
    policy: Policy,
    theta: PyTree,
    obs: Array,
    batch: Trajectories,
    coefficient: Array,
    entropy: float = 0.0,
    weight: Array | None = None,
    cost: Cost | None = None,
) -> tuple[PyTree, Array]:
    """-(1/D) sum over trajectories and steps of coefficient * grad log pi_theta(a|s), and log pi_theta(a|s) [H, D].

    With an advantage as coefficient this is the mean of g(theta; tau). With importance weights times advantage it is
    the weighted mean: the weights are constants of the surrogate, so per-trajectory gradients are not needed.
    `entropy` of the policy is worth that much at every live step, times its `weight` if there is one; so with a cost.
    """
    weight = batch.live.astype(coefficient.dtype) if weight is None else weight
    keep = lambda _, coefficient, weight: (coefficient, weight)  # noqa: E731
    gradient, (log_prob, _) = _gradient(policy, theta, obs, batch, entropy, cost, keep, coefficient, weight)
    return gradient, log_prob


def reweighted_gradient(
    policy: Policy,
    theta_tm1: PyTree,
    log_prob: Array,
    obs: Array,
    batch: Trajectories,
    advantage: Array,
    entropy: float,
    weigh: Callable[[Array], Array],
) -> tuple[PyTree, Array]:
    """The weighted mean at theta_tm1, and the weights [H, D], where a step's weight depends on this step alone.

    `weigh` makes weights of log pi_{t-1}(a|s) - log pi_t(a|s), of which `log_prob` is the second. They come out of the
    pass that takes the gradient.
    """

    def weighted(log_prob_tm1: Array, log_prob: Array, live: Array, advantage: Array) -> tuple[Array, Array]:
        w = jnp.where(live, weigh(jnp.where(live, log_prob_tm1 - log_prob, 0.0)), 0.0)
        return w * advantage, w

    given = (log_prob, batch.live, advantage)
    gradient, (_, w) = _gradient(policy, theta_tm1, obs, batch, entropy, None, weighted, *given)
    return gradient, w


def _gradient(
    policy: Policy,
    theta: PyTree,
    obs: Array,
    batch: Trajectories,
    entropy: float,
    cost: Cost | None,
    coefficients: Callable[..., tuple[Array, Array]],
    *given: Array,
) -> tuple[PyTree, tuple[Array, Array]]:
    """The gradient, coefficient and weight made of log pi_theta(a|s) and `given`; then log pi_theta(a|s) and weight."""
    trajectories, network = batch.reward.shape[1], policy.unravel(theta)
    target = batch.reward if cost is None else cost.target

    def block(obs: Array, action: Array, target: Array, *given: Array) -> tuple[PyTree, tuple[Array, Array]]:
        def surrogate(network: PyTree) -> tuple[Array, tuple[Array, Array]]:
            features = look(policy, network, obs)
            dist = policy.distribution(network, features)
            log_prob = log_probs(policy, dist, action)
            coefficient, weight = coefficients(jax.lax.stop_gradient(log_prob), *given)
            gain = jnp.sum(coefficient * log_prob)
            if entropy:
                gain += entropy * jnp.sum(weight * jax.vmap(jax.vmap(policy.entropy))(dist))
            if cost is not None:
                gain -= jnp.sum(weight * cost.of(features, target))
            return -gain / trajectories, (log_prob, weight)

        result: tuple[PyTree, tuple[Array, Array]] = jax.grad(surrogate, has_aux=True)(network)
        return result

    gradient, per_step = over_time(block, (obs, batch.action, target, *given), batch.length)
    return trees.ravel(gradient), per_step


def log_ratio(policy: Policy, theta_tm1: PyTree, log_prob: Array, obs: Array, batch: Trajectories) -> Array:
    """log pi_{t-1}(a|s) - log pi_t(a|s) [H, D], given the second of them; zero where not live."""

    def block(obs: Array, action: Array, live: Array, log_prob: Array) -> Array:
        log_prob_tm1 = log_probs(policy, distributions(policy, policy.unravel(theta_tm1), obs), action)
        return jnp.where(live, log_prob_tm1 - log_prob, 0.0)

    return map_over_time(block, (obs, batch.action, batch.live, log_prob), batch.length)
