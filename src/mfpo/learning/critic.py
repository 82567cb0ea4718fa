"""A learned value function, trained by regression on live steps.

Returns differ by orders of magnitude between environments, so the network predicts them in standard units. When the
statistics of the returns change, the last layer is rescaled so that the predictions do not (van Hasselt et al. 2016).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mfpo.learning import normalisation, steps
from mfpo.learning.nets import Layer, Layers, apply_mlp, init_mlp
from mfpo.learning.normalisation import Statistics
from mfpo.learning.timeline import sample_live
from mfpo.types import Array, Key, PyTree, Trajectories

ADAM = steps.adam(0.9, 0.999)


class Critic(NamedTuple):
    """Network and the statistics of the returns it predicts."""

    phi: Layers
    returns: Statistics


def init(key: Key, n_obs: int, hidden: tuple[int, ...]) -> Critic:
    """A critic that predicts zero, roughly."""
    return Critic(init_mlp(key, (n_obs, *hidden, 1), 0.1), normalisation.empty(()))


def value(critic: Critic, obs: Array, activation: str) -> Array:
    """V(obs) in the units of the reward; obs may have leading axes."""
    standard = apply_mlp(critic.phi, obs, activation)[..., 0]
    return critic.returns.mean + normalisation.deviation(critic.returns) * standard


def rescale(critic: Critic, returns: Statistics) -> Critic:
    """The same function, expressed with new statistics."""
    old, new = normalisation.deviation(critic.returns), normalisation.deviation(returns)
    last = critic.phi[-1]
    w, b = last.w * old / new, (last.b * old + critic.returns.mean - returns.mean) / new
    return Critic((*critic.phi[:-1], Layer(w, b)), returns)


def fit(
    critic: Critic,
    opt: PyTree,
    obs: Array,
    target: Array,
    batch: Trajectories,
    key: Key,
    *,
    activation: str,
    updates: int,
    samples: int,
    stepsize: float,
) -> tuple[Critic, PyTree, Array]:
    """`updates` Adam steps on the squared error to `target` [H, D], each on a sample of live slots; the last loss too."""

    def update(i: Array, carry: tuple[Layers, PyTree, Array]) -> tuple[Layers, PyTree, Array]:
        phi, opt, _ = carry
        where = sample_live(batch, jax.random.fold_in(key, i), samples)
        x, y = obs[where], (target[where] - critic.returns.mean) / normalisation.deviation(critic.returns)
        loss, grad = jax.value_and_grad(lambda p: jnp.mean((apply_mlp(p, x, activation)[:, 0] - y) ** 2))(phi)
        opt = ADAM.absorb(opt, grad, lambda v: v)
        move = ADAM.displacement(opt, grad, jnp.float32(stepsize))
        return jax.tree.map(jnp.add, phi, move), opt, loss

    phi, opt, loss = jax.lax.fori_loop(0, updates, update, (critic.phi, opt, jnp.float32(0.0)))
    return Critic(phi, critic.returns), opt, loss
