"""The contract of `types.Algorithm`, over every registered algorithm, environment and choice.

Nothing here knows a particular algorithm or steps an environment: batches are made up from the environment's spec.
"""

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfpo import algorithms, envs
from mfpo.config import field_types
from mfpo.errors import ConfigError
from mfpo.types import TIME_BLOCK, Algorithm, Array, Box, Discrete, EnvSpec, Key, PyTree, Trajectories

AGENTS = 4
SMALL = {  # quick to trace and to compile; each is used where an algorithm has a setting of that name
    "local_steps": 2,
    "trajectories": 3,
    "hidden": (6,),
    "value_hidden": (5,),
    "value_updates": 2,
    "value_samples": 16,
    "fisher_samples": 16,
    "cg_iterations": 3,
}

pytestmark = pytest.mark.xdist_group("contract")  # one worker, so that each case is compiled once


@functools.cache
def spec_of(env: str) -> EnvSpec:
    return envs.make(env).spec._replace(horizon=30)  # a short time axis is enough


@functools.cache
def kinds() -> list[str]:
    """An environment for every kind of action, and one with frames; an algorithm knows no other differences."""
    found: dict[Any, str] = {}
    for env in ("CartPole-v1", "Pendulum-v1", *envs.list_environments()):
        found.setdefault((type(spec_of(env).action), bool(spec_of(env).stack)), env)
    return list(found.values())


def small(name: str, **changes: Any) -> Any:
    cls = algorithms.config_class(name)
    known = {f.name for f in fields(cls)}
    return cls(**{key: value for key, value in SMALL.items() if key in known} | changes)


def variants(name: str) -> list[dict[str, Any]]:
    """Every other value of every choice and switch, one at a time or, where it must not stand alone, with another."""
    default = small(name)
    changes: list[dict[str, Any]] = []
    for f in fields(default):
        values = f.metadata["choices"] or ((True, False) if field_types(type(default))[f.name] is bool else ())
        changes += [{f.name: value} for value in values if value != getattr(default, f.name)]
    return [next(filter(functools.partial(makes_sense, name), [c, *({**o, **c} for o in changes)])) for c in changes]


def makes_sense(name: str, change: dict[str, Any]) -> bool:
    try:
        small(name, **change)
    except ConfigError:
        return False
    return True


def variant_cases() -> list[Any]:
    """The defaults everywhere; every choice once, with real actions, for which there is most to choose."""
    with_real_actions = next(env for env in kinds() if isinstance(spec_of(env).action, Box))
    cases = [(name, env, {}) for name in algorithms.list_algorithms() for env in kinds()]
    cases += [(name, with_real_actions, change) for name in algorithms.list_algorithms() for change in variants(name)]
    return [
        pytest.param(
            *case,
            id="-".join([*case[:2], *(f"{k}={v}" for k, v in case[2].items())]),
            marks=[pytest.mark.slow] if case[2] and case[0] != "mfpo" else [],
        )
        for case in cases
    ]


def acting(algorithm: Algorithm) -> Callable[..., tuple[Array, Array]]:
    """act for all columns and slots of all agents, compiled."""
    act = jax.vmap(jax.vmap(algorithm.act, (None, 0, 0)), (None, 0, 0))
    return jax.jit(jax.vmap(act))


def shown(spec: EnvSpec, numbers: np.ndarray) -> Array:
    """Observations of random numbers; of frames, only as many pixels as it takes to tell them apart are not black."""
    return jnp.asarray(numbers > 2, jnp.uint8) if spec.stack else jnp.asarray(numbers, jnp.float32)


def made_up_batches(d: int, spec: EnvSpec, act: Callable[..., tuple[Array, Array]], actors: PyTree) -> Trajectories:
    """For each agent d random episodes of different lengths; the first is truncated, the others terminate."""
    rng, horizon = np.random.default_rng(0), spec.horizon
    lengths = np.array([horizon, *(3 + 5 * i for i in range(d - 1))])
    h = np.arange(TIME_BLOCK)[:, None]
    live, ends = h < lengths, h == lengths - 1

    def for_all(x: np.ndarray) -> Array:
        return jnp.asarray(np.broadcast_to(x, (AGENTS, *x.shape)))

    def normal(*shape: int) -> Array:
        return jnp.asarray(rng.normal(size=(AGENTS, *shape)), jnp.float32)

    def seen(*shape: int) -> Array:
        return shown(spec, rng.normal(size=(AGENTS, *shape, *spec.observation_shape)))

    obs = seen(TIME_BLOCK, d)
    keys = jax.random.wrap_key_data(rng.integers(2**32, size=(AGENTS, TIME_BLOCK, d, 2), dtype=np.uint32))
    return Trajectories(
        obs=frames_of(obs, spec.stack),
        action=act(actors, obs, keys)[1],
        reward=normal(TIME_BLOCK, d) * live,
        live=for_all(live),
        terminated=for_all(ends & (lengths < horizon)),
        truncated=for_all(ends & (lengths == horizon)),
        last_obs=seen(d),
        length=for_all(lengths.max()),
        score=normal(d),
    )


def frames_of(obs: Array, stack: int) -> Array:
    """Observations [agents, H, D, ...] as a batch stores them: of stacks the first's earlier frames, and the newest."""
    if not stack:
        return obs
    return jnp.concatenate([jnp.swapaxes(obs[:, 0], 1, 2)[:, : stack - 1], obs[:, :, :, -1]], axis=1)


def layout(tree: PyTree) -> PyTree:
    """Structure, shapes and dtypes, to be compared."""
    return jax.tree.structure(tree), [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]


def without_agents(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree)


def assert_plain(tree: PyTree) -> None:
    """Arrays of ordinary numbers only: they can be saved and sent."""
    for x in jax.tree.leaves(tree):
        assert isinstance(x, jax.Array | jax.ShapeDtypeStruct), type(x)
        assert np.dtype(x.dtype).kind in "fiub", x.dtype  # a typed key has no NumPy dtype


@pytest.mark.parametrize(("name", "env", "change"), variant_cases())
def test_layouts_are_stable_for_every_choice(name: str, env: str, change: dict[str, Any]) -> None:
    spec = spec_of(env)
    algorithm = algorithms.make(name, small(name, **change), spec, AGENTS)
    key, keys = jax.random.key(0), jax.random.split(jax.random.key(1), AGENTS)

    server = jax.eval_shape(algorithm.init, key)
    agents = jax.eval_shape(jax.vmap(algorithm.join), keys)
    download = jax.eval_shape(algorithm.download, server)
    received = jax.eval_shape(jax.vmap(algorithm.receive, (0, None)), agents, download)
    assert layout(received) == layout(agents)

    actors = jax.eval_shape(jax.vmap(algorithm.actor), agents)
    actor = jax.eval_shape(algorithm.actor, server)
    assert layout(without_agents(actors)) == layout(actor)
    batches = jax.eval_shape(
        functools.partial(made_up_batches, algorithm.plan.episodes, spec, acting(algorithm)), actors
    )
    learned, metrics = jax.eval_shape(jax.vmap(algorithm.learn), agents, batches, keys)
    assert layout(learned) == layout(agents)
    assert {x.shape for x in metrics.values()} == {(AGENTS,)}

    uploads = jax.eval_shape(jax.vmap(algorithm.upload), agents)
    mask = jnp.ones(AGENTS, bool)
    merged, metrics = jax.eval_shape(algorithm.merge, server, uploads, mask, key)
    assert layout(merged) == layout(server)
    assert metrics.pop("kept", mask).shape == (AGENTS,)
    assert {x.shape for x in metrics.values()} <= {()}
    assert_plain((server, agents, download, uploads, actor))


class Case(NamedTuple):
    """A small federation at the end of its second round, before it is merged; each function is compiled once."""

    algorithm: Algorithm
    spec: EnvSpec
    server: PyTree
    agents: PyTree  # [N] as they are before they upload
    batches: Trajectories  # [N]
    keys: Key  # [N]
    join: Callable[..., PyTree]  # these five for all agents at once
    receive: Callable[..., PyTree]
    learn: Callable[..., tuple[PyTree, dict[str, Array]]]
    upload: Callable[..., PyTree]
    merge: Callable[..., tuple[PyTree, dict[str, Array]]]

    @property
    def uploads(self) -> PyTree:
        return self.upload(self.agents)

    def merged(self, uploads: PyTree, mask: list[bool]) -> tuple[PyTree, dict[str, Array]]:
        """The merged server, and its metrics; of those who were kept, their number."""
        server, metrics = self.merge(self.server, uploads, jnp.array(mask), jax.random.key(9))
        return server, metrics | ({"kept": jnp.sum(metrics["kept"])} if "kept" in metrics else {})


def pairs() -> list[Any]:
    """Every algorithm with every kind; what takes long to compile is slow: frames, and all kinds but the first."""
    slow = [
        (name, env)
        for name in algorithms.list_algorithms()
        for env in kinds()
        if spec_of(env).stack or (name != "mfpo" and isinstance(spec_of(env).action, Box))
    ]
    every = [(name, env) for name in algorithms.list_algorithms() for env in kinds()]
    return [pytest.param(pair, id="-".join(pair), marks=[pytest.mark.slow] if pair in slow else []) for pair in every]


@pytest.fixture(scope="module", params=pairs())
def case(request: pytest.FixtureRequest) -> Case:
    name, env = request.param
    spec = spec_of(env)
    algorithm = algorithms.make(name, small(name), spec, AGENTS)
    keys = jax.random.split(jax.random.key(3), AGENTS)
    join, upload = jax.jit(jax.vmap(algorithm.join)), jax.jit(jax.vmap(algorithm.upload))
    receive = jax.jit(jax.vmap(algorithm.receive, (0, None)))
    learn, merge = jax.jit(jax.vmap(algorithm.learn)), jax.jit(algorithm.merge)

    act, actors_of = acting(algorithm), jax.jit(jax.vmap(algorithm.actor))
    server, agents = jax.jit(algorithm.init)(jax.random.key(0)), join(keys)
    for round_number in (1, 2):
        agents = receive(agents, algorithm.download(server))
        for _ in range(algorithm.plan.local_steps):
            batches = made_up_batches(algorithm.plan.episodes, spec, act, actors_of(agents))
            agents, _ = learn(agents, batches, keys)
        if round_number < 2:
            server, _ = merge(server, upload(agents), jnp.ones(AGENTS, bool), jax.random.key(round_number))
    return Case(algorithm, spec, server, agents, batches, keys, join, receive, learn, upload, merge)


def pick(tree: PyTree, agents: list[int]) -> PyTree:
    return jax.tree.map(lambda x: np.asarray(x)[agents], tree)


def same(a: PyTree, b: PyTree) -> bool:
    assert layout(a) == layout(b)
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def assert_close(a: PyTree, b: PyTree, tolerance: float = 1e-5) -> None:
    assert layout(a) == layout(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * (1e-6 + float(np.max(np.abs(x)))))


def assert_finite(tree: PyTree) -> None:
    for x in jax.tree.leaves(tree):
        assert np.isfinite(np.asarray(x)).all()


def test_states_and_messages_are_plain_finite_arrays(case: Case) -> None:
    download = case.algorithm.download(case.server)
    for tree in (case.server, case.agents, download, case.uploads, case.algorithm.actor(case.server)):
        assert jax.tree.leaves(tree)
        assert_plain(tree)
        assert_finite(tree)


def test_actions_are_inside_the_action_space(case: Case) -> None:
    algorithm, action = case.algorithm, case.spec.action
    actor = algorithm.actor(case.server)
    obs = shown(case.spec, np.random.default_rng(1).normal(0, 5, (200, *case.spec.observation_shape)))
    random, _ = jax.jit(jax.vmap(algorithm.act, (None, 0, 0)))(actor, obs, jax.random.split(jax.random.key(2), 200))
    greedy = jax.jit(jax.vmap(algorithm.greedy, (None, 0)))(actor, obs)
    assert layout(random) == layout(greedy)
    for chosen in (np.asarray(random), np.asarray(greedy)):
        if isinstance(action, Discrete):
            assert chosen.dtype == np.int32 and chosen.shape == (200,)
            assert chosen.min() >= 0 and chosen.max() < action.n
        else:
            assert isinstance(action, Box)
            assert chosen.dtype == np.float32 and chosen.shape == (200, len(action.low))
            assert (chosen >= np.array(action.low)).all() and (chosen <= np.array(action.high)).all()
    assert len(np.unique(random)) > 1


def test_act_depends_on_its_key_alone_for_randomness(case: Case) -> None:
    actor, obs = case.algorithm.actor(case.server), shown(case.spec, np.ones(case.spec.observation_shape))
    act = jax.jit(lambda key: jax.vmap(case.algorithm.act, (None, None, 0))(actor, obs, jax.random.split(key, 50)))
    one, again, other = (act(jax.random.key(seed)) for seed in (5, 5, 6))
    assert same(one, again)
    assert not same(one, other)


def test_learn_changes_what_is_uploaded_and_repeats_itself(case: Case) -> None:
    one, metrics = case.learn(case.agents, case.batches, case.keys)
    again, _ = case.learn(case.agents, case.batches, case.keys)
    assert same(one, again)
    assert layout(one) == layout(case.agents)
    assert_finite((one, metrics))
    assert not same(case.upload(one), case.uploads)


def test_learn_treats_every_agent_by_itself(case: Case) -> None:
    """A batch of agents in another order gives the same agents in that order."""
    order = [2, 0, 3, 1]
    there, _ = case.learn(pick(case.agents, order), pick(case.batches, order), case.keys[jnp.array(order)])
    here, _ = case.learn(case.agents, case.batches, case.keys)
    assert_close(there, pick(here, order))


def test_what_dead_slots_hold_means_nothing(case: Case) -> None:
    batch = jax.tree.map(np.array, case.batches)
    junk = jax.tree.map(np.array, batch)
    junk.obs[:, -TIME_BLOCK:][~batch.live] = 200  # in front of a column there may be earlier frames
    junk.action[~batch.live] = 0
    assert not same(junk, batch)
    assert_close(case.learn(case.agents, batch, case.keys), case.learn(case.agents, junk, case.keys))


def test_merge_moves_the_server(case: Case) -> None:
    merged, metrics = case.merged(case.uploads, [True] * AGENTS)
    assert layout(merged) == layout(case.server)
    assert_finite((merged, metrics))
    assert not same(case.algorithm.actor(merged), case.algorithm.actor(case.server))


def test_merge_ignores_those_who_did_not_answer_whatever_is_in_their_place(case: Case) -> None:
    def junk_from_absent(x: Array, junk: float) -> np.ndarray:
        x = np.array(x)
        x[[1, 3]] = junk if np.dtype(x.dtype).kind == "f" else 7
        return x

    answers = []
    for junk in (0.0, 7.0, np.nan, np.inf):
        uploads = jax.tree.map(functools.partial(junk_from_absent, junk=junk), case.uploads)
        answers.append(case.merged(uploads, [True, False, True, False]))
        assert_finite(answers[-1])
        assert same(answers[-1], answers[0]), f"{junk} in an absent agent's place changed the result"
    assert_close(answers[0], case.merged(pick(case.uploads, [0, 2]), [True, True]))
    assert not same(answers[0][0], case.merged(case.uploads, [True] * AGENTS)[0])


def test_nobody_answered_leaves_the_server_as_it_was(case: Case) -> None:
    for uploads in (case.uploads, jax.tree.map(lambda x: np.full_like(x, -1), case.uploads)):
        merged, metrics = case.merged(uploads, [False] * AGENTS)
        assert same(merged, case.server)
        of_pairs = metrics.pop("gradient_norm_squared", np.nan)
        assert np.isnan(of_pairs)  # there is none
        assert_finite(metrics)


def test_merge_does_not_depend_on_the_order_of_the_agents(case: Case) -> None:
    order = [3, 1, 0, 2]
    mask = [True, True, False, True]
    moved = case.merged(pick(case.uploads, order), [mask[i] for i in order])
    assert_close(moved, case.merged(case.uploads, mask))


def test_an_agent_that_missed_rounds_continues_from_the_server(case: Case) -> None:
    """So does one that was there, and one that has just joined."""
    algorithm = case.algorithm
    for agents in (case.agents, case.join(case.keys)):
        received = case.receive(agents, algorithm.download(case.server))
        assert layout(received) == layout(agents)
        assert_finite(received)
        for i in (0, AGENTS - 1):
            agent = jax.tree.map(lambda x, i=i: np.asarray(x)[i], received)
            assert same(algorithm.actor(agent), algorithm.actor(case.server))
            for field in {"theta", "u", "t"} & set(getattr(case.server, "_fields", ())):
                assert same(getattr(agent, field), getattr(case.server, field)), field


def test_an_agent_that_has_just_joined_can_learn_at_once(case: Case) -> None:
    received = case.receive(case.join(case.keys), case.algorithm.download(case.server))
    learned, metrics = case.learn(received, case.batches, case.keys)
    assert_finite((learned, metrics))
    assert not same(case.upload(learned), case.upload(received))
