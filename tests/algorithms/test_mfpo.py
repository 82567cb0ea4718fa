"""MFPO against numbers computed by hand: a bandit with two arms, whose policy is softmax(b), b the bias."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.algorithms.mfpo import Config, error, make
from mfpo.errors import ConfigError
from mfpo.learning.nets import Layer
from mfpo.types import TIME_BLOCK, Discrete, EnvSpec, Trajectories

SPEC = EnvSpec("bandit", (1,), Discrete(2), 1)
PLAIN = Config(
    local_steps=3,
    trajectories=2,
    gamma=1.0,
    momentum=0.5,
    weights="trajectory",
    weight_cap=float("inf"),
    step="plain",
    stepsize=0.5,
    stepsize_decay=1.0,
    baseline="none",
    normalise_advantages=False,
    normalise_observations=False,
    hidden=(),
)
KEY = jax.random.key(0)


def pulls(actions, rewards):
    """One-step episodes with observation zero, so that the logits are the bias."""
    first = jnp.arange(TIME_BLOCK)[:, None] == 0
    live = jnp.broadcast_to(first, (TIME_BLOCK, len(actions)))
    none = jnp.zeros(live.shape, bool)
    action = jnp.where(live, jnp.array(actions), 0)
    reward = jnp.where(live, jnp.array(rewards, jnp.float32), 0.0)
    obs = jnp.zeros((*live.shape, 1))
    return Trajectories(obs, action, reward, live, live, none, obs[0], jnp.int32(1), reward.sum(0))


ONE_WIN = pulls([0, 1], [1.0, 0.0])


def started(config):
    """The algorithm, its server with a policy of zeros, and an agent that has received it."""
    algorithm = make(config, SPEC, 1)
    server = algorithm.init(KEY)
    server = server._replace(theta=jnp.zeros_like(server.theta))
    return algorithm, server, algorithm.receive(algorithm.join(KEY), algorithm.download(server))


def steps(algorithm, agent, n, batch=ONE_WIN):
    for _ in range(n):
        agent, metrics = algorithm.learn(agent, batch, KEY)
    return agent, metrics


def b_of(algorithm, vector):
    """The part of a parameter vector that belongs to the bias."""
    return np.asarray(algorithm.actor(algorithm.init(KEY)._replace(theta=vector)).network[-1].b)


def p_of(b):
    """Probability of arm 0."""
    return 1 / (1 + np.exp(b[1] - b[0]))


def g_of(b, weight=1.0):
    """Mean gradient of ONE_WIN: only the first pull has an advantage, 1."""
    p = p_of(b)
    return -0.5 * weight * np.array([1 - p, -(1 - p)])


def test_three_steps_of_the_recursion_by_hand():
    algorithm, _, agent = started(PLAIN)
    b1 = np.zeros(2)
    u1 = g_of(b1)
    np.testing.assert_allclose(u1, [-0.25, 0.25])
    agent, _ = steps(algorithm, agent, 1)
    np.testing.assert_allclose(b_of(algorithm, agent.u), u1, rtol=1e-6)
    b2 = b1 - 0.5 * u1
    np.testing.assert_allclose(b_of(algorithm, agent.theta), [0.125, -0.125], rtol=1e-6)

    w = p_of(b1) / p_of(b2)
    u2 = 0.5 * (u1 - g_of(b1, w)) + g_of(b2)
    agent, metrics = steps(algorithm, agent, 1)
    np.testing.assert_allclose(b_of(algorithm, agent.u), u2, rtol=1e-5)
    weights = np.array([w, (1 - p_of(b1)) / (1 - p_of(b2))])
    np.testing.assert_allclose(float(metrics["weight_mean"]), weights.mean(), rtol=1e-5)
    np.testing.assert_allclose(float(metrics["weight_max"]), weights.max(), rtol=1e-5)
    b3 = b2 - 0.5 * u2
    np.testing.assert_allclose(b_of(algorithm, agent.theta), b3, rtol=1e-5)

    u3 = 0.5 * (u2 - g_of(b2, p_of(b2) / p_of(b3))) + g_of(b3)
    agent, _ = steps(algorithm, agent, 1)
    np.testing.assert_allclose(b_of(algorithm, agent.u), u3, rtol=1e-5)
    np.testing.assert_allclose(b_of(algorithm, agent.theta), b3, rtol=1e-5)  # the server takes the K-th step
    assert int(agent.t) == 3


def two_agents(config):
    """Server and uploads after a round of two agents that saw different rewards."""
    algorithm, server, agent = started(config)
    one, _ = steps(algorithm, agent, config.local_steps)
    other, _ = steps(algorithm, agent, config.local_steps, pulls([0, 1], [0.0, 3.0]))
    uploads = jax.tree.map(lambda *x: jnp.stack(x), algorithm.upload(one), algorithm.upload(other))
    return algorithm, server, (one, other), uploads


def test_the_server_averages_both_and_moves_along_the_mean_direction():
    algorithm, server, (one, other), uploads = two_agents(PLAIN)
    after, metrics = algorithm.merge(server, uploads, jnp.array([True, True]), KEY)
    mean_theta, mean_u = (one.theta + other.theta) / 2, (one.u + other.u) / 2
    np.testing.assert_allclose(after.theta, mean_theta - 0.5 * mean_u, rtol=1e-6)
    np.testing.assert_allclose(after.u, mean_u, rtol=1e-6)
    np.testing.assert_allclose(metrics["drift"], jnp.linalg.norm(one.theta - other.theta) / 2, rtol=1e-5)
    agent = algorithm.receive(one, algorithm.download(after))
    np.testing.assert_allclose(agent.theta, after.theta)
    np.testing.assert_allclose(agent.theta_tm1, mean_theta, atol=1e-6)
    np.testing.assert_allclose(agent.u, mean_u, rtol=1e-6)


@pytest.mark.parametrize(
    "step", [*(pytest.param(step, marks=pytest.mark.slow) for step in ("plain", "normalised")), "adam", "natural"]
)
def test_the_previous_policy_is_recomputed_from_the_download(step):
    algorithm, server, _, uploads = two_agents(replace(PLAIN, step=step))
    after, _ = algorithm.merge(server, uploads, jnp.array([True, True]), KEY)
    agent = algorithm.receive(algorithm.join(KEY), algorithm.download(after))
    np.testing.assert_allclose(agent.theta_tm1, uploads.theta.mean(axis=0), atol=1e-6)


def test_with_the_plain_step_the_server_side_step_is_the_mean_of_the_last_local_steps():
    algorithm, server, (one, other), uploads = two_agents(PLAIN)
    after, _ = algorithm.merge(server, uploads, jnp.array([True, True]), KEY)
    np.testing.assert_allclose(after.theta, (one.theta - 0.5 * one.u + other.theta - 0.5 * other.u) / 2, rtol=1e-5)


def test_without_server_side_adjustment_agents_take_every_step_and_keep_their_direction():
    config = replace(PLAIN, server_adjustment=False)
    algorithm, server, (one, other), uploads = two_agents(config)
    _, _, (same, _), _ = two_agents(PLAIN)
    np.testing.assert_allclose(one.theta, same.theta - 0.5 * same.u, rtol=1e-5)
    assert (uploads.u, uploads.step) == ((), ())
    after, _ = algorithm.merge(server, uploads, jnp.array([True, True]), KEY)
    np.testing.assert_allclose(after.theta, (one.theta + other.theta) / 2, rtol=1e-6)
    download = algorithm.download(after)
    assert (download.u, download.step) == ((), ())
    agent = algorithm.receive(one, download)
    np.testing.assert_allclose(agent.u, one.u)
    np.testing.assert_allclose(agent.theta_tm1, one.theta_tm1)
    newcomer = algorithm.receive(algorithm.join(KEY), download)
    np.testing.assert_allclose(newcomer.theta_tm1, after.theta)


def test_the_initial_direction_is_the_mean_over_all_initial_trajectories_at_the_first_policy():
    algorithm, _, agent = started(replace(PLAIN, initial_trajectories=6))
    assert algorithm.plan.initial_steps == 2
    batches = [pulls([0, 1], [1.0, 0.0]), pulls([0, 1], [0.0, 3.0]), pulls([0, 0], [2.0, 2.0])]
    gradients = [np.array([-0.25, 0.25]), -0.5 * 3 * np.array([-0.5, 0.5]), -2.0 * np.array([0.5, -0.5])]
    for i, batch in enumerate(batches):
        assert int(agent.t) == 0
        np.testing.assert_allclose(agent.theta, jnp.zeros_like(agent.theta))
        agent, _ = algorithm.learn(agent, batch, KEY)
        np.testing.assert_allclose(b_of(algorithm, agent.u), np.mean(gradients[: i + 1], axis=0), rtol=1e-5)
    assert int(agent.t) == 1
    np.testing.assert_allclose(b_of(algorithm, agent.theta), -0.5 * np.mean(gradients, axis=0), rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "second_direction"),
    [
        ({"momentum": 0.0}, lambda u1, g1, g2: g2),
        ({"correction": "none"}, lambda u1, g1, g2: 0.5 * u1 + 0.5 * g2),
        ({"weights": "none"}, lambda u1, g1, g2: 0.5 * (u1 - g1) + g2),
    ],
    ids=["FedAvg-PG", "heavy-ball", "no weights"],
)
def test_ablations_by_hand(settings, second_direction):
    algorithm, _, agent = started(replace(PLAIN, **settings))
    agent, _ = steps(algorithm, agent, 2)
    u1 = g_of(np.zeros(2))
    g2 = g_of(-0.5 * u1)
    np.testing.assert_allclose(b_of(algorithm, agent.u), second_direction(u1, g_of(np.zeros(2)), g2), rtol=1e-5)


def test_the_cap_bounds_the_weights():
    algorithm, _, agent = started(replace(PLAIN, weight_cap=0.9))
    agent, metrics = steps(algorithm, agent, 2)
    assert float(metrics["weight_max"]) == pytest.approx(0.9)


@pytest.mark.parametrize(("cap", "first"), [(float("inf"), 2.0), (1.0, 1.0)])
def test_the_cap_bounds_the_standardised_advantages(cap, first):
    """Of five pulls one wins: the advantages are 2 and four times -0.5."""
    config = replace(PLAIN, trajectories=5, normalise_advantages=True, advantage_cap=cap)
    algorithm, _, agent = started(config)
    agent, _ = steps(algorithm, agent, 1, pulls([0, 1, 1, 1, 1], [10.0, 0.0, 0.0, 0.0, 0.0]))
    np.testing.assert_allclose(b_of(algorithm, agent.u)[0], -(0.5 * first + 1) / 5, rtol=1e-5)


def test_settings_that_make_no_sense_together_are_refused():
    for settings, words in (
        ({"initial_trajectories": 3}, "multiple"),
        ({"estimator": "reinforce", "baseline": "value"}, "reinforce"),
        ({"momentum_rule": "theorem"}, "belong together"),
        (
            {"env_steps": 100, "discount_states": True, "baseline": "value", "weights": "action"},
            "counts the steps of an episode, which --env-steps cuts",
        ),
        ({"stepsize": -1.0}, "above 0"),
        ({"step": "adm"}, "Did you mean adam"),
    ):
        with pytest.raises(ConfigError, match=words):
            replace(PLAIN, **settings)


def test_the_reference_is_taken_at_the_mean_policy_before_the_server_side_step():
    config = replace(PLAIN, normalise_observations=True)
    algorithm, before, (one, other), uploads = two_agents(config)
    after, metrics = algorithm.merge(before, uploads, jnp.array([True, True]), KEY)
    stand, direction, gradient = algorithm.reference
    agent = stand(before, after)
    mean_theta = (one.theta + other.theta) / 2
    np.testing.assert_allclose(agent.theta, mean_theta, atol=1e-6)
    np.testing.assert_allclose(direction(agent), (one.u + other.u) / 2, rtol=1e-6)
    assert float(agent.obs.n) == 0 < float(after.obs.n)  # it sees as the agents of that round did
    np.testing.assert_allclose(b_of(algorithm, gradient(agent, ONE_WIN)), g_of(b_of(algorithm, mean_theta)), rtol=1e-5)
    apart = jnp.sum((one.u - other.u) ** 2) / 2
    assert float(metrics["consensus_error"]) == pytest.approx(float(apart), rel=1e-5)
    assert float(metrics["gradient_norm_squared"]) == pytest.approx(float(jnp.dot(one.u, other.u)), rel=1e-4)


def test_without_server_side_adjustment_there_is_no_direction_to_measure():
    algorithm, server, _, uploads = two_agents(replace(PLAIN, server_adjustment=False))
    assert algorithm.reference is None
    _, metrics = algorithm.merge(server, uploads, jnp.ones(2, bool), KEY)
    assert not {"consensus_error", "gradient_norm_squared"} & metrics.keys()


@pytest.mark.parametrize(("correction", "share"), [("importance", 0.2), ("none", 1.0)])
def test_the_error_of_the_value_is_remembered_as_a_running_mean(correction, share):
    """What u adds up without a correction, a geometric series of momentum 0.8, comes in with a fifth of its weight."""
    config = Config(step="adam", momentum=0.8, correction=correction, value_weight=0.5)
    policy = SimpleNamespace(features=lambda network, obs: obs)
    agent = SimpleNamespace(critic=SimpleNamespace(critic=SimpleNamespace(phi=(Layer(jnp.ones((2, 1)), jnp.ones(1)),))))
    cost = error(SimpleNamespace(config=config, policy=policy), agent, jnp.zeros(1), jnp.float32(0.8))
    np.testing.assert_allclose(cost.of(jnp.array([[1.0, 2.0]]), jnp.array([1.0])), [share * 0.25 * 9], rtol=1e-6)
    vectors = SimpleNamespace(config=config, policy=SimpleNamespace(features=None))
    assert error(vectors, agent, jnp.zeros(1), jnp.float32(0.8)) is None
