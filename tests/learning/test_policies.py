import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.learning.policies import make_policy
from mfpo.types import Box, Discrete, EnvSpec, MultiDiscrete

OBS = jnp.array([0.3, -1.0])
KINDS = [Discrete(3), MultiDiscrete((3, 1, 4)), MultiDiscrete((2, 2))]
INF = float("inf")


@functools.cache
def policy_of(action, squash="tanh"):
    return make_policy(EnvSpec("x", (2,), action, 7), (4,), "tanh", 0.5, squash)


def peaked(policy, seed=0):
    """A theta whose probabilities are far from uniform."""
    return policy.init(jax.random.key(seed)) * 30


@functools.partial(jax.jit, static_argnums=0)
def dist_of(policy, theta):
    return policy.distribution(policy.unravel(theta), OBS)


def joint_actions(action):
    if isinstance(action, Discrete):
        return jnp.arange(action.n)
    return jnp.array(list(itertools.product(*map(range, action.n))))


@functools.partial(jax.jit, static_argnums=0)
def log_probs(policy, dist, actions):
    return jax.vmap(policy.log_prob, (None, 0))(dist, actions)


@pytest.mark.parametrize("action", KINDS, ids=str)
def test_probabilities_of_all_actions_sum_to_one(action):
    policy = policy_of(action)
    p = jnp.exp(log_probs(policy, dist_of(policy, peaked(policy)), joint_actions(action)))
    assert p.min() > 0 and p.max() > 1.2 / len(p)
    np.testing.assert_allclose(p.sum(), 1.0, rtol=1e-5)


@pytest.mark.parametrize("action", KINDS, ids=str)
def test_the_network_has_one_output_per_choice(action):
    policy = policy_of(action)
    last = policy.unravel(peaked(policy))[-1]
    assert last.b.shape == (action.n if isinstance(action, Discrete) else sum(action.n),)


@pytest.mark.parametrize("action", KINDS, ids=str)
def test_draws_exist_and_come_as_often_as_their_probability_says(action):
    policy, n = policy_of(action), 40000
    dist, actions = dist_of(policy, peaked(policy)), joint_actions(action)
    draws = jax.jit(jax.vmap(lambda k: policy.sample(dist, k)))(jax.random.split(jax.random.key(1), n))
    assert draws.dtype == jnp.int32 and draws.shape == (n, *actions.shape[1:])
    hits = (draws[:, None] == actions[None]).reshape(n, len(actions), -1).all(-1)
    assert hits.any(1).all()
    expected = np.asarray(jnp.exp(log_probs(policy, dist, actions))) * n
    chi_square = np.sum((np.asarray(hits.sum(0)) - expected) ** 2 / expected)
    freedom = len(actions) - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("action", KINDS, ids=str)
def test_mode_is_the_most_probable_action(action):
    policy = policy_of(action)
    for seed in range(5):
        dist, actions = dist_of(policy, peaked(policy, seed)), joint_actions(action)
        assert policy.mode(dist).dtype == jnp.int32
        assert policy.mode(dist).tolist() == actions[jnp.argmax(log_probs(policy, dist, actions))].tolist()


@functools.partial(jax.jit, static_argnums=0)
def fisher_of_theta(policy, theta):
    """J^T F J, column by column, as natural steps use it."""
    dist, jvp = jax.linearize(lambda t: dist_of(policy, t), theta)
    vjp = jax.linear_transpose(jvp, theta)
    return jax.vmap(lambda v: vjp(policy.fisher(dist, jvp(v)))[0])(jnp.eye(len(theta)))


@pytest.mark.parametrize("action", KINDS, ids=str)
def test_fisher_is_the_expected_square_of_the_score(action):
    policy = policy_of(action)
    theta, actions = peaked(policy), joint_actions(action)
    score = jax.jit(jax.jacobian(lambda t: log_probs(policy, dist_of(policy, t), actions)))(theta)
    p = jnp.exp(log_probs(policy, dist_of(policy, theta), actions))
    np.testing.assert_allclose(fisher_of_theta(policy, theta), (score.T * p) @ score, atol=1e-5)


@pytest.mark.parametrize("action", KINDS, ids=str)
def test_fisher_is_the_curvature_of_the_divergence(action):
    policy = policy_of(action)
    theta, actions = peaked(policy), joint_actions(action)
    old = log_probs(policy, dist_of(policy, theta), actions)
    divergence = lambda t: jnp.sum(jnp.exp(old) * (old - log_probs(policy, dist_of(policy, t), actions)))  # noqa: E731
    np.testing.assert_allclose(fisher_of_theta(policy, theta), jax.jit(jax.hessian(divergence))(theta), atol=1e-5)


def test_a_single_entry_is_the_discrete_policy():
    one, many = policy_of(Discrete(5)), policy_of(MultiDiscrete((5,)))
    theta = peaked(one)
    np.testing.assert_array_equal(theta, peaked(many))
    logits, rows = dist_of(one, theta), dist_of(many, theta)
    np.testing.assert_array_equal(logits[None], rows)
    for action in range(5):
        assert one.log_prob(logits, action) == many.log_prob(rows, jnp.array([action]))


def test_entries_are_drawn_independently():
    policy = policy_of(MultiDiscrete((2, 2, 2)))
    dist = jnp.zeros((3, 2))
    draws = jax.jit(jax.vmap(lambda k: policy.sample(dist, k)))(jax.random.split(jax.random.key(0), 20000))
    assert np.abs(np.corrcoef(np.asarray(draws).T) - np.eye(3)).max() < 0.04


def test_no_draw_falls_off_the_end_of_a_short_row(monkeypatch):
    """The cumulated probabilities of many choices may end below one, and below the largest uniform number."""
    policy = policy_of(MultiDiscrete((1000, 1200)))
    largest = np.nextafter(np.float32(1), np.float32(0))
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape: jnp.full(shape, largest))
    exists = jnp.arange(1200) < jnp.array([[1000], [1200]])
    logits = jax.random.normal(jax.random.key(0), (300, 2, 1200))
    draws = jax.jit(jax.vmap(lambda row: policy.sample(jnp.where(exists, row, -1e9), jax.random.key(0))))(logits)
    assert (draws < jnp.array([1000, 1200])).all()


def test_gradients_stay_finite_where_rows_are_padded():
    policy = policy_of(MultiDiscrete((1, 6)))
    theta = peaked(policy)
    gradient = jax.jit(jax.grad(lambda t: policy.log_prob(dist_of(policy, t), jnp.array([0, 5]))))(theta)
    assert jnp.isfinite(gradient).all() and jnp.abs(gradient).max() > 0


def test_a_discrete_policy_is_what_it_always_was():
    policy = policy_of(Discrete(3))
    logits, tangent = jnp.array([1.0, -1.0, 0.5]), jnp.array([0.3, 2.0, -1.0])
    p = jax.nn.softmax(logits)
    for key in jax.random.split(jax.random.key(7), 20):
        assert policy.sample(logits, key) == jnp.sum(jax.random.uniform(key) > jnp.cumsum(p)[:-1])
    for raw in range(3):
        assert policy.log_prob(logits, raw) == jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(raw, 3))
    np.testing.assert_array_equal(policy.fisher(logits, tangent), p * (tangent - jnp.dot(p, tangent)))
    assert policy.mode(logits) == 0 and policy.action(jnp.int32(2)) == 2


@pytest.mark.parametrize(("squash", "bound"), [("tanh", jnp.tanh), ("clip", lambda x: jnp.clip(x, -1.0, 1.0))])
def test_bounded_dimensions_are_squashed_whatever_the_others_are(squash, bound):
    raw = jax.random.normal(jax.random.key(0), (100, 2)) * 3
    low, high = jnp.array([-2.0, 0.0]), jnp.array([2.0, 7.0])
    expected = low + (high - low) * 0.5 * (bound(raw) + 1.0)
    all_bounded = policy_of(Box((-2.0, 0.0), (2.0, 7.0)), squash)
    np.testing.assert_array_equal(jax.vmap(all_bounded.action)(raw), expected)
    mixed = policy_of(Box((-2.0, -INF, 0.0, 0.0), (2.0, INF, INF, 7.0)), squash)
    wide = jnp.stack([raw[:, 0], raw[:, 0], raw[:, 0], raw[:, 1]], axis=1)
    np.testing.assert_array_equal(jax.vmap(mixed.action)(wide)[:, [0, 3]], expected)


@pytest.mark.parametrize("squash", ["tanh", "clip"])
def test_unbounded_dimensions_are_left_alone(squash):
    policy = policy_of(Box((-INF, -INF), (INF, INF)), squash)
    np.testing.assert_array_equal(policy.action(jnp.array([-50.0, 3.0])), [-50.0, 3.0])


@pytest.mark.parametrize("squash", ["tanh", "clip"])
def test_half_bounded_dimensions_respect_their_bound_and_grow_with_the_raw_action(squash):
    policy = policy_of(Box((5.0, -INF), (INF, -3.0)), squash)
    raw = jnp.linspace(-10, 100, 1000)
    action = jax.vmap(policy.action)(jnp.stack([raw, -raw], axis=1))
    assert jnp.isfinite(action).all()
    assert action[:, 0].min() >= 5 and action[:, 1].max() <= -3
    assert (jnp.diff(action[:, 0]) >= 0).all() and (jnp.diff(action[:, 1]) <= 0).all()
    np.testing.assert_allclose(action[-1], [105.0, -103.0], rtol=1e-6)  # far from the bound it is a shift
    assert action[0, 0] < 5.001 and action[0, 1] > -3.001


def test_a_least_std_is_added_as_variances_add_and_can_be_left_again():
    spec = EnvSpec("x", (2,), Box((-1.0,), (1.0,)), 7)
    policy = make_policy(spec, (4,), "tanh", 0.4, "tanh", least_std=0.3)
    plain = make_policy(spec, (4,), "tanh", 0.4, "tanh")
    theta, obs = policy.init(jax.random.key(0)), jnp.ones(2)

    def log_std(policy, theta):
        return policy.distribution(policy.unravel(theta), obs).log_std[0]

    assert np.exp(log_std(policy, theta)) == pytest.approx(0.5)
    assert np.exp(log_std(plain, theta)) == pytest.approx(0.4)
    dead = jax.grad(lambda x: log_std(policy, x))(theta.at[-1].set(-3.0))
    assert log_std(policy, theta.at[-1].set(-30.0)) == pytest.approx(np.log(0.3)) and dead[-1] > 0.01


def test_a_std_of_the_state_begins_as_the_shared_one_and_learns_by_itself():
    spec = EnvSpec("x", (2,), Box((-1.0,) * 3, (1.0,) * 3), 7)
    policy = make_policy(spec, (4,), "tanh", 0.4, "tanh", state_std=True)
    theta = policy.init(jax.random.key(0))

    def dist(theta, obs):
        return policy.distribution(policy.unravel(theta), jnp.array(obs))

    first = dist(theta, [1.0, -1.0])
    assert first.mean.shape == first.log_std.shape == (3,)
    np.testing.assert_allclose(jnp.exp(first.log_std), 0.4, rtol=0.05)
    assert len(np.unique(first.log_std)) == 3
    here = jax.grad(lambda x: jnp.sum(dist(x, [1.0, -1.0]).log_std))(theta)
    moved = theta - here
    assert jnp.all(dist(moved, [1.0, -1.0]).log_std < dist(moved, [-1.0, 1.0]).log_std)
