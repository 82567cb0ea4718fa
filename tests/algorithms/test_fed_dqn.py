"""Fed-DQN against numbers computed by hand: a table in place of the network, or a network that is only its bias."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo.algorithms.fed_dqn import Config, grid_of, huber, make, q_loss, worth
from mfpo.errors import ConfigError
from mfpo.learning.nets import Layer
from mfpo.learning.replay import Transitions
from mfpo.types import TIME_BLOCK, Algorithm, Box, Discrete, EnvSpec, MultiDiscrete, PyTree, Trajectories

KEY = jax.random.key(0)
BANDIT = EnvSpec("bandit", (1,), Discrete(2), 1)
SEVERAL = EnvSpec("several", (1,), MultiDiscrete((2, 3)), 5)
BOX = EnvSpec("box", (1,), Box((-2.0, 0.0), (2.0, 1.0)), 5)


def test_huber_is_a_parabola_and_then_a_line() -> None:
    errors = jnp.array([0.0, 0.5, -1.0, 3.0, -4.0])
    np.testing.assert_allclose(huber(errors, 1.0), [0, 0.125, 0.5, 2.5, 3.5])
    np.testing.assert_allclose(huber(errors, 2.0), [0, 0.125, 0.5, 4, 6])
    np.testing.assert_allclose(huber(errors, np.inf), [0, 0.125, 0.5, 4.5, 8])
    np.testing.assert_allclose(jax.vmap(jax.grad(huber), (0, None))(errors, 2.0), [0, 0.5, -1, 2, -2])


def loss_of(theta: list[Any], target: list[Any], **step: Any) -> tuple[float, np.ndarray]:
    """The loss of one step from state 0 to state 1 and its gradient; theta and target are tables [state, i, j]."""
    values = {"action": [0], "reward": 0.0, "discount": 0.5} | step
    batch = Transitions(
        obs=jnp.zeros((1, 1)),
        action=jnp.array([values["action"]]),
        reward=jnp.array([values["reward"]]),
        after=jnp.ones((1, 1)),
        discount=jnp.array([values["discount"]]),
    )

    def rate(table: jax.Array, obs: jax.Array) -> jax.Array:
        return table[obs[:, 0].astype(int)]

    of_theta = jax.value_and_grad(q_loss, argnums=2, has_aux=True)
    (loss, _), g = of_theta(rate, 1.0, jnp.array(theta), jnp.array(target), batch, KEY)
    return float(loss), np.asarray(g)


def test_the_network_chooses_and_the_target_judges() -> None:
    """The best of theta is action 0, which the target gives 10; the best of the target would be worth 20."""
    theta, target = [[[7.0, 2.0]], [[3.0, 1.0]]], [[[0.0, 0.0]], [[10.0, 20.0]]]
    loss, g = loss_of(theta, target, action=[1], reward=1.0)
    assert loss == pytest.approx(huber(jnp.float32(2.0 - (1 + 0.5 * 10)), 1.0))
    assert np.array_equal(g, [[[0, -1]], [[0, 0]]])  # nothing flows into what was chosen, nor into other actions


def test_a_terminated_episode_is_worth_its_reward() -> None:
    theta, target = [[[7.0, 2.0]], [[3.0, 1.0]]], [[[0.0, 0.0]], [[10.0, 20.0]]]
    loss, g = loss_of(theta, target, action=[1], reward=1.5, discount=0.0)
    assert loss == pytest.approx(0.125)
    np.testing.assert_allclose(g, [[[0, 0.5]], [[0, 0]]])


def test_several_indices_share_the_error_of_their_mean() -> None:
    theta = [[[1.0, 2.0], [4.0, 3.0]], [[0.0, 9.0], [9.0, 0.0]]]
    target = [[[0.0, 0.0], [0.0, 0.0]], [[100.0, 2.0], [6.0, 100.0]]]
    loss, g = loss_of(theta, target, action=[1, 0], reward=0.5)
    assert worth(jnp.array(theta[0]), jnp.array([1, 0])) == 3.0
    assert loss == pytest.approx(0.125)  # Q = (2 + 4) / 2; y = 0.5 + 0.5 (2 + 6) / 2 = 2.5
    np.testing.assert_allclose(g, [[[0, 0.25], [0.25, 0]], [[0, 0], [0, 0]]])


def biased(algorithm: Algorithm, bias: list[float]) -> PyTree:
    """The actor of a network without hidden layers that rates actions by its bias alone, and never explores."""
    actor = algorithm.actor(algorithm.init(KEY))
    last = actor.network.q[-1]
    layer = Layer(jnp.zeros_like(last.w), jnp.array(bias))
    return actor._replace(network=actor.network._replace(q=(layer,)), epsilon=jnp.float32(0.0))


def test_discrete_actions_are_one_index() -> None:
    algorithm = make(Config(hidden=()), BANDIT, 1)
    action, index = algorithm.act(biased(algorithm, [1.0, 2.0]), jnp.zeros(1), KEY)
    assert (action.shape, index.shape) == ((), (1,)) and int(action) == int(index[0]) == 1


def test_an_index_that_does_not_exist_is_never_chosen() -> None:
    algorithm = make(Config(hidden=()), SEVERAL, 1)
    actor = biased(algorithm, [1.0, 2.0, 1e6, 3.0, 4.0, 5.0])  # the third of the first index does not exist
    assert algorithm.greedy(actor, jnp.zeros(1)).tolist() == [1, 2]
    draw = jax.vmap(algorithm.act, (None, None, 0))
    random, _ = draw(actor._replace(epsilon=jnp.float32(1.0)), jnp.zeros(1), jax.random.split(KEY, 400))
    assert {tuple(row) for row in random.tolist()} == {(i, j) for i in range(2) for j in range(3)}


def test_a_box_becomes_a_grid_with_its_bounds_on_it() -> None:
    grid = grid_of(BOX, bins=5)
    assert grid.sizes == (5, 5) and grid.exists.all()
    found = jax.vmap(grid.action)(jnp.array([[i, i] for i in range(5)]))
    np.testing.assert_allclose(found, [[-2, 0], [-1, 0.25], [0, 0.5], [1, 0.75], [2, 1]])
    algorithm = make(Config(hidden=(), bins=3), BOX, 1)
    action, index = algorithm.act(biased(algorithm, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]), jnp.zeros(1), KEY)
    assert action.tolist() == [2.0, 0.0] and index.tolist() == [2, 0]


def test_actions_without_bounds_are_refused() -> None:
    spec = BOX._replace(action=Box((-1.0, -float("inf")), (1.0, float("inf"))))
    with pytest.raises(ConfigError, match="between bounds, but those of box have none"):
        make(Config(), spec, 1)


def test_exploration_falls_with_the_steps_and_then_stays() -> None:
    algorithm = make(Config(hidden=(), epsilon=0.1, epsilon_steps=1000), BANDIT, 1)
    server = algorithm.init(KEY)
    found = [float(algorithm.actor(server._replace(steps=jnp.float32(n))).epsilon) for n in (0, 500, 1000, 9999)]
    assert found == pytest.approx([1.0, 0.55, 0.1, 0.1])
    actor = biased(algorithm, [0.0, 1.0])._replace(epsilon=jnp.float32(0.4))
    _, index = jax.vmap(algorithm.act, (None, None, 0))(actor, jnp.zeros(1), jax.random.split(KEY, 4000))
    assert float(jnp.mean(index == 0)) == pytest.approx(0.2, abs=0.03)  # half of what is random


def one_step(action: int, reward: float, terminated: bool) -> Trajectories:
    """Two columns with one step each, the same; all observations are zero, so that Q is the bias."""
    live = jnp.broadcast_to(jnp.arange(TIME_BLOCK)[:, None] == 0, (TIME_BLOCK, 2))
    none = jnp.zeros_like(live)
    ends = (live, none) if terminated else (none, live)
    obs = jnp.zeros((TIME_BLOCK, 2, 1))
    index = jnp.where(live, action, 0)[..., None]
    rewards = jnp.where(live, reward, 0.0)
    return Trajectories(obs, index, rewards, live, *ends, obs[0], jnp.int32(1), rewards.sum(0))


@pytest.mark.parametrize(("terminated", "worth"), [(True, [0.0, 1.0]), (False, [0.0, 2.0])])
def test_a_truncated_step_goes_on_and_a_terminated_one_does_not(terminated: bool, worth: list[float]) -> None:
    """With γ = 1/2 a reward of 1 again and again is worth 2, once it is worth 1; the other action is unheard of."""
    c = Config(
        hidden=(),
        gamma=0.5,
        warmup=0,
        updates_per_step=150.0,
        samples=4,
        stepsize=0.02,
        target_rate=0.2,
        capacity=8,
        normalise_observations=False,
    )
    algorithm = make(c, BANDIT, 1)
    server = algorithm.init(KEY)
    agent = algorithm.receive(algorithm.join(KEY), server._replace(theta=jnp.zeros_like(server.theta)))
    agent, metrics = jax.jit(algorithm.learn)(agent, one_step(1, 1.0, terminated), KEY)
    np.testing.assert_allclose(algorithm.actor(agent).network.q[-1].b, worth, atol=0.02)
    assert float(metrics["q_mean"]) == pytest.approx(worth[1], abs=0.02)
    upload = algorithm.upload(agent)
    # the replay and the rest stay where they are
    assert jax.tree.map(jnp.shape, upload) == (server.theta.shape, (), (), ())
