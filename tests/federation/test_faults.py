"""Agents that lie, vanish or come late, and the rules that withstand them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo import algorithms, envs
from mfpo.errors import ConfigError, Diverged
from mfpo.federation import ENGINES, Faults, make_engine, robust
from mfpo.federation.faults import OF_UPLOADS, as_acted, asked, attendance, check, make_lie, random_action, spoil
from mfpo.federation.round import Purpose, address
from mfpo.learning import aggregation
from mfpo.types import Algorithm, Array, Box, Discrete, EnvSpec, MultiDiscrete, Plan, Trajectories

AGENTS = 5
CARTPOLE = envs.make("CartPole-v1", 20)


class Message(NamedTuple):
    x: Any
    n: Any


class Side(NamedTuple):
    """Server and agent of the counting federation: an agent adds its number to what it was told."""

    x: Array
    learned: Array  # rounds it has worked
    n: Array


def counting(reward_counts: bool = False) -> Algorithm:
    """A federation whose numbers are known in advance; the number of an agent is its reward if that is to count."""

    def learn(agent: Side, batch: Trajectories, key: Any) -> tuple[Side, dict[str, Array]]:
        added = jnp.sum(batch.reward) if reward_counts else 1.0
        return agent._replace(x=agent.x + added, learned=agent.learned + 1), {"added": jnp.float32(added)}

    def merge(server: Side, uploads: Message, mask: Array, key: Any) -> tuple[Side, dict[str, Array]]:
        n = jnp.maximum(jnp.sum(mask), 1)
        mean = jnp.sum(jnp.where(mask[:, None], uploads.x, 0.0), axis=0) / n
        return server._replace(x=jnp.where(jnp.any(mask), mean, server.x)), {"drift": jnp.float32(1.0)}

    start = Side(jnp.zeros(3), jnp.int32(0), jnp.int32(7))
    return Algorithm(
        plan=Plan(1, 2),
        init=lambda key: start,
        join=lambda key: start,
        download=lambda server: Message(server.x, server.n),
        receive=lambda agent, download: agent._replace(x=download.x, n=download.n),
        actor=lambda side: side.x,
        act=lambda params, obs, key: (jnp.int32(0), jnp.int32(0)),
        greedy=lambda params, obs: jnp.int32(0),
        learn=learn,
        upload=lambda agent: Message(agent.x, agent.n),
        merge=merge,
    )


def play(algorithm: Algorithm, faults: Faults, rounds: int = 1, engine: str = "inprocess", agents: int = AGENTS) -> Any:
    runner = make_engine(engine, algorithm, CARTPOLE, agents, 0, 1, faults)
    state, logs = runner.start(), []
    for number in range(1, rounds + 1):
        state, log = runner.round(state, number)
        logs.append(log)
    return state, logs


def server_of(rule: str, faults: Faults, rounds: int = 1, **options: Any) -> Any:
    algorithm = robust(counting(**options), rule, AGENTS, faults.byzantine)
    return play(algorithm, faults, rounds)[0].server.x


@pytest.mark.parametrize(
    ("attack", "expected"),
    [("zero", 3 / 5), ("sign-flip", (3 - 2 * 4) / 5), ("nan", 1.0), ("inf", 1.0), ("stale", 3 / 5)],
)
def test_the_mean_of_a_round_with_two_liars(attack: str, expected: float) -> None:
    """Three of five add 1 to every entry of zero; a lie that is not finite is refused."""
    np.testing.assert_allclose(server_of("own", Faults(2, attack, 4.0)), expected, rtol=1e-5)


def test_a_stale_agent_sends_what_it_sent_in_the_round_before() -> None:
    state, _ = play(counting(), Faults(AGENTS, "stale"), rounds=3)
    # told 0, 0, 1: sent 0 (nothing learned), then 1 (learned in round 1), then 1 (learned in round 2)
    np.testing.assert_allclose(state.server.x, 1.0)


def test_noise_has_the_asked_length_and_an_offset_is_shared() -> None:
    upload, untaught = Message(jnp.array([3.0, 5.0]), jnp.int32(1)), Message(jnp.array([0.0, 1.0]), jnp.int32(1))
    keys, shared = jax.random.split(jax.random.key(1)), jax.random.key(2)
    sent = {
        a: [make_lie(a, 2.0)(upload, untaught, upload, k, shared) for k in keys] for a in ("random-noise", "offset")
    }
    for lies in sent.values():
        for lie in lies:
            np.testing.assert_allclose(np.linalg.norm(lie.x - untaught.x), 2.0 * 5.0, rtol=1e-5)
            assert lie.n == 1  # whole numbers stay
    assert np.array_equal(sent["offset"][0].x, sent["offset"][1].x)
    assert not np.allclose(sent["random-noise"][0].x, sent["random-noise"][1].x)


@pytest.mark.parametrize("rule", [rule for rule in aggregation.RULES if rule != "mean"])
@pytest.mark.parametrize("attack", OF_UPLOADS)
def test_every_rule_withstands_every_lie(rule: str, attack: str) -> None:
    """Honest agents all send 1, so whatever the other sends, 1 is what a robust rule makes of it."""
    algorithm, key = robust(counting(), rule, AGENTS, 1), jax.random.key(0)
    honest, untaught = Message(jnp.ones(3), jnp.int32(7)), Message(jnp.zeros(3), jnp.int32(7))
    lie = make_lie(attack, 50.0)(honest, untaught, untaught, key, key)
    uploads = jax.tree.map(lambda x, y: jnp.stack([x, *[y] * (AGENTS - 1)]), lie, honest)
    server, metrics = algorithm.merge(algorithm.init(key), uploads, jnp.ones(AGENTS, bool), key)
    np.testing.assert_allclose(server.x, 1.0, atol=1e-3)
    assert metrics["rejected"] == (attack in ("nan", "inf"))


def test_flipped_and_shuffled_rewards() -> None:
    """A step of CartPole is worth 1."""
    honest = server_of("own", Faults(), reward_counts=True)
    flipped = server_of("own", Faults(AGENTS, "reward-flip"), reward_counts=True)
    assert np.all(honest > 0) and np.array_equal(flipped, -honest)
    assert np.array_equal(server_of("own", Faults(AGENTS, "reward-shuffle"), reward_counts=True), honest)
    live = np.array([[True, True], [True, False], [False, True]])
    reward = np.where(live, [[1.0, 2.0], [3.0, 0.0], [0.0, 4.0]], 0.0)
    batch: Any = Trajectories(*[jnp.zeros(0)] * 9)._replace(live=jnp.array(live), reward=jnp.array(reward))
    orders = {tuple(np.asarray(spoil("reward-shuffle", batch, jax.random.key(i)).reward)[live]) for i in range(40)}
    assert all(sorted(order) == [1, 2, 3, 4] for order in orders) and len(orders) > 10
    assert all(not np.asarray(spoil("reward-shuffle", batch, jax.random.key(i)).reward)[~live].any() for i in range(5))


def test_acting_at_random_changes_what_happens_not_what_is_remembered() -> None:
    """Always pushing to the left ends an episode of CartPole early; pushing at random does not."""
    steady, _ = play(counting(reward_counts=True), Faults())
    shaken, logs = play(counting(reward_counts=True), Faults(2, "random-action"))
    lengths = logs[0].lengths[0]
    assert lengths[2:].max() <= 11 and lengths[:2].max() > 11
    assert steady.server.x[0] < shaken.server.x[0]


def test_who_acts_at_random_makes_frames_ready_as_before() -> None:
    spec, faults = EnvSpec("E", (4, 8, 8), Discrete(4), 10, stack=4), Faults(1, "random-action")
    watching = counting()._replace(ready=lambda params, frame: params + frame)
    ready = as_acted(watching, spec, faults).ready
    assert ready is not None and ready((jnp.float32(3.0), jnp.bool_(True)), jnp.float32(4.0)) == 7
    assert as_acted(counting(), spec, faults).ready is None


@pytest.mark.parametrize(
    "action", [Discrete(4), MultiDiscrete((2, 5)), Box((-1.0, 0.0), (1.0, np.inf))], ids=lambda a: type(a).__name__
)
def test_random_actions_are_inside_their_space_and_all_over_it(action: Any) -> None:
    spec = EnvSpec("E", (1,), action, 10)
    drawn = np.array([random_action(spec, jax.random.key(i)) for i in range(60)])
    if isinstance(action, Box):
        assert drawn[:, 0].min() < -0.8 and drawn[:, 0].max() > 0.8 and np.abs(drawn[:, 0]).max() <= 1
        assert (drawn[:, 1] >= 0).all() and len(np.unique(drawn[:, 1])) > 10
    else:
        for column, n in zip(drawn.reshape(60, -1).T, np.atleast_1d(action.n), strict=True):
            assert set(column) == set(range(n))


def test_who_attends() -> None:
    drawn = [
        attendance(Faults(participation=0.5, dropout=0.4, stragglers=0.3), jax.random.key(i), 20) for i in range(300)
    ]
    works, answers = (np.array([np.asarray(x) for x in part]) for part in zip(*drawn, strict=True))
    assert not (answers & ~works).any()
    assert works.sum(axis=1).max() <= 10 and answers.any(axis=1).all()
    assert abs(works.mean() - 0.5 * 0.6) < 0.03 and abs(answers.mean() - 0.5 * 0.6 * 0.7) < 0.03
    rare = [attendance(Faults(dropout=0.99), jax.random.key(i), 3) for i in range(50)]
    assert all(int(a.answers.sum()) >= 1 for a in rare)


@pytest.mark.parametrize("engine", ENGINES)
def test_absent_agents_keep_their_state_and_are_not_counted(engine: str) -> None:
    faults = Faults(participation=0.6, dropout=0.3, stragglers=0.3)
    state, logs = play(counting(), faults, rounds=6, engine=engine)
    seed = jax.random.key(0)
    there = [attendance(faults, address(seed, Purpose.ATTEND, n), AGENTS) for n in range(1, 7)]
    assert np.array_equal(state.agents.learned, sum(np.asarray(a.works, int) for a in there))
    for log, a in zip(logs, there, strict=True):
        assert log.returns.shape[1] == log.lengths.shape[1] == log.learn["added"].shape[1] == a.works.sum()
        assert log.answered == a.answers.sum()
    np.testing.assert_allclose(state.server.x, 6.0)  # everyone who answered had heard the newest
    assert 0 < sum(int(a.answers.sum()) for a in there) < sum(int(a.works.sum()) for a in there) < 30


@pytest.mark.parametrize("attack", ["stale", "reward-shuffle", "random-action"])  # one of each kind
def test_the_engines_agree_on_every_attack(attack: str) -> None:
    faults = Faults(2, attack, participation=0.8, dropout=0.2)
    algorithm = robust(counting(reward_counts=True), "median", AGENTS, 2)
    (one, logs), (other, logs_) = (play(algorithm, faults, 2, engine) for engine in ENGINES)
    np.testing.assert_allclose(one.server.x, other.server.x, rtol=1e-6)
    for a, b in zip(logs, logs_, strict=True):
        assert np.array_equal(a.lengths, b.lengths) and a.merge.keys() == b.merge.keys()


def test_precision_and_recall_of_the_filter() -> None:
    algorithm = robust(counting(), "krum", AGENTS, 1)  # keeps one of five
    _, (log,) = play(algorithm, Faults(1, "sign-flip"))
    assert log.merge["kept"] == 1 and log.merge["filter_recall"] == 1 and log.merge["filter_precision"] == 1 / 4
    _, (log,) = play(robust(counting(), "fedpg-br", AGENTS, 2), Faults(2, "sign-flip"))
    assert log.merge["kept"] == 3 and log.merge["filter_recall"] == log.merge["filter_precision"] == 1
    _, (log,) = play(robust(counting(), "own", AGENTS, 0), Faults(2, "nan"))
    assert log.merge["rejected"] == 2 and log.merge["filter_recall"] == 1
    _, (log,) = play(robust(counting(), "own", AGENTS, 0), Faults())
    assert log.merge["rejected"] == 0 and log.merge["kept"] == AGENTS and "filter_recall" not in log.merge


def test_nobody_with_finite_numbers_is_divergence() -> None:
    with pytest.raises(Diverged, match="no agent sent finite numbers"):
        play(robust(counting(), "own", AGENTS, 0), Faults(AGENTS, "nan"))


@pytest.mark.parametrize(
    ("faults", "sentence"),
    [
        (Faults(6), "--byzantine is 6, but there are only 5 agents"),
        (Faults(participation=0.1), r"--participation 0.1 of 5 agents selects nobody; give at least 0.2"),
    ],
)
def test_faults_that_make_no_sense(faults: Faults, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(faults, AGENTS)
    assert asked(Faults(participation=0.2), AGENTS) == 1


def test_a_rule_that_cannot_withstand_so_many() -> None:
    with pytest.raises(ConfigError, match="krum withstands at most 3 Byzantine agents of 10, but 4"):
        robust(counting(), "krum", 10, 4)
    with pytest.raises(ConfigError, match="median cannot withstand a single liar among 2 agents"):
        robust(counting(), "median", 2, 0)
    with pytest.raises(ConfigError, match="With 4 of 10 agents asked in a round, the .* median withstands at most 1"):
        robust(counting(), "median", 10, 2, asked=4)
    assert robust(counting(), "median", 10, 1, asked=4)


def test_an_algorithm_that_chooses_for_itself_is_asked_how_many_it_withstands_and_can_be_overruled() -> None:
    def first_only(server: Side, uploads: Message, mask: Array, key: Any) -> tuple[Side, dict[str, Array]]:
        return server._replace(x=uploads.x[0]), {"kept": jnp.arange(AGENTS) == 0}

    algorithm = counting()._replace(merge=first_only, withstands=lambda n: (n - 1) // 2)
    told = Faults(2, "sign-flip", strength=4.0)  # liars send -4, the other three 1
    own, (log,) = play(robust(algorithm, "own", AGENTS, 2), told)
    assert own.server.x[0] == -4 and log.merge["kept"] == 1
    overruled, (log,) = play(robust(algorithm, "mean", AGENTS, 2), told)
    assert overruled.server.x[0] == pytest.approx(-1.0) and log.merge["kept"] == AGENTS
    with pytest.raises(ConfigError, match="own filter withstands at most 2 Byzantine agents of 5, but 3 are assumed"):
        robust(algorithm, "own", AGENTS, 3)
    assert algorithms.make("fedpg_br", algorithms.config_class("fedpg_br")(), CARTPOLE.spec, 10).withstands(10) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.list_algorithms())
def test_every_algorithm_can_be_attacked_and_merged_robustly(name: str) -> None:
    algorithm = algorithms.make(name, algorithms.config_class(name)(hidden=(4,)), CARTPOLE.spec, AGENTS)
    for attack in ("sign-flip", "nan", "stale"):
        state, logs = play(robust(algorithm, "trimmed-mean", AGENTS, 1), Faults(1, attack, dropout=0.2), rounds=2)
        assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(state.server))
        assert all(log.merge["rejected"] <= (attack == "nan") for log in logs)
