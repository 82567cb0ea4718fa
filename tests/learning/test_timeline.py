import jax
import jax.numpy as jnp
import numpy as np

from mfpo.learning.timeline import map_over_time, over_time, sample_live
from mfpo.types import TIME_BLOCK, Trajectories


def test_what_is_shorter_than_a_block_is_seen_as_a_whole():
    slots = 16
    x = jnp.arange(2.0 * slots).reshape(slots, 2)
    total, mapped = over_time(lambda b: (jnp.sum(b), 3 * b), (x,), jnp.int32(slots))
    assert total == jnp.sum(x)
    np.testing.assert_array_equal(mapped, 3 * x)
    frames = jnp.zeros((slots, 8, 4, 84, 84), jnp.uint8)
    blocks, sizes = over_time(lambda b: (1, jnp.full(b.shape[:1], b.shape[0])), (frames,), jnp.int32(slots))
    assert (blocks, sizes.tolist()) == (4, [4] * slots)


def test_sum_and_map_stop_at_the_block_that_holds_the_longest_episode():
    x = jnp.ones((4 * TIME_BLOCK, 2))
    for length, blocks in ((0, 0), (1, 1), (TIME_BLOCK, 1), (TIME_BLOCK + 1, 2), (4 * TIME_BLOCK, 4)):
        total, mapped = over_time(lambda b: (jnp.sum(b), 3 * b), (x,), jnp.int32(length))
        assert total == blocks * TIME_BLOCK * 2
        np.testing.assert_array_equal(mapped, map_over_time(lambda b: 3 * b, (x,), jnp.int32(length)))
        np.testing.assert_array_equal(mapped[:, 0], 3.0 * (np.arange(4 * TIME_BLOCK) < blocks * TIME_BLOCK))


def test_blocks_of_frames_are_short_enough_for_the_cache():
    frames = jnp.zeros((TIME_BLOCK, 4, 4, 84, 84), jnp.uint8)
    total, mapped = over_time(lambda b: (b.shape[0], b[..., 0, 0, 0] + jnp.uint8(len(b))), (frames,), jnp.int32(11))
    assert total == 20  # two blocks of 10 steps
    np.testing.assert_array_equal(mapped[:, 0], 10 * (np.arange(TIME_BLOCK) < 20))
    few = over_time(lambda b: (b.shape[0], ()), (jnp.zeros((TIME_BLOCK, 400, 4, 84, 84), jnp.uint8),), jnp.int32(3))
    assert few[0] == 3  # a single step is more than it holds


def lengths_to_batch(lengths):
    live = jnp.arange(TIME_BLOCK)[:, None] < jnp.array(lengths)
    z = jnp.zeros(live.shape)
    return Trajectories(z, z, z, live, z, z, z[0], jnp.int32(max(lengths)), z[0])


def test_sample_live_hits_only_live_slots_and_all_of_them_evenly():
    batch = lengths_to_batch([3, 1, 0, 4])
    h, j = sample_live(batch, jax.random.key(0), 8000)
    counts = np.zeros((TIME_BLOCK, 4))
    np.add.at(counts, (np.asarray(h), np.asarray(j)), 1)
    live = np.asarray(batch.live)
    assert counts[~live].sum() == 0
    np.testing.assert_allclose(counts[live], 1000, atol=2)  # stratified: each of the 8 slots gets its eighth


def test_sample_live_with_fewer_samples_than_slots_takes_distinct_slots():
    h, j = sample_live(lengths_to_batch([50, 50]), jax.random.key(3), 100)
    assert len({(int(a), int(b)) for a, b in zip(h, j, strict=True)}) >= 60
    h, j = sample_live(lengths_to_batch([50, 50]), jax.random.key(3), 25)
    assert len({(int(a), int(b)) for a, b in zip(h, j, strict=True)}) == 25
