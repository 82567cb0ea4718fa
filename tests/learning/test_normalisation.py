import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.learning import critic as value_function
from mfpo.learning import normalisation as norm
from mfpo.types import Discrete, EnvSpec, Trajectories


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


def test_of_frames_is_left_what_changes():
    """Five films of a dot that wanders over a bright wall; the batch holds three frames from before its first step."""
    wall = np.random.default_rng(0).integers(1, 200, (6, 6)).astype(np.uint8)
    frames = np.broadcast_to(wall, (3 + 8, 5, 6, 6)).copy()
    for h, d in np.ndindex(11, 5):
        frames[h, d, 2, (h + d) % 3] += 50
    frames[:3] = 255
    live, none = jnp.ones((8, 5), bool), jnp.zeros((8, 5), bool)
    batch = Trajectories(jnp.asarray(frames), none, live, live, none, none, none, jnp.int32(8), jnp.zeros(5))
    seen = norm.observe(norm.start(EnvSpec("films", (4, 6, 6), Discrete(2), 100, stack=4), wanted=True), batch)
    after = frames[3:].reshape(-1, 6, 6).astype(float)
    np.testing.assert_allclose(seen.mean, after.mean(axis=0), rtol=1e-5)

    shown = np.asarray(norm.normalise_frames(seen, jnp.asarray(frames[3:])), float)
    moved = np.zeros((6, 6), bool)
    moved[2, :3] = True
    assert not shown[..., ~moved].any()
    expected = (after - after.mean(axis=0))[:, moved] / after.std(axis=0)[moved]
    np.testing.assert_allclose(shown[..., moved].reshape(-1, 3) / norm.UNIT, expected, atol=0.5 / norm.UNIT)


def test_statistics_of_frames_are_those_of_numbers():
    rng = np.random.default_rng(0)
    frames, present = rng.integers(0, 256, (40, 30, 6, 6)).astype(np.uint8), rng.random((40, 30)) < 0.7
    frames[..., 0], frames[0, 0, :, 0], present[0, 0] = 200, 9, False  # it is compared with one that does not count
    frames[..., 1] = 130 + 70 * (rng.random((40, 30, 6)) < 0.01)
    seen, values = norm.gather_frames(jnp.asarray(frames), jnp.asarray(present)), frames[present].astype(float)
    assert float(seen.n) == present.sum()
    np.testing.assert_allclose(seen.mean, values.mean(axis=0), rtol=2e-7)
    np.testing.assert_allclose(seen.m2, ((values - values.mean(axis=0)) ** 2).sum(axis=0), rtol=2e-7)
    constant = norm.gather_frames(jnp.full((3, 4, 2, 2), 77, jnp.uint8), jnp.zeros((3, 4), bool).at[1].set(True))
    assert float(constant.n) == 4 and not constant.m2.any() and (np.asarray(constant.mean) == 77).all()
    nobody = norm.gather_frames(jnp.full((3, 4, 2, 2), 77, jnp.uint8), jnp.zeros((3, 4), bool))
    assert float(nobody.n) == 0 and not nobody.m2.any()


@pytest.mark.parametrize("n", [1024, 4000, 20_000, 100_000])
def test_statistics_of_frames_keep_their_digits_when_the_first_is_an_outlier(n):
    """Squares of what is apart from it come to more than 2**24 (1,024 frames), and to more than 2**32 (100,000)."""
    rng = np.random.default_rng(0)
    frames = np.empty((n, 2, 3), np.uint8)
    frames[:, 0, 0] = 236  # a pixel that differs in the first frame only
    frames[:, 0, 1] = rng.integers(240, 256, n)
    frames[:, 0, 2] = 200 + np.arange(n) % 2
    frames[:, 1, 0] = 255
    frames[:, 1, 1] = 255 * rng.integers(0, 2, n)
    frames[:, 1, 2] = rng.integers(0, 256, n)
    frames[0] = 0
    seen = norm.gather_frames(jnp.asarray(frames.reshape(-1, 8, 2, 3)), jnp.ones((n // 8, 8), bool))
    values = frames.astype(np.float64)
    np.testing.assert_allclose(seen.mean, values.mean(axis=0), rtol=2e-7)
    np.testing.assert_allclose(seen.m2, ((values - values.mean(axis=0)) ** 2).sum(axis=0), rtol=2e-7)
    assert {x.dtype for x in seen} == {np.dtype(np.float32)}


def test_frames_stay_bytes():
    bright, none = np.full((1, 2, 2), 250, np.uint8), np.zeros((1, 2, 2), np.uint8)
    flickering = norm.Statistics(jnp.float32(100.0), jnp.full((2, 2), 20.0), jnp.full((2, 2), 1.0))
    for statistics, expected in ((flickering, 127), (norm.empty((2, 2)), 250 - 128), ((), 250 - 128)):
        shown = norm.normalise_frames(statistics, jnp.asarray(np.concatenate([bright, none])))
        assert shown.dtype == jnp.int8
        np.testing.assert_array_equal(shown, np.stack([np.full((2, 2), expected), np.zeros((2, 2))]))


def test_rescaling_the_critic_does_not_change_its_values():
    critic = value_function.init(jax.random.key(0), 3, (8,))
    obs = jax.random.normal(jax.random.key(1), (20, 3))
    new = norm.Statistics(jnp.float32(10.0), jnp.float32(-300.0), jnp.float32(4e5))
    before = value_function.value(critic, obs, "tanh")
    after = value_function.value(value_function.rescale(critic, new), obs, "tanh")
    np.testing.assert_allclose(after, before, atol=1e-3)


def test_frames_are_rounded_to_the_nearest_even_unit():
    x = jnp.concatenate([jnp.arange(-127, 127.25, 0.25), jnp.float32([0.49999997, -0.49999997, 126.50001, -1e-9])])
    rounded = jax.jit(norm._round_to_byte)(x)
    assert rounded.dtype == jnp.int8
    np.testing.assert_array_equal(rounded, jnp.round(x))


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
