"""`inline` keys against JAX's own, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.random import inline
from mfpo.types import Key

SEEDS = (0, 1, 12345, 2**31 - 1, 2**32 - 1)
SHAPES = ((), (7,), (2, 1, 4))

seeds = pytest.mark.parametrize("seed", SEEDS)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def pair(seed: int) -> tuple[Key, Key]:
    key = jax.random.fold_in(jax.random.key(seed), 3)  # both halves of the key are in use
    return key, inline(key)


def data(key: Key) -> list[int]:
    return np.asarray(jax.random.key_data(key)).tolist()


def same_bits(a: jax.Array, b: jax.Array) -> bool:
    return a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes() and a.shape == b.shape


@seeds
def test_inline_keeps_the_key_and_uses_its_own_generator(seed: int) -> None:
    theirs, ours = pair(seed)
    assert data(ours) == data(theirs)
    assert jax.random.key_impl(ours) != jax.random.key_impl(theirs)  # otherwise all else here compares nothing


@seeds
@pytest.mark.parametrize("number", [0, 1, 2, 1000, 2**31 - 1])
def test_fold_in(seed: int, number: int) -> None:
    theirs, ours = pair(seed)
    assert data(jax.random.fold_in(ours, number)) == data(jax.random.fold_in(theirs, number))


@seeds
@pytest.mark.parametrize("shape", [1, 2, 5, (2, 3)], ids=str)
def test_split(seed: int, shape: int | tuple[int, int]) -> None:
    theirs, ours = pair(seed)
    assert data(jax.random.split(ours, shape)) == data(jax.random.split(theirs, shape))


@seeds
@shapes
def test_uniform(seed: int, shape: tuple[int, ...]) -> None:
    theirs, ours = pair(seed)
    assert same_bits(jax.random.uniform(ours, shape), jax.random.uniform(theirs, shape))
    low_high = {"minval": -0.05, "maxval": 0.05}
    assert same_bits(jax.random.uniform(ours, shape, **low_high), jax.random.uniform(theirs, shape, **low_high))


@seeds
@shapes
def test_normal(seed: int, shape: tuple[int, ...]) -> None:
    theirs, ours = pair(seed)
    assert same_bits(jax.random.normal(ours, shape), jax.random.normal(theirs, shape))


@seeds
@pytest.mark.parametrize("shape", [(), (2, 3)], ids=str)
def test_randint(seed: int, shape: tuple[int, ...]) -> None:
    theirs, ours = pair(seed)
    assert same_bits(jax.random.randint(ours, shape, -3, 1000), jax.random.randint(theirs, shape, -3, 1000))


@seeds
@pytest.mark.parametrize("n", [1, 2, 50])
def test_permutation(seed: int, n: int) -> None:
    theirs, ours = pair(seed)
    assert same_bits(jax.random.permutation(ours, n), jax.random.permutation(theirs, n))


def test_under_jit_and_vmap() -> None:
    def draw(key: Key) -> jax.Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.split(key)[1], 4), (3,))

    keys = jax.random.split(jax.random.key(7), 6)
    assert same_bits(jax.jit(jax.vmap(draw))(inline(keys)), jax.vmap(draw)(keys))


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint16, jnp.uint64])
def test_other_widths_than_32_bits_are_refused(dtype: type) -> None:
    width = jnp.iinfo(dtype).bits
    with jax.enable_x64(True), pytest.raises(NotImplementedError, match=f"{width}-bit"):
        jax.random.bits(pair(0)[1], (2,), dtype)
