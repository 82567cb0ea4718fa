import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.learning import estimators
from mfpo.types import Trajectories


def batch_of(reward, live=None, terminated=None):
    reward = jnp.asarray(reward, jnp.float32)
    live = jnp.ones(reward.shape, bool) if live is None else jnp.asarray(live)
    none = jnp.zeros(reward.shape, bool)
    terminated = none if terminated is None else jnp.asarray(terminated)
    obs = jnp.zeros((*reward.shape, 1))
    return Trajectories(obs, none, reward, live, terminated, none, obs[0], jnp.int32(reward.shape[0]), reward.sum(0))


def test_reward_to_go_is_the_discounted_sum_of_what_follows():
    reward = jnp.array([[1.0, 0.0], [2.0, 3.0], [4.0, 0.0]])
    np.testing.assert_allclose(estimators.reward_to_go(reward, 0.5), [[3.0, 1.5], [4.0, 3.0], [4.0, 0.0]])


def test_leave_one_out_mean_leaves_one_out():
    np.testing.assert_allclose(estimators.leave_one_out_mean(jnp.array([1.0, 2.0, 6.0])), [4.0, 3.5, 1.5])
    np.testing.assert_allclose(estimators.leave_one_out_mean(jnp.array([5.0])), [0.0])


def test_reinforce_gives_every_live_step_the_whole_return():
    batch = batch_of([[1.0, 1.0], [2.0, 0.0]], live=[[True, True], [True, False]])
    a = estimators.monte_carlo_advantage(batch, 0.5, "reinforce", "none")
    np.testing.assert_allclose(a, [[2.0, 1.0], [2.0, 0.0]])
    a = estimators.monte_carlo_advantage(batch, 0.5, "reinforce", "constant")
    np.testing.assert_allclose(a, [[1.0, -1.0], [1.0, 0.0]])


def test_time_baseline_counts_a_finished_episode_as_zero():
    batch = batch_of([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]], live=[[True, True, True], [True, True, False]])
    a = estimators.monte_carlo_advantage(batch, 1.0, "gpomdp", "time")
    np.testing.assert_allclose(a, [[0.5, 0.5, -1.0], [0.5, 0.5, 0.0]])


def test_constant_baseline_is_the_mean_coefficient_of_the_others():
    batch = batch_of([[1.0, 3.0], [1.0, 3.0]])
    a = estimators.monte_carlo_advantage(batch, 1.0, "gpomdp", "constant")  # to go: 2, 1 and 6, 3; means 1.5 and 4.5
    np.testing.assert_allclose(a, [[-2.5, 4.5], [-3.5, 1.5]])


def test_gae_bootstraps_a_truncated_trajectory_and_not_a_terminated_one():
    reward = jnp.ones((2, 2))
    value = jnp.array([[10.0, 10.0], [20.0, 20.0]])
    live = jnp.ones((2, 2), bool)
    terminated = jnp.array([[False, False], [True, False]])
    last = jnp.array([100.0, 100.0])
    batch = batch_of(reward)._replace(live=live, terminated=terminated)
    a = estimators.generalised_advantage(batch, value, last, gamma=0.5, lam=0.5)
    end = np.array([1 - 20.0, 1 + 50 - 20.0])
    start = (1 + 10 - 10.0) + 0.25 * end
    np.testing.assert_allclose(a, [start, end])


def test_gae_within_a_segment_stops_at_the_end_of_every_episode():
    """One column: an episode that terminates, one that is truncated, its waiting slot, and one that is cut."""
    reward = jnp.array([[1.0], [2.0], [4.0], [0.0], [8.0]])
    value = jnp.array([[10.0], [20.0], [30.0], [40.0], [50.0]])
    flags = jnp.array([[1, 1, 1, 0, 1], [0, 1, 0, 0, 0], [0, 0, 1, 0, 1]], bool)[:, :, None]
    batch = batch_of(reward)._replace(live=flags[0], terminated=flags[1], truncated=flags[2])
    a = estimators.generalised_advantage(batch, value, jnp.array([60.0]), gamma=0.5, lam=0.5, segments=True)
    second = 2 - 20.0
    first = (1 + 0.5 * 20 - 10.0) + 0.25 * second
    np.testing.assert_allclose(a[:, 0], [first, second, 4 + 0.5 * 40 - 30.0, 0.0, 8 + 0.5 * 60 - 50.0])


def test_gae_with_lambda_one_is_reward_to_go_minus_value():
    key = jax.random.key(0)
    reward = jax.random.normal(key, (6, 3))
    value = jax.random.normal(jax.random.fold_in(key, 1), (6, 3))
    live = jnp.arange(6)[:, None] < jnp.array([6, 4, 2])
    terminated = jnp.arange(6)[:, None] == jnp.array([5, 3, 1])
    reward = jnp.where(live, reward, 0.0)
    batch = batch_of(reward)._replace(live=live, terminated=terminated)
    a = estimators.generalised_advantage(batch, value, jnp.full(3, 7.0), 0.9, 1.0)
    expected = jnp.where(live, estimators.reward_to_go(reward, 0.9) - value, 0.0)
    np.testing.assert_allclose(a, expected, atol=1e-5)


def test_standardise_ignores_dead_slots():
    x = jnp.array([[1.0, 3.0], [99.0, 5.0]])
    live = jnp.array([[True, True], [False, True]])
    z = estimators.standardise(x, live)
    expected = (np.array([1.0, 3.0, 5.0]) - 3) / np.std([1.0, 3.0, 5.0])
    np.testing.assert_allclose([z[0, 0], z[0, 1], z[1, 1]], expected, rtol=1e-5)
    assert z[1, 0] == 0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("trajectory", [6.0, 6.0]), ("decision", [2.0, 6.0]), ("action", [2.0, 3.0]), ("none", [1.0, 1.0])],
)
def test_importance_weights_are_products_of_ratios(kind, expected):
    log_ratio = jnp.log(jnp.array([[2.0], [3.0]]))
    w = estimators.importance_weights(log_ratio, kind, float("inf"))
    np.testing.assert_allclose(w[:, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(
        estimators.importance_weights(log_ratio, kind, 2.5)[:, 0], np.minimum(expected, 2.5), rtol=1e-6
    )


# An enumerable world: two steps, two actions. REWARD has both rewards of (first, second action); the policy is a
# Bernoulli logit per step, so that every trajectory, its probability and its gradient can be written down.
REWARD = {(0, 0): (1.0, 0.0), (0, 1): (1.0, 2.0), (1, 0): (-1.0, 5.0), (1, 1): (-1.0, 1.0)}
GAMMA = 0.9


def score(theta, actions):
    """d log pi / d theta at both steps, for logits theta."""
    p = 1 / (1 + np.exp(-np.asarray(theta)))
    return np.array(actions) - p


def probability(theta, actions):
    p = 1 / (1 + np.exp(-np.asarray(theta)))
    return float(np.prod(np.where(np.array(actions) == 1, p, 1 - p)))


def exact_gradient(theta):
    """grad of J = -E[r_0 + gamma r_1], by definition of an expectation."""
    total = np.zeros(2)
    for actions, (r0, r1) in REWARD.items():
        total -= probability(theta, actions) * (r0 + GAMMA * r1) * score(theta, actions)
    return total


def estimate(theta, pair, estimator, baseline):
    """The estimator's mean over a batch of two trajectories, with gradients written by hand."""
    batch = batch_of(np.array([REWARD[a] for a in pair]).T)
    a = np.asarray(estimators.monte_carlo_advantage(batch, GAMMA, estimator, baseline))
    if estimator == "gpomdp":
        a = a * GAMMA ** np.arange(2)[:, None]
    return -np.mean([a[:, j] * score(theta, pair[j]) for j in range(2)], axis=0)


@pytest.mark.parametrize("estimator", ["reinforce", "gpomdp"])
@pytest.mark.parametrize("baseline", ["none", "constant", "time"])
def test_estimators_are_unbiased(estimator, baseline):
    theta = [0.3, -0.8]
    mean = np.zeros(2)
    for pair in itertools.product(REWARD, repeat=2):
        weight = probability(theta, pair[0]) * probability(theta, pair[1])
        mean += weight * estimate(theta, pair, estimator, baseline)
    np.testing.assert_allclose(mean, exact_gradient(theta), atol=1e-6)


def test_trajectory_weights_make_the_old_gradient_unbiased():
    theta, old = [0.3, -0.8], [-0.2, 0.4]
    mean = np.zeros(2)
    for actions, (r0, r1) in REWARD.items():
        step_ratio = [
            np.log(probability([o], [a]) / probability([t], [a])) for o, t, a in zip(old, theta, actions, strict=True)
        ]
        w = estimators.importance_weights(jnp.array(step_ratio)[:, None], "trajectory", float("inf"))[0, 0]
        mean += probability(theta, actions) * float(w) * -(r0 + GAMMA * r1) * score(old, actions)
    np.testing.assert_allclose(mean, exact_gradient(old), atol=1e-6)


def test_effective_sample_size_by_hand():
    w, live = jnp.array([[1.0, 3.0], [2.0, 9.0]]), jnp.array([[True, True], [True, False]])
    spread = estimators.weight_spread(w, live)  # 1, 3 and 2: (6²) / (3 · 14)
    assert float(spread["effective_sample_size"]) == pytest.approx(36 / 42)
    assert float(estimators.weight_spread(7 * w, live)["effective_sample_size"]) == pytest.approx(36 / 42)
    one_of_four = jnp.array([[5.0, 0.0, 0.0, 0.0]])
    assert float(estimators.weight_spread(one_of_four, one_of_four >= 0)["effective_sample_size"]) == pytest.approx(
        0.25
    )
    assert float(estimators.weight_spread(0 * w, live)["effective_sample_size"]) == 0
