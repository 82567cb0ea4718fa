"""Fed-SAC against numbers computed by hand: networks without hidden layers, of which only the bias counts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.algorithms.fed_sac import Config, Judges, Networks, kind_of, losses, make
from mfpo.errors import ConfigError
from mfpo.learning.nets import Layer, Layers
from mfpo.learning.replay import Transitions
from mfpo.types import TIME_BLOCK, Box, Discrete, EnvSpec, MultiDiscrete, Trajectories

KEY = jax.random.key(0)
CHOICE = EnvSpec("choice", (1,), Discrete(2), 5)
BOX = EnvSpec("box", (1,), Box((-2.0, 0.0), (2.0, 1.0)), 5)
LINE = EnvSpec("line", (1,), Box((-2.0,), (2.0,)), 5)
C = Config(hidden=(), least_entropy=-1.0, least_entropy_discrete=0.4)


def only_bias(*rows: list[float], inputs: int = 1) -> Layers:
    """Networks without hidden layers and weights; several of them have a leading axis."""
    b = jnp.array(rows if len(rows) > 1 else rows[0])
    return (Layer(jnp.zeros((*b.shape[:-1], inputs, b.shape[-1])), b),)


# Discrete actions: probabilities 1/4 and 3/4; the critics' least values are 1 and 0, the targets' -1 and 3.

LOGITS, P = [0.0, float(np.log(3))], np.array([0.25, 0.75])
ENTROPY = float(-np.sum(P * np.log(P)))
NOW, TARGET = only_bias([1.0, 2.0], [2.0, 0.0]), only_bias([-1.0, 3.0], [5.0, 4.0])
LOG_ALPHA = float(np.log(0.2))


def loss_of(terminated: bool) -> tuple[float, dict[str, Any], Networks]:
    """The sum of the losses after taking action 1 for a reward of 0.5: its value, metrics and gradient."""
    networks = Networks(Judges((), NOW), only_bias(LOGITS), jnp.float32(LOG_ALPHA))
    discount, obs = jnp.array([0.0 if terminated else 0.5]), jnp.zeros((1, 1))
    batch = Transitions(obs, jnp.array([1]), jnp.array([0.5]), obs, discount)
    fn = jax.value_and_grad(lambda n: losses(C, kind_of(C, CHOICE), False, n, Judges((), TARGET), batch, KEY), 0, True)
    (loss, metrics), g = fn(networks)
    return float(loss), metrics, g


def test_the_soft_value_of_a_choice_is_its_expectation() -> None:
    value, entropy = kind_of(C, CHOICE).soft_value(NOW, jnp.zeros(1), jnp.array(LOGITS), jnp.float32(0.2), KEY)
    assert float(entropy) == pytest.approx(ENTROPY)
    assert float(value) == pytest.approx(0.25 * 1 + 0.75 * 0 + 0.2 * ENTROPY)


@pytest.mark.parametrize("terminated", [False, True])
def test_losses_and_gradients_of_discrete_actions(terminated: bool) -> None:
    ahead = 0.25 * -1 + 0.75 * 3 + 0.2 * ENTROPY  # of the targets, with the entropy of the actor
    y = 0.5 if terminated else 0.5 + 0.5 * ahead
    loss, metrics, g = loss_of(terminated)
    critic_loss = 0.5 * ((2 - y) ** 2 + (0 - y) ** 2)
    assert float(metrics["q_loss"]) == pytest.approx(critic_loss)
    assert float(metrics["q_mean"]) == pytest.approx(1.0)
    assert float(metrics["temperature"]) == pytest.approx(0.2)
    value = 0.25 + 0.2 * ENTROPY
    assert loss == pytest.approx(critic_loss - value + LOG_ALPHA * (ENTROPY - 0.4 * np.log(2)), rel=1e-5)
    # critics: only the action taken, and nothing of what the actor wants
    np.testing.assert_allclose(g.judges.critics[0].b, [[0, 2 - y], [0, 0 - y]], atol=1e-6)
    # actor: d/dlogits of -sum p (q - alpha log p) is -p (a - sum p a) with a = q - alpha log p
    a = np.array([1.0, 0.0]) - 0.2 * np.log(P)
    np.testing.assert_allclose(g.actor[0].b, -P * (a - P @ a), rtol=1e-5)
    # temperature: there is more entropy than asked for, so it falls
    assert float(g.log_alpha) == pytest.approx(ENTROPY - 0.4 * np.log(2), rel=1e-5)
    assert float(g.log_alpha) > 0


# Real actions.


def test_the_density_of_a_squashed_gaussian() -> None:
    kind = kind_of(C, BOX)
    output = jnp.array([0.3, -1.0, np.log(0.5), np.log(2.0)])
    action, log_p = kind.draw(output, KEY)
    raw = np.arctanh(np.asarray(action, np.float64))
    z = (raw - [0.3, -1.0]) / [0.5, 2.0]
    density = np.exp(-0.5 * z**2) / (np.sqrt(2 * np.pi) * np.array([0.5, 2.0])) / (1 - np.asarray(action) ** 2)
    assert float(log_p) == pytest.approx(np.log(density).sum(), rel=1e-4)
    np.testing.assert_allclose(kind.mode(output), np.tanh([0.3, -1.0]), rtol=1e-6)


def test_the_density_is_finite_where_the_squashing_is_flat() -> None:
    _, log_p = kind_of(C, BOX).draw(jnp.array([40.0, -40.0, 0.0, 0.0]), KEY)
    assert np.isfinite(log_p)
    slope = jax.grad(lambda x: kind_of(C, BOX).draw(x, KEY)[1])(jnp.array([40.0, -40.0, 0.0, 0.0]))
    assert np.isfinite(slope).all()


def test_the_standard_deviation_depends_on_the_observation_within_bounds() -> None:
    kind = kind_of(C, LINE)
    keys = jax.random.split(KEY, 2000)

    def spread(log_std: float) -> float:
        return float(jnp.std(jnp.arctanh(jax.vmap(lambda k: kind.draw(jnp.array([0.0, log_std]), k)[0])(keys))))

    assert spread(-1.0) == pytest.approx(np.exp(-1), rel=0.1)
    assert spread(-50.0) == pytest.approx(np.exp(-5), rel=0.1)


def test_a_place_between_minus_one_and_one_becomes_an_action() -> None:
    kind = kind_of(C, BOX)
    for place, action in (([-1.0, -1.0], [-2.0, 0.0]), ([0.0, 0.5], [0.0, 0.75]), ([1.0, 1.0], [2.0, 1.0])):
        np.testing.assert_allclose(kind.action(jnp.array(place)), action)


def line_networks(q: list[float], slope: list[float]) -> Layers:
    """Two critics of a line: Q_j = q_j + slope_j a."""
    w = jnp.array([[[0.0], [s]] for s in slope])
    return (Layer(w, jnp.array(q)[:, None]),)


def test_losses_and_gradients_of_real_actions() -> None:
    """The critics rise with the action, so that the actor's mean moves up; their minimum is the second's."""
    actor = only_bias([0.2, -2.0])
    now, target = line_networks([3.0, 1.0], [1.0, 2.0]), line_networks([0.5, 0.0], [0.0, 0.0])
    networks = Networks(Judges((), now), actor, jnp.float32(LOG_ALPHA))
    obs = jnp.zeros((1, 1))
    batch = Transitions(obs, jnp.array([[0.5]]), jnp.array([1.0]), obs, jnp.array([0.5]))
    kind = kind_of(C, LINE)
    fn = jax.value_and_grad(lambda n: losses(C, kind, False, n, Judges((), target), batch, KEY), 0, True)
    (_, metrics), g = fn(networks)

    key_now, key_after = jax.random.split(KEY)
    output = jnp.array([[0.2, -2.0]])
    _, log_p_after = kind.draw(output, key_after)
    y = 1.0 + 0.5 * (0.0 - 0.2 * float(log_p_after[0]))
    assert float(metrics["q_loss"]) == pytest.approx(0.5 * ((3.5 - y) ** 2 + (2.0 - y) ** 2), rel=1e-5)
    np.testing.assert_allclose(g.judges.critics[0].b[:, 0], [3.5 - y, 2.0 - y], rtol=1e-5)

    action, log_p = kind.draw(output, key_now)
    a, noise = float(action[0, 0]), float(jax.random.normal(key_now, (1, 1))[0, 0])
    assert float(metrics["entropy"]) == pytest.approx(-float(log_p[0]))
    assert float(g.log_alpha) == pytest.approx(-float(log_p[0]) + 1.0, rel=1e-5)
    # V = 1 + 2 a - 0.2 log pi with a = tanh(mean + std noise); log pi changes by 2 a with the mean, and with log std by
    # 2 a std noise - 1
    std = np.exp(-2.0)
    by_mean = 2 * (1 - a**2) - 0.2 * 2 * a
    by_log_std = by_mean * std * noise + 0.2
    np.testing.assert_allclose(g.actor[0].b, [-by_mean, -by_log_std], rtol=1e-4)


# The algorithm.


def test_actions_it_cannot_take_are_refused() -> None:
    with pytest.raises(ConfigError, match="several discrete actions at once, as many does; use fed_dqn"):
        make(C, EnvSpec("many", (1,), MultiDiscrete((2, 3)), 5), 1)
    with pytest.raises(ConfigError, match="between bounds, but those of box have none"):
        make(C, BOX._replace(action=Box((0.0,), (float("inf"),))), 1)


@pytest.mark.parametrize("spec", [CHOICE, LINE])
def test_actions_are_uniform_until_the_warm_up_is_over(spec: EnvSpec) -> None:
    algorithm = make(Config(hidden=(), warmup=50), spec, 1)
    server = algorithm.init(KEY)
    act = jax.jit(jax.vmap(algorithm.act, (None, None, 0)))
    certain = server._replace(theta=jnp.full_like(server.theta, 8.0))  # with observation 1 far from uniform
    keys, obs = jax.random.split(KEY, 2000), jnp.ones(1)
    found = {}
    for steps in (49, 50):
        actor = algorithm.actor(certain._replace(steps=jnp.float32(steps)))
        assert bool(actor.random) == (steps == 49)
        found[steps] = np.asarray(act(actor, obs, keys)[0], np.float64).ravel()
    low, high = (0, 1) if spec is CHOICE else (-2, 2)
    assert found[49].mean() == pytest.approx((low + high) / 2, abs=0.05 * (high - low))
    assert found[49].std() == pytest.approx((high - low) / (2 if spec is CHOICE else np.sqrt(12)), rel=0.05)
    assert spec is CHOICE or found[50].mean() > 1.9


def test_the_target_is_of_the_critics_alone() -> None:
    algorithm = make(Config(hidden=(3,)), LINE, 1)
    server = algorithm.init(KEY)
    agent = algorithm.receive(algorithm.join(KEY), server)
    one_critic = (2 * 3 + 3) + (3 + 1)
    assert agent.target.shape == (2 * one_critic,)
    assert np.array_equal(agent.target, server.theta[: 2 * one_critic])
    assert server.theta.shape == (2 * one_critic + (3 + 3) + (3 * 2 + 2) + 1,)


def test_as_many_rewards_are_summed_as_asked_for() -> None:
    """One step on a replay of the rewards 1, 2, 4: what the critics are to say of the first state is their sum."""
    spec = EnvSpec("three", (1,), Discrete(2), 3)
    h = jnp.arange(TIME_BLOCK)[:, None]
    live, last = h < 3, h == 2
    reward = jnp.where(live, 2.0**h, 0.0)
    obs = jnp.where(h == 0, 1.0, 0.0)[..., None]
    batch = Trajectories(obs, 0 * h, reward, live, last, last & False, obs[3], jnp.int32(3), reward.sum(0))
    losses = []
    for lookahead, target in ((1, (1.0, 2.0, 4.0)), (3, (7.0, 6.0, 4.0))):
        config = Config(lookahead=lookahead, gamma=1.0, warmup=0, samples=3, updates_per_step=0.1, hidden=())
        algorithm = make(config, spec, 1)
        server = algorithm.init(KEY)
        server = server._replace(theta=jnp.zeros_like(server.theta).at[-1].set(-50.0))  # no temperature
        agent = algorithm.receive(algorithm.join(KEY), algorithm.download(server))
        metrics = algorithm.learn(agent, batch, KEY)[1]
        losses.append(float(metrics["q_loss"]))
        assert losses[-1] == pytest.approx(np.mean(np.square(target)), rel=1e-5)  # half, for two critics that say 0
    assert losses[0] < losses[1]
