import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.learning import steps
from mfpo.learning.policies import make_policy
from mfpo.types import Box, Discrete, EnvSpec

U = jnp.array([3.0, -4.0])


def refuse(v):
    raise AssertionError("this rule needs no Fisher information")


NO_FISHER = steps.Fisher(refuse)


def test_plain_and_normalised_displacements():
    for rule, expected in ((steps.plain(), [-0.3, 0.4]), (steps.normalised(0.5), [-0.06, 0.08])):
        state = rule.absorb(rule.init(U), U, NO_FISHER)
        np.testing.assert_allclose(rule.displacement(state, U, jnp.float32(0.1)), expected, rtol=1e-6)


@pytest.mark.parametrize("rule", [steps.normalised(0.5), steps.natural(0.5, iterations=1, damping=0.0)])
def test_a_step_shrinks_when_the_direction_dies_away_and_never_grows_beyond_alpha(rule):
    state, lengths = rule.init(U), []
    for size in (1.0, 0.1, 0.1, 0.1, 2.0):
        state = rule.absorb(state, size * U, steps.Fisher(lambda v: v))
        lengths.append(float(jnp.linalg.norm(rule.displacement(state, size * U, jnp.float32(0.1)))))
    np.testing.assert_allclose(lengths, [0.1, 0.02, 0.04, 0.08, 0.1], rtol=1e-5)  # peaks 1, 0.5, 0.25, 0.125, 2


def test_adam_reproduces_two_hand_computed_steps():
    rule = steps.adam(0.5, 0.75, eps=0.0)
    state = rule.absorb(rule.init(U), U, NO_FISHER)
    np.testing.assert_allclose(rule.displacement(state, U, jnp.float32(0.1)), [-0.1, 0.1], rtol=1e-6)
    second = jnp.array([1.0, 0.0])
    state = rule.absorb(state, second, NO_FISHER)
    # means 0.5*1.5+0.5 = 1.25, 0.5*-2 = -1, over 1-0.25; squares 0.75*2.25+0.25 = 1.9375, 0.75*4 = 3, over 1-0.5625
    m = np.array([1.25, -1.0]) / 0.75
    v = np.array([1.9375, 3.0]) / 0.4375
    np.testing.assert_allclose(rule.displacement(state, second, jnp.float32(0.1)), -0.1 * m / np.sqrt(v), rtol=1e-6)


def test_adam_keeps_no_first_moment_that_is_u_itself():
    rule = steps.adam(0.0, 0.75, eps=0.0)
    state = rule.absorb(rule.absorb(rule.init(U), 2 * U, NO_FISHER), U, NO_FISHER)
    assert [x.shape for x in jax.tree.leaves(state)] == [U.shape, ()]
    v = (0.75 * 0.25 * 4 + 0.25) * U**2 / 0.4375
    np.testing.assert_allclose(rule.displacement(state, U, jnp.float32(0.1)), -0.1 * U / np.sqrt(v), rtol=1e-6)


def test_conjugate_gradients_solve_a_linear_system_exactly_in_as_many_steps_as_dimensions():
    a = jnp.array([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]])
    b = jnp.array([1.0, 2.0, -3.0])
    x = steps.conjugate_gradients(lambda v: a @ v, b, 3)
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=1e-4)


def test_natural_step_has_the_asked_length_in_the_fisher_metric():
    f = jnp.array([[2.0, 0.3], [0.3, 0.5]])
    rule = steps.natural(memory=0.5, iterations=2, damping=0.0)
    state = rule.absorb(rule.init(U), U, steps.Fisher(lambda v: f @ v))
    move = rule.displacement(state, U, jnp.float32(0.1))
    np.testing.assert_allclose(move @ f @ move, 0.01, rtol=1e-4)
    direction = -np.linalg.solve(f, U)
    np.testing.assert_allclose(move / jnp.linalg.norm(move), direction / np.linalg.norm(direction), rtol=1e-4)


def brute_force_fisher(policy, theta, obs, actions_of):
    """Sum over (or sample) actions of p * score scoreᵀ, averaged over observations."""
    total = 0.0
    for o in obs:
        for p, a in actions_of(policy.distribution(policy.unravel(theta), o)):
            s = jax.grad(lambda th, o=o, a=a: policy.log_prob(policy.distribution(policy.unravel(th), o), a))(theta)
            total = total + p * jnp.outer(s, s)
    return total / len(obs)


def check_fisher(spec, actions_of, rtol):
    policy = make_policy(spec, (3,), "tanh", 0.7, "tanh")
    theta = policy.init(jax.random.key(1)) * 3
    obs = jax.random.normal(jax.random.key(2), (4, 2))
    policies = lambda network: policy.distribution(network, obs)  # noqa: E731
    fisher = steps.fisher_of(policies, policy.fisher, theta, policy.unravel)
    matrix = jax.vmap(lambda v: fisher.joined(fisher.times(fisher.apart(v))))(jnp.eye(theta.shape[0]))
    expected = brute_force_fisher(policy, theta, obs, actions_of)
    np.testing.assert_allclose(matrix, expected, rtol=rtol, atol=rtol * float(jnp.max(jnp.abs(expected))))


@pytest.fixture(params=["whole", "in pieces"])
def directions(request, monkeypatch):
    """Long directions are taken apart, short ones are not."""
    if request.param == "in pieces":
        monkeypatch.setattr(steps, "LONG", 0)


def test_fisher_products_of_a_categorical_policy_equal_brute_force(directions):
    spec = EnvSpec("toy", (2,), Discrete(3), 5)
    check_fisher(spec, lambda logits: [(jax.nn.softmax(logits)[a], jnp.int32(a)) for a in range(3)], 1e-4)


def test_fisher_products_of_a_gaussian_policy_equal_quadrature(directions):
    x, w = np.polynomial.hermite_e.hermegauss(8)
    w = w / w.sum()
    spec = EnvSpec("toy", (2,), Box((-1.0,), (1.0,)), 5)
    check_fisher(spec, lambda d: [(wi, d.mean + jnp.exp(d.log_std) * xi) for xi, wi in zip(x, w, strict=True)], 1e-3)
