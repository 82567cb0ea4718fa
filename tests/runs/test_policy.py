import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import mfpo
from mfpo import algorithms
from mfpo.config import build
from mfpo.envs import gymnasium_env
from mfpo.errors import MfpoError, RunError
from mfpo.runs.policy import Origin, Policy, load_policy, save_policy
from mfpo.types import Box, Discrete, EnvSpec

SPEC = EnvSpec("Nowhere-v0", observation_shape=(4,), action=Discrete(3), horizon=10)  # an environment nobody has
OBS = np.linspace(-1, 1, 4)


@pytest.fixture
def policy(fake: ModuleType) -> Policy:
    origin = Origin("fake", fake.Config(cap=float("inf")), SPEC, agents=2)
    params = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32), "b": jnp.zeros(3)}
    return Policy(origin, fake.make_algorithm(*origin), params)


@pytest.fixture
def saved(policy: Policy, tmp_path: Path) -> Path:
    save_policy(tmp_path, policy)
    return tmp_path


def test_one_observation_or_a_batch(policy: Policy) -> None:
    one, many = policy.act(OBS), policy.act([OBS.tolist()] * 50)
    assert isinstance(one, np.ndarray) and one.shape == () and many.shape == (50,)
    assert len(set(many.tolist())) > 1  # rows draw for themselves
    assert set(policy.act(np.tile(OBS, (50, 1)), greedy=True).tolist()) == {int(policy.act(OBS, greedy=True))}
    expected = np.argmax(OBS.astype(np.float32) @ np.asarray(policy.params["w"]))
    assert policy.act(OBS, greedy=True) == expected
    assert policy.act(np.zeros((0, 4))).shape == (0,)


def test_draws_differ_from_call_to_call_but_not_from_program_to_program(policy: Policy, saved: Path) -> None:
    def draw(policy: Policy) -> list[int]:
        return [int(policy.act(OBS)) for _ in range(40)]

    first = draw(load_policy(saved))
    assert len(set(first)) > 1
    assert draw(load_policy(saved)) == first != draw(load_policy(saved, seed=1))


def test_a_key_fixes_the_draw(policy: Policy) -> None:
    expected = policy.act([OBS] * 30, key=3).tolist()
    assert policy.act([OBS] * 30, key=jax.random.key(3)).tolist() == expected
    assert policy.act([OBS] * 30, key=4).tolist() != expected


@pytest.mark.parametrize("shape", [(), (3,), (5,), (2, 3), (2, 2, 4)])
def test_observations_of_another_shape_are_refused(policy: Policy, shape: tuple[int, ...]) -> None:
    with pytest.raises(MfpoError, match=r"Nowhere-v0 takes observations of shape \(4,\)"):
        policy.act(np.zeros(shape))


def test_numbers_may_be_of_any_type(policy: Policy) -> None:
    numbers = [[0, 1, 2, 3], [3, 2, 1, 0]]
    expected = policy.act(np.array(numbers, np.float32), key=3).tolist()
    for kind in (np.uint8, np.int64, np.float16, np.float64, object):
        assert policy.act(np.array(numbers, kind), key=3).tolist() == expected


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float32])
def test_frames_may_be_of_any_type(kind: type) -> None:
    spec = EnvSpec("Nowhere-v0", (4, 84, 84), Discrete(3), horizon=10, stack=4)
    config = build(algorithms.config_class("mfpo"), {"hidden": []}, "here")
    algorithm = algorithms.make("mfpo", config, spec, 1)
    params = algorithm.actor(algorithm.init(jax.random.key(0)))
    policy = Policy(Origin("mfpo", config, spec, 1), algorithm, params)
    frames = np.random.default_rng(0).integers(0, 256, spec.observation_shape)
    assert policy.act(frames.astype(kind), key=1) == policy.act(frames.astype(np.uint8), key=1)


def test_loading_needs_no_environment_and_changes_no_bit(policy: Policy, saved: Path) -> None:
    for path in (saved, saved / "policy.safetensors", str(saved)):
        loaded = load_policy(path)
        assert loaded.origin == policy.origin
        assert all(np.array_equal(loaded.params[name], policy.params[name]) for name in policy.params)
    (saved / "copy").mkdir()
    save_policy(saved / "copy", loaded)
    for name in ("policy.safetensors", "policy.json"):
        assert (saved / "copy" / name).read_bytes() == (saved / name).read_bytes()


def test_policy_json_is_strict_json_even_with_infinite_bounds(policy: Policy, tmp_path: Path) -> None:
    spec = SPEC._replace(action=Box((-np.inf, -2.0), (np.inf, 0.1)))
    policy.origin = policy.origin._replace(spec=spec)
    save_policy(tmp_path, policy)

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    values = json.loads((tmp_path / "policy.json").read_text(), parse_constant=refuse)
    assert values["env"]["action"] == {"low": ["-inf", -2.0], "high": ["inf", 0.1]}
    assert values["config"]["cap"] == "inf"


def test_box_actions_come_back(
    fake: ModuleType, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mfpo import algorithms

    spec = SPEC._replace(action=Box((-np.inf, -2.0), (np.inf, 0.1)))
    made: list[EnvSpec] = []

    def make(name: str, config: Any, spec: EnvSpec, agents: int) -> Any:
        made.append(spec)
        return fake.make_algorithm(name, config, SPEC, agents)

    monkeypatch.setattr(algorithms, "make", make)
    policy.origin = policy.origin._replace(spec=spec)
    save_policy(tmp_path, policy)
    assert load_policy(tmp_path).origin.spec == spec and made == [spec]


def edit(saved: Path, **values: Any) -> None:
    file = saved / "policy.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_damaged_and_foreign_files_are_refused(policy: Policy, saved: Path) -> None:
    weights, description = saved / "policy.safetensors", saved / "policy.json"
    good = weights.read_bytes()
    for content in (b"", good[:-1], good[:-1] + b"?", b"PK\x03\x04 a pickle in a zip"):
        weights.write_bytes(content)
        with pytest.raises(RunError, match=r"policy\.safetensors (is cut off|does not match)"):
            load_policy(saved)
    weights.write_bytes(good)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"format": 7}, "policy format 7"),
        ({"algorithm": "fakir"}, "fakir"),
        ({"config": {"stepsize": -1.0}}, "--stepsize"),
        ({"env": {}}, "incomplete"),
        ({"env": {"id": "x", "observation_shape": [9], "action": {"n": 3}, "horizon": 1}}, "does not belong to"),
    ]
    for values, words in cases:
        before = description.read_bytes()
        edit(saved, **values)
        with pytest.raises(RunError, match=words):
            load_policy(saved)
        description.write_bytes(before)
    for text in ("{", "[]", "\x00"):
        description.write_text(text)
        with pytest.raises(RunError, match=r"policy\.json"):
            load_policy(saved)
    description.unlink()
    with pytest.raises(RunError, match=r"There is no file .*policy\.json"):
        load_policy(saved)


def test_a_directory_without_a_policy(fake: ModuleType, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nothing.safetensors"):
        with pytest.raises(RunError, match=r"There is no file .*\.safetensors; a policy is two files"):
            load_policy(place)
    (tmp_path / "config.toml").write_text('format = 1\n[run]\nenv = "CartPole-v1"\nalgorithm = "fake"\n[fake]\n')
    with pytest.raises(RunError, match=r"There is no file .*policy\.safetensors; it is written again by: mfpo resume"):
        load_policy(tmp_path)
    with pytest.raises(RunError, match="Cannot read the policy .*: file name too long"):
        mfpo.load_policy(tmp_path / ("x" * 300))


SPACES: list[tuple[Any, Any]] = [
    (spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(-1.0, 1.0, (2,))}), spaces.Discrete(3, start=5)),
    (spaces.Box(0, 255, (2, 2, 3), np.uint8), spaces.MultiDiscrete([[3, 2], [2, 2]])),
    (spaces.Discrete(4, start=-1), spaces.Box(-2.0, 1.0, (1, 2))),
    (spaces.Box(-1.0, 1.0, (4,)), spaces.MultiBinary((2, 1))),
]


@pytest.mark.parametrize(("seen", "done"), SPACES, ids=lambda space: type(space).__name__)
def test_a_policy_acts_on_the_environment_it_was_trained_in(seen: Any, done: Any) -> None:
    """As training translates for it: observations flat, bytes over 255, actions counted from zero."""
    env: Any = SimpleNamespace(observation_space=seen, action_space=done)
    copy = gymnasium_env.understand("Nowhere-v0", env, 10)
    algorithm = algorithms.make("mfpo", algorithms.config_class("mfpo")(), copy.spec, 1)
    params = algorithm.actor(algorithm.init(jax.random.key(0)))
    policy = Policy(Origin("mfpo", algorithms.config_class("mfpo")(), copy.spec, 1), algorithm, params)
    act = policy.on(env)
    for i in range(20):
        observation = seen.sample()
        action = act(observation, key=i)
        assert action in done
        assert np.array_equal(action, copy.decode(policy.act(copy.encode(observation), key=i)))
    assert act(observation, greedy=True) in done
    other: Any = SimpleNamespace(observation_space=spaces.Box(-1.0, 1.0, (9,)), action_space=done)
    with pytest.raises(RunError, match="has observations of shape"):
        policy.on(other)


def test_a_policy_of_frames_says_how_to_wrap_a_game() -> None:
    spec = EnvSpec("ALE/Pong-v5", (4, 84, 84), Discrete(6), 100, stack=4)
    algorithm = algorithms.make("mfpo", config := algorithms.config_class("mfpo")(), spec, 1)
    policy = Policy(Origin("mfpo", config, spec, 1), algorithm, params=None)
    raw, wrapped = (spaces.Box(0, 255, shape, np.uint8) for shape in ((210, 160, 3), (4, 84, 84)))
    with pytest.raises(MfpoError, match=r"sees frames of shape \(4, 84, 84\), but .*\(210, 160, 3\).*frameskip=1"):
        policy.on(SimpleNamespace(observation_space=raw, action_space=spaces.Discrete(6)))
    assert callable(policy.on(SimpleNamespace(observation_space=wrapped, action_space=spaces.Discrete(6))))


def test_what_is_no_observation_is_told(policy: Policy) -> None:
    for odd in ([[0.0], [0.0, 1.0]], {"a": 1}, None, "four"):
        with pytest.raises(MfpoError, match=r"takes observations of shape \(4,\).*use policy.on\(env\)"):
            policy.act(odd)
    with pytest.raises(MfpoError, match="an observation that is not finite"):
        policy.act([0.0, np.nan, 0.0, 0.0])
