"""Policy gradients of a batch of trajectories, one backward pass each."""

import jax
import jax.numpy as jnp

from mfpo.learning.policies import Policy
from mfpo.learning.timeline import map_over_time, over_time
from mfpo.types import Array, PyTree, Trajectories


def log_probs(policy: Policy, theta: PyTree, obs: Array, action: Array) -> Array:
    """log pi_theta(a|s) for a block of steps [H, D]."""
    network = policy.unravel(theta)

    def one(o: Array, a: Array) -> Array:
        return policy.log_prob(policy.distribution(network, o), a)

    return jax.vmap(jax.vmap(one))(obs, action)


def policy_gradient(
    policy: Policy, theta: PyTree, obs: Array, batch: Trajectories, coefficient: Array
) -> tuple[PyTree, Array]:
    """-(1/D) sum over trajectories and steps of coefficient * grad log pi_theta(a|s), and log pi_theta(a|s) [H, D].

    With an advantage as coefficient this is the mean of g(theta; tau). With importance weights times advantage it is
    the weighted mean: the weights are constants of the surrogate, so per-trajectory gradients are not needed.
    """
    trajectories = batch.reward.shape[1]

    def block(obs: Array, action: Array, coefficient: Array) -> tuple[PyTree, Array]:
        def surrogate(theta: PyTree) -> tuple[Array, Array]:
            log_prob = log_probs(policy, theta, obs, action)
            return -jnp.sum(coefficient * log_prob) / trajectories, log_prob

        gradient, log_prob = jax.grad(surrogate, has_aux=True)(theta)
        return gradient, log_prob

    return over_time(block, (obs, batch.action, coefficient), batch.length)


def log_ratio(policy: Policy, theta_tm1: PyTree, log_prob: Array, obs: Array, batch: Trajectories) -> Array:
    """log pi_{t-1}(a|s) - log pi_t(a|s) [H, D], given the second of them; zero where not live."""

    def block(obs: Array, action: Array, live: Array, log_prob: Array) -> Array:
        return jnp.where(live, log_probs(policy, theta_tm1, obs, action) - log_prob, 0.0)

    return map_over_time(block, (obs, batch.action, batch.live, log_prob), batch.length)
