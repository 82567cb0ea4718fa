"""How far and which way to move for a given direction u: the step rules.

A rule first *absorbs* the direction into its state, then says the *displacement*. The displacement is a function of
state, u and alpha alone, so whoever knows these (every agent after a download) can recompute the last move, and
averaging the states of all agents gives the state of the server-side step.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mfpo.learning import trees
from mfpo.types import Array, PyTree

STEPS = ("plain", "normalised", "adam", "natural")
TINY = 1e-12
LONG = 2**14  # numbers in theta

Matvec = Callable[[PyTree], PyTree]


class Fisher(NamedTuple):
    """The Fisher information F of a policy, by what it does to directions."""

    times: Matvec  # v -> F v, on directions that are taken apart
    apart: Callable[[PyTree], PyTree] = lambda u: u  # u -> u in pieces
    joined: Callable[[PyTree], PyTree] = lambda v: v  # the way back


UNKNOWN = Fisher(lambda v: v)  # for rules that do not ask


class StepRule(NamedTuple):
    """See the module's docstring."""

    init: Callable[[PyTree], PyTree]  # theta -> state
    absorb: Callable[[PyTree, PyTree, Fisher], PyTree]  # state, u, F -> state
    displacement: Callable[[PyTree, PyTree, Array], PyTree]  # state, u, alpha -> theta_{t+1} - theta_t


def make(kind: str, memory: float, beta1: float, beta2: float, cg_iterations: int, cg_damping: float) -> StepRule:
    """The rule called `kind`, one of STEPS; the numbers are for the rules that need them."""
    if kind == "plain":
        return plain()
    if kind == "normalised":
        return normalised(memory)
    return adam(beta1, beta2) if kind == "adam" else natural(memory, cg_iterations, cg_damping)


def plain() -> StepRule:
    """-alpha u: the paper's."""
    return StepRule(
        init=lambda theta: (),
        absorb=lambda state, u, fisher: (),
        displacement=lambda state, u, alpha: trees.scale(-alpha, u),
    )


def normalised(memory: float) -> StepRule:
    """-alpha u / peak, with peak the largest recent |u|: a step is at most alpha long in parameter space.

    peak_t = max(|u_t|, memory peak_{t-1}). Without memory every step has the length alpha, even where the gradient has
    died away and u is only what momentum remembers of it; such steps drive a policy into saturation, for good.
    """
    return StepRule(
        init=lambda theta: jnp.float32(0.0),
        absorb=lambda peak, u, fisher: jnp.maximum(trees.norm(u), memory * peak),
        displacement=lambda peak, u, alpha: trees.scale(-alpha / (peak + TINY), u),
    )


class Moments(NamedTuple):
    """Adam's running averages of u and u², and the number of updates."""

    mean: PyTree  # empty where it would be u itself
    square: PyTree
    updates: Array


def adam(beta1: float, beta2: float, eps: float = 1e-8) -> StepRule:
    """Adam (Kingma & Ba 2015) on the direction. With beta1 = 0, u is its own mean: not kept, and not sent, twice."""

    def absorb(state: Moments, u: PyTree, fisher: Fisher) -> Moments:
        mean = jax.tree.map(lambda m, x: beta1 * m + (1 - beta1) * x, state.mean, u) if beta1 else ()
        square = jax.tree.map(lambda v, x: beta2 * v + (1 - beta2) * x**2, state.square, u)
        return Moments(mean, square, state.updates + 1.0)

    def displacement(state: Moments, u: PyTree, alpha: Array) -> PyTree:
        count = jnp.maximum(state.updates, 1.0)
        c1, c2 = 1 - beta1**count, 1 - beta2**count
        mean = state.mean if beta1 else u
        return jax.tree.map(lambda m, v: -alpha * (m / c1) / (jnp.sqrt(v / c2) + eps), mean, state.square)

    def init(theta: PyTree) -> Moments:
        return Moments(trees.zeros_like(theta) if beta1 else (), trees.zeros_like(theta), jnp.float32(0.0))

    return StepRule(init, absorb, displacement)


class Natural(NamedTuple):
    """The natural direction and the largest recent length of one."""

    direction: PyTree
    peak: Array


def natural(memory: float, iterations: int, damping: float) -> StepRule:
    """-alpha d / peak with F d = u and peak as in `normalised`, but of the length sqrt(d·u) in the Fisher metric.

    A step of length alpha is a KL divergence of about alpha²/2. d is found by conjugate gradients from the agent's own
    samples; averaged over agents it is the natural direction of the server-side step, which has no samples.
    """

    def absorb(state: Natural, u: PyTree, fisher: Fisher) -> Natural:
        damped = lambda v: trees.axpy(damping, v, fisher.times(v))  # noqa: E731
        d = fisher.joined(conjugate_gradients(damped, fisher.apart(u), iterations))
        length = jnp.sqrt(jnp.maximum(trees.dot(d, u), 0.0))
        return Natural(d, jnp.maximum(length, memory * state.peak))

    def displacement(state: Natural, u: PyTree, alpha: Array) -> PyTree:
        return trees.scale(-alpha / (state.peak + TINY), state.direction)

    return StepRule(lambda theta: Natural(trees.zeros_like(theta), jnp.float32(0.0)), absorb, displacement)


def conjugate_gradients(matvec: Matvec, b: PyTree, iterations: int) -> PyTree:
    """An approximate solution x of A x = b, for A symmetric and positive definite, starting at zero."""

    def body(_: Array, carry: tuple[PyTree, PyTree, PyTree, Array]) -> tuple[PyTree, PyTree, PyTree, Array]:
        x, r, p, rr = carry
        a_p = matvec(p)
        step = rr / (trees.dot(p, a_p) + TINY * TINY)
        x, r = trees.axpy(step, p, x), trees.axpy(-step, a_p, r)
        rr_next = trees.dot(r, r)
        return x, r, trees.axpy(rr_next / (rr + TINY * TINY), p, r), rr_next

    start = (trees.zeros_like(b), b, b, trees.dot(b, b))
    return jax.lax.fori_loop(0, iterations, body, start)[0]


def fisher_of(
    distribution: Callable[[PyTree], PyTree],
    fisher: Callable[..., PyTree],
    theta: Array,
    unravel: Callable[[Array], PyTree],
) -> Fisher:
    """The Fisher information of `distribution(unravel(theta))`, averaged over its leading axis.

    Directions are taken apart as theta is, see `trees.ravel`; but not if they are short: many small sums take longer.
    """
    same: Matvec = lambda v: v  # noqa: E731
    apart, joined, network = (unravel, trees.ravel, same) if theta.size >= LONG else (same, same, unravel)
    dist, jvp = jax.linearize(lambda v: distribution(network(v)), apart(theta))
    vjp = jax.linear_transpose(jvp, apart(theta))
    n = jax.tree.leaves(dist)[0].shape[0]
    return Fisher(lambda v: trees.scale(1.0 / n, vjp(jax.vmap(fisher)(dist, jvp(v)))[0]), apart, joined)
