"""From trajectories to policy-gradient estimates: returns, baselines, advantages, importance weights.

Everything here is time first, [H, D] for D trajectories of H slots; slots that are not live hold zero rewards. With an
advantage A_h per step the estimate of the gradient of J = -E[return] is

    g(theta; tau) = - sum_h A_h * grad log pi_theta(a_h | s_h),

which is REINFORCE when A_h is the return of the whole trajectory and GPOMDP when it is the reward to go.
"""

import jax
import jax.numpy as jnp

from mfpo.types import Array, Metrics, Trajectories

WEIGHTS = ("trajectory", "decision", "action", "none")
OF_ONE_STEP = ("action", "none")  # those that depend on nothing but the step they weigh
SEGMENTS_NEED = "--env-steps cuts episodes into segments, which need --baseline value and --weights action or none."


def reward_to_go(reward: Array, gamma: float, ended: Array | None = None) -> Array:
    """G_h = r_h + gamma G_{h+1}; where an episode `ended` [H, D] and another follows, G_h = r_h."""

    def back(g: Array, now: tuple[Array, Array | None]) -> tuple[Array, Array]:
        r, last = now
        g = r + gamma * (g if last is None else jnp.where(last, 0.0, g))
        return g, g

    return jax.lax.scan(back, jnp.zeros_like(reward[0]), (reward, ended), reverse=True)[1]


def leave_one_out_mean(x: Array) -> Array:
    """For every trajectory (last axis) the mean of x over the others; 0 where there is none.

    A baseline built from other trajectories is independent of this one's actions, so it leaves the estimate unbiased.
    An episode that is over counts with its reward to go, zero: on CartPole with D = 5 that reached 498 where the mean
    over those still running reached 457.
    """
    return (jnp.sum(x, axis=-1, keepdims=True) - x) / max(x.shape[-1] - 1, 1)


def monte_carlo_advantage(batch: Trajectories, gamma: float, estimator: str, baseline: str) -> Array:
    """Returns ("reinforce") or rewards to go ("gpomdp") minus a baseline made of the other trajectories.

    none      0
    constant  one number per trajectory: the mean coefficient of the others
    time      one number per step: the coefficient of the others at that step
    """
    to_go = reward_to_go(batch.reward, gamma)
    a = jnp.broadcast_to(to_go[0], to_go.shape) if estimator == "reinforce" else to_go
    a = jnp.where(batch.live, a, 0.0)
    if baseline == "time":
        a = a - leave_one_out_mean(a)
    elif baseline == "constant":
        a = a - leave_one_out_mean(jnp.sum(a, axis=0) / jnp.maximum(jnp.sum(batch.live, axis=0), 1))
    return jnp.where(batch.live, a, 0.0)


def generalised_advantage(
    batch: Trajectories, value: Array, last_value: Array, gamma: float, lam: float, segments: bool = False
) -> Array:
    """GAE(lambda), Schulman et al. 2016. A truncated episode is worth the value of what follows beyond its end.

    That is `last_value` [D] at the end of a column; within a segment the slot after a truncated step has it.
    """
    following = jnp.concatenate([value[1:], last_value[None]])
    if not segments:
        goes_on = jnp.concatenate([batch.live[1:], jnp.zeros_like(batch.live[:1])])
        following = jnp.where(goes_on, following, last_value)
    next_value = jnp.where(batch.terminated, 0.0, following)
    delta = jnp.where(batch.live, batch.reward + gamma * next_value - value, 0.0)
    ended = batch.terminated | batch.truncated | ~batch.live if segments else None
    return reward_to_go(delta, gamma * lam, ended)


def standardise(x: Array, live: Array) -> Array:
    """Zero mean and unit variance over live slots; 0 elsewhere."""
    n = jnp.maximum(jnp.sum(live), 1)
    mean = jnp.sum(jnp.where(live, x, 0.0)) / n
    centred = jnp.where(live, x - mean, 0.0)
    return centred / (jnp.sqrt(jnp.sum(centred**2) / n) + 1e-8)


def importance_weights(log_ratio: Array, kind: str, cap: float) -> Array:
    """Weights [H, D] from log pi_{t-1}(a|s) - log pi_t(a|s) [H, D] (zero where not live), bounded above by `cap`.

    trajectory  product over the whole trajectory: exact, the paper's
    decision    product up to and including the step: what follows the step is taken as if drawn from pi_{t-1}
    action      the step's own ratio: states, too, are taken as if drawn from pi_{t-1}
    none        1
    """
    if kind == "trajectory":
        log_w = jnp.broadcast_to(jnp.sum(log_ratio, axis=0), log_ratio.shape)
    elif kind == "decision":
        log_w = jnp.cumsum(log_ratio, axis=0)
    elif kind == "action":
        log_w = log_ratio
    else:
        log_w = jnp.zeros_like(log_ratio)
    return jnp.minimum(jnp.exp(log_w), cap)


def weight_spread(w: Array, live: Array) -> Metrics:
    """Mean, standard deviation and largest of the importance weights over live steps, and what the steps are worth.

    The effective sample size is (sum w)² / (n sum w²): the share of the steps that would do as well with equal weights.
    """
    n = jnp.maximum(jnp.sum(live), 1)
    mean = jnp.sum(jnp.where(live, w, 0.0)) / n
    std = jnp.sqrt(jnp.sum(jnp.where(live, (w - mean) ** 2, 0.0)) / n)
    square = mean**2 + std**2
    return {
        "weight_mean": mean,
        "weight_std": std,
        "weight_max": jnp.max(jnp.where(live, w, 0.0)),
        "effective_sample_size": mean**2 / jnp.where(square > 0, square, 1.0),
    }
