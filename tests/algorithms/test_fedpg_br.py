"""FedPG-BR against numbers computed by hand: a bandit with two arms, whose policy is softmax(b), b the bias."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo import algorithms, envs
from mfpo.algorithms.fedpg_br import Config, draw_batch, draw_steps, first_columns, make, monte_carlo
from mfpo.errors import ConfigError
from mfpo.federation import make_engine, robust
from mfpo.federation.sampling import make_server_sampler
from mfpo.learning.normalisation import Statistics
from mfpo.runs.settings import resolve
from mfpo.types import TIME_BLOCK, Discrete, EnvSpec, Trajectories

SPEC = EnvSpec("bandit", (1,), Discrete(2), 5)
PLAIN = Config(
    trajectories=2,
    server_trajectories=2,
    gamma=1.0,
    sigma=100.0,
    weights="trajectory",
    weight_cap=float("inf"),
    stepsize=0.1,
    baseline="none",
    normalise_advantages=False,
    normalise_observations=False,
    hidden=(),
)
KEY = jax.random.key(0)
ASIDE = np.array([1.0, -1.0])  # towards arm 0


def pulls(actions, rewards, lengths=None):
    """Episodes with observation zero, so that the logits are the bias; `rewards` are those of every step."""
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


def started(config=PLAIN, b=(0.0, 0.0), agents=3):
    """The algorithm, its server with a policy softmax(b), and an agent that has received it."""
    algorithm = compiled(make(config, SPEC, agents))
    server = algorithm.init(KEY)
    server = server._replace(theta=with_bias(server.theta, b))
    assert b_of(algorithm, server.theta).tolist() == list(b)  # the last two parameters are the bias
    return algorithm, server, algorithm.receive(algorithm.join(KEY), algorithm.download(server))


def compiled(algorithm):
    learn, merge, refine = (jax.jit(f) for f in (algorithm.learn, algorithm.merge, algorithm.refine))
    return algorithm._replace(learn=learn, merge=merge, refine=refine)


def with_bias(theta, b):
    return jnp.zeros_like(theta).at[-2:].set(jnp.array(b))


def b_of(algorithm, vector):
    return np.asarray(algorithm.actor(algorithm.init(KEY)._replace(theta=vector)).network[-1].b)


def p_of(b):
    """Probability of arm 0."""
    return 1 / (1 + np.exp(b[1] - b[0]))


def uploads_of(algorithm, agents):
    return jax.tree.map(lambda *x: jnp.stack(x), *map(algorithm.upload, agents))


def merged(algorithm, server, agents, mask=None):
    uploads = uploads_of(algorithm, agents)
    return algorithm.merge(server, uploads, jnp.ones(len(agents), bool) if mask is None else jnp.array(mask), KEY)


def test_a_gradient_is_the_mean_over_all_steps():
    algorithm, _, agent = started()
    agent, metrics = algorithm.learn(agent, ONE_WIN, KEY)
    np.testing.assert_allclose(b_of(algorithm, agent.g), -0.5 * 0.5 * ASIDE, rtol=1e-6)
    assert float(metrics["gradient_norm"]) == pytest.approx(np.sqrt(2) / 4)
    # episodes of one and three steps: rewards to go 1 and 30, 20, 10; four steps in all
    agent, _ = algorithm.learn(agent, pulls([0, 1], [[1.0, 10.0]] * TIME_BLOCK, lengths=[1, 3]), KEY)
    np.testing.assert_allclose(b_of(algorithm, agent.g), -(0.5 * 1 - 0.5 * 60) / 4 * ASIDE, rtol=1e-6)


@pytest.mark.parametrize("baseline", ["none", "time", "episode", "value"])
@pytest.mark.slow
def test_only_the_first_trajectories_count(baseline):
    """With B_t = 2 of four: what the other two hold means nothing, and the result is that of a batch of two."""

    def gradient(columns, others, n):
        config = replace(PLAIN, trajectories=columns, least_trajectories=2, baseline=baseline, value_hidden=(3,))
        algorithm, server, _ = started(config)
        agent = algorithm.receive(algorithm.join(KEY), algorithm.download(server._replace(batch=jnp.int32(n))))
        rewards = [[1.0, 2.0, others, 0.0]] + [[1.0, 0.0, 0.0, others]] * (TIME_BLOCK - 1)
        arms = (np.arange(TIME_BLOCK)[:, None] // 2 + np.arange(columns)) % 2
        batch = pulls(arms, np.array(rewards)[:, :columns], lengths=[3, 3, 4, 5][:columns])
        return b_of(algorithm, algorithm.learn(agent, batch, KEY)[0].g)

    np.testing.assert_array_equal(gradient(4, 7.0, 2), gradient(4, -1.0, 2))
    np.testing.assert_allclose(gradient(4, 7.0, 2), gradient(2, 0.0, 2), rtol=1e-5)
    assert not np.allclose(gradient(4, 7.0, 3), gradient(4, -1.0, 3))
    assert not np.allclose(gradient(4, 7.0, 2), 0.0)


def test_baselines_by_hand():
    batch = first_columns(pulls([0, 1, 0], [[1.0, 10.0, 99.0]] * TIME_BLOCK, lengths=[1, 3, 2]), jnp.int32(2))

    def advantages(baseline):
        return np.asarray(monte_carlo(batch, jnp.int32(2), 1.0, baseline))[:4]

    np.testing.assert_allclose(advantages("none"), [[1, 30, 0], [0, 20, 0], [0, 10, 0], [0, 0, 0]])
    np.testing.assert_allclose(advantages("time"), [[-29, 29, 0], [0, 20, 0], [0, 10, 0], [0, 0, 0]])
    z = np.sqrt(1.5)
    np.testing.assert_allclose(advantages("episode"), [[0, z, 0], [0, 0, 0], [0, -z, 0], [0, 0, 0]], atol=1e-5)


def three_agents(algorithm, agent):
    return [algorithm.learn(agent, pulls([0, 1], rewards), KEY)[0] for rewards in ([1, 0], [3, 0], [0, 4])]


def test_the_server_moves_along_the_mean_of_those_it_keeps():
    algorithm, server, agent = started()
    agents = three_agents(algorithm, agent)
    after, metrics = merged(algorithm, server, agents)
    mu = np.mean([b_of(algorithm, x.g) for x in agents], axis=0)
    np.testing.assert_allclose(mu, [0.0, 0.0], atol=1e-7)  # 1/4, 3/4 and -1 towards arm 0
    assert int(metrics["kept"].sum()) == 3 and int(metrics["batch"]) == 2

    after, metrics = merged(algorithm, server, agents, [True, True, False])
    np.testing.assert_allclose(b_of(algorithm, after.mu), -0.5 * ASIDE, rtol=1e-6)
    np.testing.assert_allclose(b_of(algorithm, after.theta), 0.1 * ASIDE, rtol=1e-5)  # Adam's first step
    np.testing.assert_array_equal(after.theta_0, server.theta)
    assert int(metrics["kept"].sum()) == 2
    assert int(after.remaining) == int(metrics["server_steps"]) - 1 == int(algorithm.refinements(after))


def test_the_filter_removes_the_one_that_is_far_away():
    """V = 2 ln(6/0.6) = 4.6, so the threshold is 2σ sqrt(V/2) = 3.03 σ; 0.71 lie between the first two, 2.5 beyond."""
    algorithm, server, agent = started(replace(PLAIN, sigma=0.2, suspected=0.4))
    after, metrics = merged(algorithm, server, three_agents(algorithm, agent))
    assert int(metrics["kept"].sum()) == 1  # nobody has company: the densest place is that of the first two
    algorithm, server, agent = started(replace(PLAIN, sigma=0.3, suspected=0.4))
    after, metrics = merged(algorithm, server, three_agents(algorithm, agent))
    assert int(metrics["kept"].sum()) == 2
    np.testing.assert_allclose(b_of(algorithm, after.mu), -0.5 * ASIDE, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_dropped_with_all_that_came_with_it(bad):
    algorithm, server, agent = started(replace(PLAIN, normalise_observations=True, baseline="value", value_hidden=(3,)))
    agents = three_agents(algorithm, agent)
    expected, _ = merged(algorithm, server, agents, [True, False, True])
    for spoilt in (
        agents[1]._replace(g=agents[1].g.at[0].set(bad)),
        agents[1]._replace(obs_seen=agents[1].obs_seen._replace(mean=jnp.full(1, bad))),
    ):
        after, metrics = merged(algorithm, server, [agents[0], spoilt, agents[2]])
        assert int(metrics["kept"].sum()) == 2
        for one, two in zip(jax.tree.leaves(after), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(one, two)
    nobody, metrics = merged(algorithm, server, [spoilt] * 3)
    assert int(metrics["kept"].sum()) == 0 and int(metrics["server_steps"]) == 0
    for one, two in zip(jax.tree.leaves(nobody), jax.tree.leaves(server), strict=True):
        np.testing.assert_array_equal(one, two)


def between(algorithm, server, b_0, b_n, mu):
    """A server in the middle of its refinements."""
    theta = server.theta
    return server._replace(
        theta=with_bias(theta, b_n), theta_0=with_bias(theta, b_0), mu=with_bias(theta, mu), remaining=jnp.int32(2)
    )


def direction_of(algorithm, server, after):
    """v, from the first moment of Adam before and after."""
    v = (after.step.mean - 0.9 * server.step.mean) / 0.1
    return b_of(algorithm, v)


def test_where_the_agents_measured_the_direction_is_mu_whatever_the_server_samples():
    algorithm, server, _ = started()
    server = between(algorithm, server, (0.3, 0.0), (0.3, 0.0), (0.7, 0.1))
    for batch in (ONE_WIN, pulls([1, 1], [5.0, -3.0])):
        after, metrics = algorithm.refine(server, batch, KEY)
        np.testing.assert_allclose(direction_of(algorithm, server, after), [0.7, 0.1], atol=1e-6)
        assert float(metrics["weight_mean"]) == 1.0 and float(metrics["weight_std"]) == 0.0
    assert int(after.remaining) == 1
    np.testing.assert_array_equal(after.theta_0, server.theta_0)


def test_elsewhere_it_is_corrected_by_how_the_gradient_changed():
    algorithm, server, _ = started()
    b_0, b_n, mu = (0.0, 0.0), (0.4, -0.4), np.array([0.7, 0.1])
    server = between(algorithm, server, b_0, b_n, mu)
    after, metrics = algorithm.refine(server, ONE_WIN, KEY)
    p, w = p_of(b_n), 0.5 / p_of(b_n)
    g_n, g_0 = -0.5 * (1 - p) * ASIDE, -0.5 * 0.5 * ASIDE
    v = g_n - w * g_0 + mu
    np.testing.assert_allclose(direction_of(algorithm, server, after), v, rtol=1e-5)
    moved = b_of(algorithm, after.theta) - np.array(b_n)
    np.testing.assert_allclose(moved, -0.1 * np.sign(v), rtol=1e-4)  # Adam's first step
    weights = np.array([w, 0.5 / (1 - p)])
    assert float(metrics["weight_mean"]) == pytest.approx(weights.mean(), rel=1e-5)
    assert float(metrics["weight_max"]) == pytest.approx(weights.max(), rel=1e-5)


def test_entropy_counts_in_the_gradients_of_agents_and_server():
    """Of a policy with p = sigmoid(z) its derivative by z is -z p (1 - p)."""
    config, b_0, b_n, nothing = replace(PLAIN, entropy=0.5), (1.0, 0.0), (0.4, -0.4), pulls([0, 1], [0.0, 0.0])
    algorithm, server, agent = started(config, b_0)
    less = lambda b: 0.5 * (b[0] - b[1]) * p_of(b) * (1 - p_of(b)) * ASIDE  # noqa: E731
    np.testing.assert_allclose(b_of(algorithm, algorithm.learn(agent, nothing, KEY)[0].g), less(b_0), rtol=1e-5)
    server = between(algorithm, server, b_0, b_n, (0.0, 0.0))
    after, metrics = algorithm.refine(server, nothing, KEY)
    v = less(b_n) - float(metrics["weight_mean"]) * less(b_0)
    np.testing.assert_allclose(direction_of(algorithm, server, after), v, rtol=1e-4)


def test_the_cap_bounds_the_weights():
    algorithm, server, _ = started(replace(PLAIN, weight_cap=0.5))
    server = between(algorithm, server, (0.0, 0.0), (0.4, -0.4), (0.0, 0.0))
    after, metrics = algorithm.refine(server, ONE_WIN, KEY)
    assert float(metrics["weight_max"]) == 0.5
    p = p_of((0.4, -0.4))
    np.testing.assert_allclose(
        direction_of(algorithm, server, after), (-0.5 * (1 - p) + 0.5 * 0.5 * 0.5) * ASIDE, rtol=1e-5
    )


def test_the_number_of_steps_is_geometric():
    """With chance b / (B + b) of being the last: 1 + B / b on average, 5 here."""
    config = replace(PLAIN, trajectories=16, server_trajectories=4, server_steps=1000)
    keys = jax.random.split(KEY, 20000)
    drawn = np.asarray(jax.vmap(lambda key: draw_steps(config, jnp.int32(16), key))(keys))
    assert drawn.min() == 1 and drawn.mean() == pytest.approx(5.0, abs=0.15)  # its standard error is 0.03
    assert drawn.std() == pytest.approx(np.sqrt(0.8) / 0.2, rel=0.05)
    assert np.mean(drawn == 1) == pytest.approx(0.2, abs=0.015)
    fewer = np.asarray(jax.vmap(lambda key: draw_steps(config, jnp.int32(4), key))(keys))
    assert fewer.mean() == pytest.approx(2.0, abs=0.06)
    bounded = np.asarray(jax.vmap(lambda key: draw_steps(replace(config, server_steps=3), jnp.int32(16), key))(keys))
    np.testing.assert_array_equal(bounded, np.minimum(drawn, 3))


def test_every_batch_size_of_the_range_is_drawn():
    keys = jax.random.split(KEY, 2000)
    config = replace(PLAIN, trajectories=20, least_trajectories=12)
    drawn = np.asarray(jax.vmap(lambda key: draw_batch(config, key))(keys))
    assert np.unique(drawn).tolist() == list(range(12, 21))
    assert np.bincount(drawn)[12:].min() > 2000 / 9 * 0.7
    fixed = jax.vmap(lambda key: draw_batch(replace(config, least_trajectories=0), key))(keys)
    assert np.unique(fixed).tolist() == [20]


def test_the_batch_size_is_part_of_the_download():
    algorithm, server, agent = started(replace(PLAIN, trajectories=20, least_trajectories=12))
    batches = set()
    for seed in range(20):
        uploads = uploads_of(algorithm, [agent] * 3)
        after, metrics = algorithm.merge(server, uploads, jnp.ones(3, bool), jax.random.key(seed))
        assert int(metrics["batch"]) == int(server.batch)  # the one the gradients were measured with
        assert int(algorithm.download(after).batch) == int(after.batch)
        assert int(algorithm.receive(agent, algorithm.download(after)).batch) == int(after.batch)
        batches.add(int(after.batch))
    assert len(batches) > 4 and batches <= set(range(12, 21))


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="at most --trajectories, which is 2"):
        replace(PLAIN, least_trajectories=3)
    with pytest.raises(ConfigError, match="fedpg-br withstands at most 4 Byzantine agents of 10, but 5 are assumed"):
        make(replace(PLAIN, suspected=0.5), SPEC, 10)
    make(replace(PLAIN, suspected=0.4), SPEC, 10)


def test_other_rules_take_the_place_of_the_filter():
    for name, mu in (("median", -0.25), ("trimmed-mean", -0.25)):
        algorithm, server, agent = started(PLAIN)
        algorithm = robust(algorithm, name, 3, 1)
        after, _ = merged(algorithm, server, three_agents(algorithm, agent))
        np.testing.assert_allclose(b_of(algorithm, after.mu), mu * ASIDE, atol=1e-6)


def test_the_published_settings():
    _, config = resolve({"env": "CartPole-v1", "algorithm": "fedpg_br", "preset": "paper"}, {})
    published = {
        "gamma": 0.999, "hidden": (16, 16), "activation": "relu", "stepsize": 1e-3, "stepsize_decay": 1.0,
        "least_trajectories": 12, "trajectories": 20, "server_trajectories": 4, "sigma": 0.06, "delta": 0.6,
        "suspected": 0.4,
    }  # fmt: skip
    assert {name: getattr(config, name) for name in published} == published


@pytest.mark.slow
def test_cartpole_within_1200_trajectories_per_agent():
    settings, config = resolve({"env": "CartPole-v1", "algorithm": "fedpg_br"}, {})
    env = envs.make("CartPole-v1")
    algorithm = algorithms.make("fedpg_br", config, env.spec, settings.agents)
    for seed in range(3):
        engine = make_engine("inprocess", algorithm, env, settings.agents, seed)
        state, best = engine.start(), 0.0
        for number in range(1, 1200 // config.trajectories + 1):
            state, log = engine.round(state, number)
            best = max(best, log.returns.mean())
            if best >= 475:
                break
        assert best >= 475


def test_segments_of_agents_and_server():
    """As many steps as asked for; the server's segments are as long, and go on from refinement to refinement."""
    env = envs.make("Hopper-v5")
    config = Config(trajectories=2, env_steps=90, server_trajectories=3, server_steps=3, value_updates=2, hidden=(8,))
    algorithm = make(config, env.spec, 2)
    assert (algorithm.plan.segment, algorithm.plan.server_episodes) == (45, 3)

    server = algorithm.init(KEY)
    block = jax.tree.map(lambda x: x[None], algorithm.actor(server))
    sample = make_server_sampler(env, algorithm)
    first, second = (sample(block, KEY[None], jnp.zeros(1, int), jnp.int32(step)) for step in range(2))
    assert first.live.shape == second.live.shape == (1, 45, 3)
    on = ~first.terminated[0, -1]
    assert on.any()
    np.testing.assert_array_equal(first.last_obs[0, on], second.obs[0, 0, on])

    # where a segment is cut, the value of the last state counts
    batch = jax.tree.map(lambda x: jnp.asarray(x[0]), first)
    server = server._replace(theta_0=0.5 * server.theta)
    refined = algorithm.refine(server, batch, KEY)[0].theta
    worth = server._replace(critic=server.critic._replace(returns=Statistics(*map(jnp.float32, (10.0, 50.0, 10.0)))))
    assert not np.allclose(refined, algorithm.refine(worth, batch, KEY)[0].theta)

    engine = make_engine("inprocess", algorithm, env, 2, seed=0)
    state, log = engine.round(engine.start(), 1)
    assert log.lengths.sum() == 2 * 2 * 45
    assert np.isfinite(state.server.theta).all()


@pytest.mark.parametrize("wrong", [{"baseline": "time"}, {"weights": "trajectory"}])
def test_segments_need_values_and_weights_of_one_step(wrong):
    with pytest.raises(ConfigError, match="^--env-steps cuts episodes into segments, which need --baseline value and"):
        Config(env_steps=100, **wrong)
