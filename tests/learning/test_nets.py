"""Products, with the gradients worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.learning.nets import apply_mlp, init_mlp, product

X, W, WANTED = (jax.random.normal(jax.random.key(i), size) for i, size in enumerate([(6, 5), (5, 3), (6, 3)]))


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("centred", "particular"), [(False, X), (True, X - X.mean(axis=0))])
def test_product_and_its_derivatives(centred, particular):
    """A centred product is the same, but its weights learn only by what differs from row to row."""
    result, slope = jax.jvp(lambda x, w: product(x, w, centred), (X, W), (2 * X, 3 * W))
    close(result, X @ W)
    close(slope, 2 * X @ W + 3 * particular @ W)
    of_x, of_w = jax.grad(lambda x, w: jnp.sum(product(x, w, centred) * WANTED), (0, 1))(X, W)
    close(of_x, WANTED @ W.T)
    close(of_w, particular.T @ WANTED)


def test_the_gradient_of_many_products_at_once():
    many = jnp.stack([W, 2 * W])
    of_w = jax.grad(lambda w: jnp.sum(jax.vmap(lambda w: product(X, w))(w) * WANTED))(many)
    close(of_w, jnp.stack([X.T @ WANTED] * 2))


def test_inputs_that_do_not_vary_cost_nothing():
    """The gradient of a layer holds two products, not a third for inputs that nobody asks about."""
    program = str(jax.make_jaxpr(jax.grad(lambda w: jnp.sum(product(X, w) * WANTED)))(W))
    assert program.count("dot_general") == 2


def test_a_network_takes_one_vector_or_many():
    layers = init_mlp(jax.random.key(0), (5, 4, 2), 1.0)
    block = X.reshape(2, 3, 5)
    outputs = apply_mlp(layers, block, "tanh")
    assert outputs.shape == (2, 3, 2)
    close(outputs[1, 2], apply_mlp(layers, block[1, 2], "tanh"))
    close(outputs[1, 2], jnp.tanh(block[1, 2] @ layers[0].w + layers[0].b) @ layers[1].w + layers[1].b)
