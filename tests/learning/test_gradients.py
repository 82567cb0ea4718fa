import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.learning import estimators
from mfpo.learning.gradients import log_probs, log_ratio, policy_gradient, reweighted_gradient
from mfpo.learning.policies import distributions, make_policy
from mfpo.types import TIME_BLOCK, Box, Discrete, EnvSpec, Trajectories

SPECS = [EnvSpec("discrete", (2,), Discrete(3), 7), EnvSpec("box", (2,), Box((-1.0, -2.0), (1.0, 2.0)), 7)]


def random_batch(policy, theta, lengths):
    d = len(lengths)
    obs = jax.random.normal(jax.random.key(5), (TIME_BLOCK, d, 2))
    network = policy.unravel(theta)
    keys = jax.random.split(jax.random.key(6), (TIME_BLOCK, d))
    action = jax.vmap(jax.vmap(lambda o, k: policy.sample(policy.distribution(network, o), k)))(obs, keys)
    live = jnp.arange(TIME_BLOCK)[:, None] < jnp.array(lengths)
    none = jnp.zeros(live.shape, bool)
    return Trajectories(obs, action, live * 1.0, live, none, none, obs[0], jnp.int32(max(lengths)), live.sum(0) * 1.0)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.id)
@pytest.mark.parametrize("kind", ["trajectory", "decision", "action"])
def test_weighted_gradient_equals_brute_force_over_single_steps(spec, kind):
    policy = make_policy(spec, (4,), "tanh", 0.5, "tanh")
    theta, old = policy.init(jax.random.key(0)) * 5, policy.init(jax.random.key(1)) * 5
    batch = random_batch(policy, theta, [7, 3, 5])
    advantage = jnp.where(batch.live, jax.random.normal(jax.random.key(9), batch.live.shape), 0.0)
    _, now = policy_gradient(policy, theta, batch.obs, batch, advantage)
    w = estimators.importance_weights(log_ratio(policy, old, now, batch.obs, batch), kind, 1.5)
    fast, _ = policy_gradient(policy, old, batch.obs, batch, w * advantage)

    def log_prob(th, h, j):
        return policy.log_prob(policy.distribution(policy.unravel(th), batch.obs[h, j]), batch.action[h, j])

    slow = jnp.zeros_like(theta)
    for j, length in enumerate([7, 3, 5]):
        ratio = [jnp.exp(log_prob(old, h, j) - log_prob(theta, h, j)) for h in range(length)]
        products = {"trajectory": [np.prod(ratio)] * length, "decision": np.cumprod(ratio), "action": ratio}[kind]
        for h in range(length):
            slow -= min(products[h], 1.5) * advantage[h, j] * jax.grad(log_prob)(old, h, j) / 3
    np.testing.assert_allclose(fast, slow, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("kind", estimators.OF_ONE_STEP)
def test_weights_of_one_step_come_out_of_the_same_pass(kind):
    policy = make_policy(SPECS[1], (4,), "tanh", 0.5, "tanh")
    theta, old = policy.init(jax.random.key(0)) * 5, policy.init(jax.random.key(1)) * 5
    batch = random_batch(policy, theta, [7, 3, 5])
    advantage = jnp.where(batch.live, jax.random.normal(jax.random.key(9), batch.live.shape), 0.0)
    _, now = policy_gradient(policy, theta, batch.obs, batch, advantage)
    w = estimators.importance_weights(log_ratio(policy, old, now, batch.obs, batch), kind, 1.5) * batch.live
    expected, _ = policy_gradient(policy, old, batch.obs, batch, w * advantage, 0.3, w)
    weigh = lambda ratio: estimators.importance_weights(ratio, kind, 1.5)  # noqa: E731
    found, weights = reweighted_gradient(policy, old, now, batch.obs, batch, advantage, 0.3, weigh)
    assert (kind == "none") == (np.ptp(weights[batch.live]) == 0)
    np.testing.assert_allclose(weights, w, rtol=1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_gaussian_log_probs_are_those_of_the_density_up_to_a_constant():
    policy = make_policy(SPECS[1], (4,), "tanh", 0.5, "tanh")
    theta = policy.init(jax.random.key(0)) * 5
    dist = policy.distribution(policy.unravel(theta), jnp.array([0.3, -1.0]))
    a, b = jnp.array([0.1, 0.2]), jnp.array([-0.7, 0.9])
    exact = lambda x: jnp.sum(jax.scipy.stats.norm.logpdf(x, dist.mean, jnp.exp(dist.log_std)))  # noqa: E731
    np.testing.assert_allclose(policy.log_prob(dist, a) - policy.log_prob(dist, b), exact(a) - exact(b), rtol=1e-5)


def test_actions_are_drawn_with_the_probabilities_of_the_policy():
    policy = make_policy(SPECS[0], (4,), "relu", 1.0, "tanh")
    logits = jnp.array([1.0, -1.0, 0.5])
    draws = jax.vmap(lambda k: policy.sample(logits, k))(jax.random.split(jax.random.key(0), 20000))
    np.testing.assert_allclose(np.bincount(draws, minlength=3) / 20000, jax.nn.softmax(logits), atol=0.012)
    probs = jnp.exp(jnp.array([policy.log_prob(logits, jnp.int32(a)) for a in range(3)]))
    np.testing.assert_allclose(probs, jax.nn.softmax(logits), rtol=1e-5)


@pytest.mark.parametrize("squash", ["tanh", "clip"])
def test_actions_stay_inside_the_box(squash):
    policy = make_policy(SPECS[1], (4,), "tanh", 3.0, squash)
    raw = jax.random.normal(jax.random.key(0), (1000, 2)) * 3
    actions = np.asarray(jax.vmap(policy.action)(raw))
    assert (np.abs(actions) <= [1.0, 2.0]).all()
    assert (np.abs(actions) > [0.9, 1.8]).any(axis=0).all()
    np.testing.assert_allclose(policy.action(jnp.zeros(2)), [0.0, 0.0], atol=1e-7)


def test_dead_slots_do_not_matter():
    policy = make_policy(SPECS[0], (4,), "tanh", 1.0, "tanh")
    theta = policy.init(jax.random.key(0)) * 5
    batch = random_batch(policy, theta, [4, 2])
    coefficient = jnp.where(batch.live, 1.0, 0.0)
    g, _ = policy_gradient(policy, theta, batch.obs, batch, coefficient)
    noisy = batch._replace(obs=jnp.where(batch.live[..., None], batch.obs, 1e3))
    np.testing.assert_allclose(policy_gradient(policy, theta, noisy.obs, noisy, coefficient)[0], g, rtol=1e-5)


def test_entropy_is_worth_its_weight_at_every_live_step():
    policy = make_policy(SPECS[0], (4,), "tanh", 1.0, "tanh")
    theta = policy.init(jax.random.key(0)) * 50
    batch = random_batch(policy, theta, [4, 2])
    none, w = jnp.zeros(batch.live.shape), jnp.where(batch.live, 3.0, 0.0)

    def entropy(theta):
        dist = distributions(policy, policy.unravel(theta), batch.obs)
        p = jax.nn.softmax(dist)
        return -jnp.sum(jnp.where(batch.live, -jnp.sum(p * jnp.log(p), axis=-1), 0.0)) / 2  # two trajectories

    expected = jax.grad(entropy)(theta)
    assert float(jnp.abs(expected).max()) > 1e-3
    for weight, factor in ((None, 0.1), (w, 0.3)):
        g, log_prob = policy_gradient(policy, theta, batch.obs, batch, none, 0.1, weight)
        np.testing.assert_allclose(g, factor * expected, rtol=1e-4, atol=1e-7)
    again = log_probs(policy, distributions(policy, policy.unravel(theta), batch.obs), batch.action)
    np.testing.assert_allclose(log_prob, again, rtol=1e-5)
