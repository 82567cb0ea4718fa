import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from mfpo import algorithms
from mfpo.algorithms import fedavg_ppo, fedpg_br, mfpo
from mfpo.federation import make_engine
from mfpo.hosted import episode_sampler, segment_sampler
from mfpo.learning import acting, images, normalisation
from mfpo.learning.critic import value
from mfpo.learning.normalisation import deviation
from mfpo.learning.policies import distributions, make_policy
from mfpo.types import TIME_BLOCK, Compiled, Discrete, EnvSpec, HostedEnv, Outcome

SPEC = EnvSpec("film", (4, 84, 84), Discrete(3), horizon=40, stack=4)


def convolution(x, w, s):
    """XLA's own, with our weights [2, 2, s, s, channels, filters] as filters of 2s×2s pixels."""
    w = w.transpose(0, 2, 1, 3, 4, 5).reshape(2 * s, 2 * s, *w.shape[-2:])
    return jax.lax.conv_general_dilated(x[None], w, (s, s), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))[0]


def test_the_trunk_is_two_convolutions_and_a_layer():
    key = jax.random.key(0)
    trunk = images.init_trunk(key, (4, 84, 84))
    trunk = jax.tree.map(lambda x: x + 0.01 * jax.random.normal(key, x.shape), trunk)  # biases too
    obs = jax.random.randint(key, (4, 84, 84), 0, 256).astype(jnp.uint8)
    x = jnp.moveaxis(obs, 0, -1).astype(jnp.float32)
    x = (x - x.mean()) / (x.std() + 1)
    first = jnp.moveaxis(trunk.first.w.reshape(2, 2, 4, 4, 4, 16), 2, 4)  # frames come before the pixels of a block
    x = jax.nn.relu(convolution(x, first, 4) + trunk.first.b)
    x = jax.nn.relu(convolution(x, trunk.second.w.reshape(2, 2, 2, 2, 16, 32), 2) + trunk.second.b)
    assert x.shape == (9, 9, 32)
    x = x.ravel() @ trunk.dense.w + trunk.dense.b
    x = jax.nn.relu((x - x.mean()) / x.std())
    expected = (x - x.mean()) / x.std()
    np.testing.assert_allclose(images.see(trunk, images.arrange(obs)), expected, rtol=1e-4, atol=1e-4)


def test_weights_do_not_learn_by_what_all_images_have_in_common():
    """Of six equal images they learn nothing, biases do; of six different ones they learn."""
    trunk = images.init_trunk(jax.random.key(0), (4, 84, 84))
    frames = jax.random.randint(jax.random.key(1), (6, 4, 84, 84), 0, 256).astype(jnp.uint8)
    wanted = jax.random.normal(jax.random.key(2), (6, images.UNITS))

    def gradient(frames):
        return jax.grad(lambda trunk: jnp.sum(images.see(trunk, images.arrange(frames)) * wanted))(trunk)

    for same, other in zip(gradient(jnp.broadcast_to(frames[:1], frames.shape)), gradient(frames), strict=True):
        size = float(jnp.linalg.norm(other.w))
        assert size > 1 and float(jnp.linalg.norm(same.b)) > 1
        if same.w.ndim == 2:  # a convolution has many rows of one image, which differ
            assert float(jnp.linalg.norm(same.w)) < 1e-3 * size


def test_a_policy_on_frames_shares_its_trunk():
    head = make_policy(SPEC._replace(observation_shape=(images.UNITS,)), (), "relu", 1.0, "tanh")
    policy = images.on_frames(head, SPEC.observation_shape)
    network = policy.unravel(policy.init(jax.random.key(1)))
    obs = images.arrange(jax.random.randint(jax.random.key(2), (2, 3, 4, 84, 84), 0, 256).astype(jnp.uint8))
    features = policy.features(network, obs)
    assert features.shape == (2, 3, 256)
    logits = distributions(policy, network, obs)
    assert logits.shape == (2, 3, SPEC.action.n)
    one = head.distribution(network.head, policy.features(network, obs[1, 2]))
    np.testing.assert_allclose(logits[1, 2], one, rtol=1e-3, atol=1e-5)


class Films:
    """Frames that tell the copy and its age; an episode ends after a length that its seed decides."""

    def __init__(self, n):
        self.rng, self.age, self.end, self.n = {}, np.zeros(n, int), np.zeros(n, int), n

    def show(self, which):
        frame = np.zeros((len(which), 84, 84), np.uint8)
        frame[:, 0, 0], frame[:, 5, 7] = 1 + self.age[which], 1 + which
        return frame

    def reset(self, which, seeds):
        for row, i in enumerate(which):
            if seeds is not None:
                self.rng[i] = np.random.default_rng(int(seeds[row]))
            self.age[i], self.end[i] = 0, self.rng[i].integers(2, 60)
        return self.show(which)

    def step(self, which, action):
        self.age[which] += 1
        done = self.age[which] >= self.end[which]
        return Outcome(self.show(which), np.ones(len(which), np.float32), done, np.zeros(len(which), bool))

    def close(self):
        pass


FILM = HostedEnv(SPEC, None, lambda worlds, **_: Films(len(worlds)))


def filmed(films):
    """As a program steps them, which calls the host for it."""
    everyone = np.arange(films.n)

    def on_the_host(action):
        shown, reward, ended, truncated, _ = films.step(everyone, np.asarray(action))
        shown[ended] = films.reset(everyone[ended], None)
        return shown, reward, ended, truncated, np.full(films.n, np.nan, np.float32)

    def step(state, action):
        kinds = np.float32, np.bool_, np.bool_, np.float32
        result = [np.zeros((films.n, 84, 84), np.uint8), *(np.zeros(films.n, kind) for kind in kinds)]
        return state, Outcome(*io_callback(on_the_host, tuple(result), action, ordered=True))

    return Compiled(step, enter=lambda: (), leave=lambda state: None)


def look(actor, obs, key):
    """Remembers what it saw, so that it can be compared with what is rebuilt."""
    return jnp.int32(0), jnp.stack([obs[:, 0, 0], obs[:, 5, 7]])


def look_at_ready(actor, obs, key):
    return look(actor, jnp.moveaxis(obs, -1, 0), key)


SAMPLERS = {
    "episodes": episode_sampler(FILM, look, 2, 3),
    "segments": segment_sampler(FILM, look, 2, 3, TIME_BLOCK),
    "segments in one program": segment_sampler(
        FILM._replace(spec=SPEC._replace(horizon=1000), compiled=filmed),
        look_at_ready,
        2,
        3,
        TIME_BLOCK,
        ready=lambda actor, frame: frame[..., None],
    ),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_stacks_are_rebuilt_from_frames_that_are_stored_once(kind):
    """Starts, ends, truncations within a segment (after 40 steps) and the seam between two segments included."""
    sampler = SAMPLERS[kind]
    keys = jax.random.split(jax.random.key(0), 2)
    ends = 0
    for step in range(4):
        run = sampler(jnp.zeros(2), keys, jnp.arange(2), step)
        assert run.obs.shape == (2, TIME_BLOCK + 3, 3, 84, 84) and run.obs.dtype == np.uint8
        ends += run.terminated.sum() + run.truncated[:, :-1].sum()
        for agent in range(2):
            batch = jax.tree.map(lambda x, agent=agent: jnp.asarray(x[agent]), run)
            obs = jnp.stack(images.lagged(batch, 4), axis=2)
            rebuilt = np.stack([obs[..., 0, 0], obs[..., 5, 7]], axis=2)
            live = run.live[agent]
            assert np.array_equal(rebuilt[live], run.action[agent][live])
            assert live.any() and (rebuilt[live] == 0).any()
            statistics = normalisation.observe(normalisation.start(SPEC, True), batch)
            assert np.array_equal(acting.seen(SPEC, statistics, batch), acting.perceive(statistics, obs))
    assert ends > 10


SMALL = SPEC._replace(observation_shape=(4, 44, 44))


@pytest.mark.parametrize("name", algorithms.list_algorithms())
def test_frames_that_are_made_ready_one_by_one_are_acted_on_as_stacks_are(name):
    algorithm = algorithms.make(name, algorithms.config_class(name)(hidden=(8,)), SMALL, 1)
    actor = algorithm.actor(algorithm.init(jax.random.key(0)))
    statistics = normalisation.Statistics(jnp.float32(9.0), *jax.random.uniform(jax.random.key(1), (2, 44, 44)) * 200)
    actor = actor._replace(obs=statistics)
    stacks = jax.random.randint(jax.random.key(2), (40, *SMALL.observation_shape), 0, 256).astype(jnp.uint8)
    stacks = stacks.at[:20, :2].set(0)  # the first frames of an episode
    parts = jax.vmap(jax.vmap(algorithm.ready, (None, 0)), (None, 0))(actor, stacks)
    assert not parts[:20, :2].any() and parts[:20, 2:].any()
    joined = jnp.concatenate(list(jnp.moveaxis(parts, 1, 0)), axis=-1)
    act = jax.vmap(algorithm.act, (None, 0, 0))
    keys = jax.random.split(jax.random.key(3), 40)
    (action, aux), (same_action, same_aux) = act(actor, stacks, keys), act(actor, joined, keys)
    assert np.array_equal(action, same_action) and np.array_equal(aux, same_aux)
    assert len(np.unique(action)) > 1


class Signs(Films):
    """A bright square shows which of three actions is worth 1 in this step; the others are worth nothing."""

    def show(self, which):
        frame = np.zeros((len(which), *SMALL.observation_shape[1:]), np.uint8)
        for row, i in enumerate(which):
            self.age[i] = self.rng[i].integers(3)
            frame[row, 16:26, 14 * self.age[i] : 14 * self.age[i] + 10] = 200
        return frame

    def step(self, which, action):
        right = (action == self.age[which]).astype(np.float32)
        never = np.zeros(len(which), bool)
        return Outcome(self.show(which), right, never, never)


SIGNS = HostedEnv(SMALL, None, lambda worlds, **_: Signs(len(worlds)))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("mfpo", {"step": "adam", "adam_beta1": 0.0, "adam_beta2": 0.99, "local_steps": 20}),
        ("fedavg_ppo", {"epochs": 3, "minibatch": 50, "local_steps": 5}),
    ],
)
def test_agents_learn_together_to_act_on_what_they_see(name, values):
    shared = {"trajectories": 2, "env_steps": 100, "gamma": 0.01, "entropy": 0.01, "hidden": (), "value_hidden": ()}
    config = algorithms.config_class(name)(**shared, **values, stepsize=5e-4, stepsize_decay=1.0, value_updates=5)
    engine = make_engine("inprocess", algorithms.make(name, config, SMALL, 2), SIGNS, 2, seed=0)
    state, returns = engine.start(), []
    for number in range(1, 4):
        state, log = engine.round(state, number)
        returns.append(np.nanmean(log.returns[-1]))
    assert returns[-1] > 0.9 * SMALL.horizon


@pytest.mark.parametrize(
    ("method", "values", "steps"),
    [
        (mfpo, {"step": "adam", "adam_beta1": 0.0}, 5),
        (fedavg_ppo, {"epochs": 2, "minibatch": 50}, 2),
    ],
)
def test_the_error_of_the_value_shapes_the_trunk(method, values, steps):
    shared = {"trajectories": 2, "env_steps": 100, "hidden": (), "value_hidden": (), "value_updates": 1}

    def trained(weight):
        """Agents on the way to know that only the middle place is worth anything; the error of the last one's value."""
        algorithm = method.make(method.Config(**shared, **values, stepsize=1e-3, value_weight=weight), SMALL, 1)
        server = algorithm.init(jax.random.key(1))
        agents = [algorithm.receive(algorithm.join(jax.random.key(0)), algorithm.download(server))]
        actors = jax.tree.map(lambda x: x[None], algorithm.actor(agents[0]))
        run = segment_sampler(SIGNS, algorithm.act, 1, 2, TIME_BLOCK)(actors, jax.random.key(3)[None], jnp.arange(1), 0)
        batch = jax.tree.map(lambda x: x[0], run)
        target = 3.0 * (batch.obs[3:, :, 20, 20] > 0)
        learn, batch = jax.jit(algorithm.learn), batch._replace(reward=target, terminated=batch.live)
        for i in range(steps):
            agents.append(learn(agents[-1], batch, jax.random.key(i))[0])
        features = images.see(algorithm.actor(agents[-1]).network.trunk, acting.seen(SMALL, agents[-1].obs, batch))
        error = jnp.mean((value(agents[-1].critic.critic, features, "tanh") - target) ** 2)
        return agents, float(error)

    (_, shaped, *_), error = trained(1.0)
    (_, plain, *_), error_without = trained(0.0)
    assert error < 0.7 * error_without
    assert not np.array_equal(shaped.theta, plain.theta)


def test_the_error_of_the_value_is_part_of_the_gradient_of_fedpg_br():
    shared = {"trajectories": 2, "server_trajectories": 2, "env_steps": 100, "hidden": (), "value_hidden": ()}

    def measured(weight):
        """An agent with its gradient, and its batch."""
        config = fedpg_br.Config(**shared, value_updates=1, value_weight=weight, normalise_advantages=False)
        algorithm = fedpg_br.make(config, SMALL, 1)
        agent = algorithm.receive(
            algorithm.join(jax.random.key(0)), algorithm.download(algorithm.init(jax.random.key(1)))
        )
        actors = jax.tree.map(lambda x: x[None], algorithm.actor(agent))
        run = segment_sampler(SIGNS, algorithm.act, 1, 2, TIME_BLOCK)(actors, jax.random.key(3)[None], jnp.arange(1), 0)
        batch = jax.tree.map(lambda x: jnp.asarray(x[0]), run)
        batch = batch._replace(terminated=batch.live, truncated=batch.live & False)
        return algorithm, jax.jit(algorithm.learn)(agent, batch, jax.random.key(0))[0], batch

    algorithm, with_it, batch = measured(1.0)
    critic, obs = with_it.critic.critic, acting.seen(SMALL, with_it.obs, batch)

    def error(theta):
        """Half of the mean square over the steps, in the critic's units."""
        trunk = algorithm.actor(with_it._replace(theta=theta)).network.trunk
        off = (value(critic, images.see(trunk, obs), "tanh") - batch.reward) / deviation(critic.returns)
        return jnp.sum(off**2, where=batch.live) / batch.live.sum() / 2

    expected = jax.grad(error)(with_it.theta)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(with_it.g - measured(0.0)[1].g, expected, rtol=1e-3, atol=1e-5)
    # where mu was measured the server adds nothing to it, which is zero here
    moved, _ = jax.jit(algorithm.refine)(algorithm.init(jax.random.key(1)), batch, jax.random.key(0))
    np.testing.assert_allclose(moved.step.mean, 0.0, atol=1e-6)
