"""FedAvg-PPO against numbers computed by hand: a bandit with two arms, whose policy is softmax(b), b the bias."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo import algorithms, envs
from mfpo.algorithms import fedavg_ppo
from mfpo.algorithms.fedavg_ppo import Config, make, surrogate
from mfpo.federation import evaluate, make_engine
from mfpo.learning import steps
from mfpo.runs.settings import resolve
from mfpo.types import TIME_BLOCK, Discrete, EnvSpec, Trajectories

SPEC = EnvSpec("bandit", (1,), Discrete(2), 5)
PLAIN = Config(
    local_steps=2,
    trajectories=2,
    gamma=1.0,
    gae_lambda=1.0,
    epochs=1,
    minibatch=8,
    stepsize=0.1,
    stepsize_decay=1.0,
    normalise_advantages=False,
    normalise_observations=False,
    hidden=(),
    value_hidden=(3,),
    value_updates=1,
    value_samples=4,
)
KEY = jax.random.key(0)


def pulls(actions, rewards, lengths=None):
    """Episodes with observation zero, so that the logits are the bias and the untrained value is zero.

    `actions` and `rewards` are those of every step of an episode.
    """
    lengths = jnp.ones(len(actions), int) if lengths is None else jnp.array(lengths)
    h = jnp.arange(TIME_BLOCK)[:, None]
    live, last = h < lengths, h == lengths - 1
    reward = jnp.where(live, jnp.array(rewards, jnp.float32), 0.0)
    obs = jnp.zeros((*live.shape, 1))
    return Trajectories(
        obs, jnp.where(live, jnp.array(actions), 0), reward, live, last, last & False, obs[0], lengths.max(),
        reward.sum(0),
    )  # fmt: skip


ONE_WIN = pulls([0, 1], [1.0, 0.0])


def started(config, b=(0.0, 0.0)):
    """The algorithm, its server with a policy softmax(b), and an agent that has received it."""
    algorithm = make(config, SPEC, 1)
    algorithm = algorithm._replace(learn=jax.jit(algorithm.learn), merge=jax.jit(algorithm.merge))
    server = algorithm.init(KEY)
    server = server._replace(theta=jnp.zeros_like(server.theta).at[-2:].set(jnp.array(b)))
    assert b_of(algorithm, server.theta).tolist() == list(b)  # the last two parameters are the bias
    return algorithm, server, algorithm.receive(algorithm.join(KEY), algorithm.download(server))


def b_of(algorithm, vector):
    return np.asarray(algorithm.actor(algorithm.init(KEY)._replace(theta=vector)).network[-1].b)


def p_of(b):
    """Probability of arm 0."""
    return 1 / (1 + np.exp(b[1] - b[0]))


@pytest.mark.parametrize(
    ("ratio", "advantage", "earned", "slope"),
    [
        (1.1, 2.0, 2.2, 2.2),  # inside the clip both sides agree
        (1.5, 2.0, 2.4, 0.0),  # more likely than 1.2 times earns nothing more
        (0.5, 2.0, 1.0, 1.0),  # what became less likely by mistake is fully felt
        (0.5, -2.0, -1.6, 0.0),  # less likely than 0.8 times saves nothing more
        (1.5, -2.0, -3.0, -3.0),
    ],
)
def test_the_clipped_surrogate_by_hand(ratio, advantage, earned, slope):
    value, derivative = jax.value_and_grad(surrogate)(jnp.log(ratio), jnp.float32(advantage), 0.2)
    assert float(value) == pytest.approx(earned, rel=1e-5)
    assert float(derivative) == pytest.approx(slope, rel=1e-5)


def adam_by_hand(gradients, alpha=0.1):
    """b after steps of Adam along gradients that may depend on b; moments 0.9 and 0.999, epsilon 1e-5."""
    b, m, v = np.zeros(2), np.zeros(2), np.zeros(2)
    for t, gradient in enumerate(gradients, 1):
        g = gradient(b)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        b = b - alpha * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-5)
    return b


@pytest.mark.parametrize(("clip", "clipped"), [(0.2, False), (0.05, True)])
def test_two_passes_over_a_batch_by_hand(clip, clipped):
    """The value of everything is zero, so the first pull has the advantage 1 and the second none."""
    algorithm, _, agent = started(replace(PLAIN, epochs=2, clip=clip))
    agent, metrics = algorithm.learn(agent, ONE_WIN, KEY)

    def gradient(b):
        ratio = p_of(b) / 0.5
        return -0.5 * ratio * (1 - p_of(b)) * np.array([1.0, -1.0]) * (ratio <= 1 + clip)

    expected = adam_by_hand([gradient, gradient])
    np.testing.assert_allclose(b_of(algorithm, agent.theta), expected, rtol=1e-4)
    assert (p_of(adam_by_hand([gradient])) / 0.5 > 1 + clip) == clipped  # the second pass is where the clip matters
    ratios = np.array([p_of(expected), 1 - p_of(expected)]) / 0.5
    assert float(metrics["kl"]) == pytest.approx(-np.log(ratios).mean(), rel=1e-3)
    assert float(metrics["clip_fraction"]) == np.mean(np.abs(ratios - 1) > clip)


def test_a_pass_sees_every_live_slot_once(monkeypatch):
    """With steps too small to change the policy, the minibatches of a pass add up to the gradient of all."""
    monkeypatch.setattr(fedavg_ppo, "ADAM", steps.plain())
    config = replace(PLAIN, trajectories=3, epochs=2, minibatch=2, stepsize=1e-6)
    algorithm, _, agent = started(config)
    batch = pulls([0, 1, 0], [[1.0, 10.0, 100.0]] * TIME_BLOCK, lengths=[1, 2, 3])
    agent, _ = algorithm.learn(agent, batch, KEY)
    to_go = np.array([1.0, 20.0, 10.0, 300.0, 200.0, 100.0])  # of episodes of one, two and three steps
    arm_0 = np.array([1, 0, 0, 1, 1, 1])
    gradient = -np.mean(to_go * (arm_0 - 0.5))
    moved = b_of(algorithm, agent.theta)
    np.testing.assert_allclose(moved, -1e-6 * 2 * 3 * gradient * np.array([1.0, -1.0]), rtol=2e-3)


def test_advantages_are_standardised():
    algorithm, _, agent = started(replace(PLAIN, normalise_advantages=True, stepsize=1e-3))
    small, _ = algorithm.learn(agent, ONE_WIN, KEY)
    large, _ = algorithm.learn(agent, pulls([0, 1], [1000.0, 0.0]), KEY)
    np.testing.assert_allclose(small.optimiser.mean, large.optimiser.mean, rtol=1e-4)
    raw, _ = started(PLAIN)[0].learn(agent, ONE_WIN, KEY)
    assert not np.allclose(raw.optimiser.mean, small.optimiser.mean)


def test_entropy_is_worth_something():
    alike = pulls([0, 1], [0.0, 0.0])
    for entropy, expected in ((0.0, [1.0, -1.0]), (0.1, [0.9, -0.9])):
        algorithm, _, agent = started(replace(PLAIN, entropy=entropy), b=(1.0, -1.0))
        agent, _ = algorithm.learn(agent, alike, KEY)
        np.testing.assert_allclose(b_of(algorithm, agent.theta), expected, atol=1e-3)


def test_the_stepsize_decays_with_every_local_step():
    algorithm, server, agent = started(replace(PLAIN, stepsize_decay=0.5))
    moved = [agent]
    for _ in range(3):
        moved.append(algorithm.learn(moved[-1]._replace(theta=agent.theta, optimiser=agent.optimiser), ONE_WIN, KEY)[0])
    lengths = [b_of(algorithm, x.theta)[0] for x in moved[1:]]
    np.testing.assert_allclose(lengths, [0.05, 0.025, 0.0125], rtol=1e-3)
    assert [int(x.t) for x in moved] == [0, 1, 2, 3]
    uploads = jax.tree.map(lambda x: x[None], algorithm.upload(agent))
    after, metrics = algorithm.merge(server, uploads, jnp.array([True]), KEY)
    assert int(after.t) == PLAIN.local_steps and float(metrics["stepsize"]) == pytest.approx(0.1 * 0.25)


def three_agents(config=PLAIN):
    algorithm, server, agent = started(config)
    agents = [
        algorithm.learn(agent, pulls([0, 1], rewards), KEY)[0] for rewards in ([1.0, 0.0], [0.0, 1.0], [5.0, 7.0])
    ]
    return algorithm, server, agents, jax.tree.map(lambda *x: jnp.stack(x), *map(algorithm.upload, agents))


def test_the_networks_of_those_who_answered_are_averaged():
    algorithm, server, agents, uploads = three_agents(replace(PLAIN, normalise_observations=True))
    after, metrics = algorithm.merge(server, uploads, jnp.array([True, False, True]), KEY)
    np.testing.assert_allclose(after.theta, (agents[0].theta + agents[2].theta) / 2, rtol=1e-6)
    assert float(metrics["drift"]) == pytest.approx(float(jnp.linalg.norm(agents[0].theta - after.theta)), rel=1e-4)
    assert float(after.obs.n) == 4 and float(after.critic.returns.n) == 4  # steps of two agents
    assert float(after.critic.returns.mean) == pytest.approx((1 + 0 + 5 + 7) / 4)


def test_the_optimisers_stay_with_their_agents():
    algorithm, server, agents, uploads = three_agents()
    after, _ = algorithm.merge(server, uploads, jnp.ones(3, bool), KEY)
    for agent in agents:
        received = algorithm.receive(agent, algorithm.download(after))
        np.testing.assert_array_equal(received.optimiser.mean, agent.optimiser.mean)
        np.testing.assert_array_equal(received.critic.optimiser.updates, agent.critic.optimiser.updates)
        np.testing.assert_array_equal(received.theta, after.theta)
    assert float(agents[0].optimiser.updates) == 1 and not np.allclose(
        agents[0].optimiser.mean, agents[1].optimiser.mean
    )


def test_segments_are_whole_blocks():
    assert Config(trajectories=4, env_steps=2000).segment == 500
    assert Config(trajectories=4, env_steps=1900).segment == 500  # blocks of 50
    assert make(Config(trajectories=4, env_steps=1900), SPEC, 1).plan.segment == 500


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "rounds", "least"), [("CartPole-v1", 6, 495), ("Pendulum-v1", 30, -165)])
def test_the_presets_learn(env_id, rounds, least):
    settings, config = resolve({"env": env_id, "algorithm": "fedavg_ppo"}, {})
    env = envs.make(env_id)
    algorithm = algorithms.make("fedavg_ppo", config, env.spec, settings.agents)
    engine = make_engine("inprocess", algorithm, env, settings.agents, 0)
    state = engine.start()
    for number in range(1, rounds + 1):
        state, _ = engine.round(state, number)
    assert evaluate(algorithm, env, algorithm.actor(state.server), 0, 500).mean() >= least
