"""Policy gradients of a batch of trajectories, one backward pass each."""

import jax
import jax.numpy as jnp

from mfpo.learning.policies import Policy
from mfpo.learning.timeline import map_over_time, over_time
from mfpo.types import Array, PyTree, Trajectories


def distributions(policy: Policy, theta: PyTree, obs: Array) -> PyTree:
    """pi_theta(.|s) for a block of steps [H, D]."""
    network = policy.unravel(theta)
    return jax.vmap(jax.vmap(lambda o: policy.distribution(network, o)))(obs)


def log_probs(policy: Policy, dist: PyTree, action: Array) -> Array:
    """log pi(a|s) for a block of steps [H, D]."""
    return jax.vmap(jax.vmap(policy.log_prob))(dist, action)


def policy_gradient(
    policy: Policy,
    theta: PyTree,
    obs: Array,
    batch: Trajectories,
    coefficient: Array,
    entropy: float = 0.0,
    weight: Array | None = None,
) -> tuple[PyTree, Array]:
    """-(1/D) sum over trajectories and steps of coefficient * grad log pi_theta(a|s), and log pi_theta(a|s) [H, D].

    With an advantage as coefficient this is the mean of g(theta; tau). With importance weights times advantage it is
    the weighted mean: the weights are constants of the surrogate, so per-trajectory gradients are not needed.
    `entropy` of the policy is worth that much at every live step, times its `weight` if there is one.
    """
    trajectories = batch.reward.shape[1]

    def block(obs: Array, action: Array, coefficient: Array, *weight: Array) -> tuple[PyTree, Array]:
        def surrogate(theta: PyTree) -> tuple[Array, Array]:
            dist = distributions(policy, theta, obs)
            log_prob = log_probs(policy, dist, action)
            gain = jnp.sum(coefficient * log_prob)
            if weight:
                gain += entropy * jnp.sum(weight[0] * jax.vmap(jax.vmap(policy.entropy))(dist))
            return -gain / trajectories, log_prob

        gradient, log_prob = jax.grad(surrogate, has_aux=True)(theta)
        return gradient, log_prob

    weight = batch.live.astype(coefficient.dtype) if weight is None else weight
    return over_time(block, (obs, batch.action, coefficient, *([weight] if entropy else [])), batch.length)


def log_ratio(policy: Policy, theta_tm1: PyTree, log_prob: Array, obs: Array, batch: Trajectories) -> Array:
    """log pi_{t-1}(a|s) - log pi_t(a|s) [H, D], given the second of them; zero where not live."""

    def block(obs: Array, action: Array, live: Array, log_prob: Array) -> Array:
        log_prob_tm1 = log_probs(policy, distributions(policy, theta_tm1, obs), action)
        return jnp.where(live, log_prob_tm1 - log_prob, 0.0)

    return map_over_time(block, (obs, batch.action, batch.live, log_prob), batch.length)
