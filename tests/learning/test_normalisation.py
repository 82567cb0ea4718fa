import jax
import jax.numpy as jnp
import numpy as np

from mfpo.learning import critic as value_function
from mfpo.learning import normalisation as norm
from mfpo.types import Trajectories


def test_statistics_gathered_in_pieces_equal_those_of_the_whole():
    x = jax.random.normal(jax.random.key(0), (3, 8, 5, 2)) * 4 + 7
    present = jax.random.uniform(jax.random.key(1), (3, 8, 5)) < 0.6
    many = jax.vmap(norm.gather)(x, present)
    mask = jnp.array([True, False, True])
    merged = norm.merge_all(norm.gather(x[1], present[1]), many, mask)
    values = np.asarray(x)[np.asarray(present)]
    np.testing.assert_allclose(merged.n, len(values))
    np.testing.assert_allclose(merged.mean, values.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(norm.deviation(merged), values.std(axis=0), rtol=1e-5)


def test_masked_out_statistics_do_not_count_even_if_they_are_not_numbers():
    bad = norm.Statistics(jnp.array([2.0, jnp.nan]), jnp.array([1.0, jnp.nan]), jnp.array([0.5, jnp.inf]))
    merged = norm.merge_all(norm.empty(()), bad, jnp.array([True, False]))
    assert (float(merged.n), float(merged.mean), float(merged.m2)) == (2.0, 1.0, 0.5)


def test_empty_statistics_change_nothing():
    np.testing.assert_array_equal(norm.normalise(norm.empty((2,)), jnp.array([3.0, -4.0])), [3.0, -4.0])


def test_rescaling_the_critic_does_not_change_its_values():
    critic = value_function.init(jax.random.key(0), 3, (8,))
    obs = jax.random.normal(jax.random.key(1), (20, 3))
    new = norm.Statistics(jnp.float32(10.0), jnp.float32(-300.0), jnp.float32(4e5))
    before = value_function.value(critic, obs, "tanh")
    after = value_function.value(value_function.rescale(critic, new), obs, "tanh")
    np.testing.assert_allclose(after, before, atol=1e-3)


def test_the_critic_learns_the_value_of_a_constant_reward():
    h, d, gamma = 50, 6, 0.5
    obs = jax.random.normal(jax.random.key(1), (h, d, 2))
    live, none = jnp.ones((h, d), bool), jnp.zeros((h, d), bool)
    batch = Trajectories(obs, none, jnp.full((h, d), 3.0), live, none, none, obs[-1], jnp.int32(h), jnp.zeros(d))
    options = value_function.Options("tanh", gamma, 0.9, updates=50, samples=128, stepsize=0.01)
    learner = value_function.join(value_function.init(jax.random.key(0), 2, (16,)))
    step = jax.jit(lambda lr, k: value_function.advantages(lr, obs, obs[-1], batch, k, options))
    for i in range(20):
        learner, judged = step(learner, jax.random.key(i))
    np.testing.assert_allclose(value_function.value(learner.critic, obs, "tanh"), 3.0 / (1 - gamma), atol=0.3)
    assert float(jnp.abs(judged.advantage).mean()) < 0.5
