"""Every algorithm, small but whole: a run goes on where it was killed, and the engines agree."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mfpo import algorithms, envs
from mfpo.federation import make_engine
from mfpo.runs import tensors
from mfpo.runs.settings import resolve_options
from mfpo.runs.training import resume, train

ROUNDS, AGENTS = 3, 3
SMALL: dict[str, Any] = {  # each is used where an algorithm has a setting of that name
    "local_steps": 2, "trajectories": 2, "hidden": (8,), "value_hidden": (4,), "value_updates": 2, "fisher_samples": 16,
    "samples": 8, "capacity": 60, "warmup": 20, "epochs": 2, "minibatch": 16, "server_trajectories": 2,
}  # fmt: skip

every_algorithm = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "fed_sac" else [pytest.mark.slow])  # the one with the most to remember
        for name in algorithms.list_algorithms()
    ],
)


def small(name: str) -> tuple[Any, Any]:
    known = {field.name for field in dataclasses.fields(algorithms.config_class(name))}
    run = {"env": "CartPole-v1", "algorithm": name, "agents": AGENTS, "rounds": ROUNDS, "evaluation_episodes": 3}
    return resolve_options(run | {key: value for key, value in SMALL.items() if key in known})


@every_algorithm
def test_a_run_resumed_from_what_a_kill_leaves_is_the_same_to_the_last_byte(name: str, tmp_path: Path) -> None:
    def copy(row: dict[str, Any]) -> None:
        if row["round"] == ROUNDS - 1:  # the files as they are if the process dies now
            shutil.copytree(tmp_path / "whole", tmp_path / "run")

    whole = train(*small(name), tmp_path / "whole", callback=copy)
    run = resume(tmp_path / "run")
    assert (run.path / "policy.safetensors").read_bytes() == (whole.path / "policy.safetensors").read_bytes()
    assert run.summary["evaluation"] == whole.summary["evaluation"]
    assert list(map(without_times, run.metrics)) == list(map(without_times, whole.metrics))
    checkpoint = f"checkpoints/round-{ROUNDS:06d}.safetensors"  # beside the state it holds how long it took
    one, two = (tensors.unpack((path / checkpoint).read_bytes())[0] for path in (run.path, whole.path))
    assert one.keys() == two.keys()
    assert all(one[part].tobytes() == two[part].tobytes() for part in one)
    assert any("replay" in part for part in one) == (name in ("fed_sac", "fed_dqn"))


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if "seconds" not in key}


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.list_algorithms())
def test_both_engines_give_the_same(name: str) -> None:
    (one, lengths, moved), (two, lengths_, _) = played(name, "inprocess"), played(name, "debug")
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-4 * np.abs(x).max(initial=0))
    assert lengths == lengths_
    assert moved > 1e-3


def played(name: str, engine: str) -> tuple[Any, list[Any], float]:
    """The last state, the lengths of all episodes, and how far the policy went."""
    settings, config = small(name)
    env = envs.make(settings.env)
    algorithm = algorithms.make(name, config, env.spec, AGENTS)
    runner = make_engine(engine, algorithm, env, AGENTS, seed=0, devices=1)
    state, lengths = runner.start(), []
    before = np.array(state.server.theta)
    for number in range(1, ROUNDS + 1):
        state, log = runner.round(state, number)
        lengths.append(log.lengths.tolist())
    return jax.tree.map(np.array, state), lengths, float(np.abs(state.server.theta - before).max())
