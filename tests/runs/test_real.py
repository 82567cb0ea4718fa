"""The real thing, small: MFPO on CartPole."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from mfpo.runs.judging import evaluate_run
from mfpo.runs.policy import load_policy
from mfpo.runs.settings import resolve_options
from mfpo.runs.training import resume, train

SMALL: dict[str, Any] = {
    "env": "CartPole-v1", "agents": 2, "rounds": 2, "local_steps": 2, "trajectories": 2, "evaluation_episodes": 3,
    "hidden": (4,), "step": "adam", "baseline": "constant",  # quick to compile, yet with state on both sides
}  # fmt: skip


def test_resumed_from_what_a_kill_leaves_equals_undisturbed(tmp_path: Path) -> None:
    settings, config = resolve_options(SMALL)

    def copy(row: dict[str, Any]) -> None:
        if row["round"] == 1:  # the files as they are if the process dies now
            shutil.copytree(tmp_path / "whole", tmp_path / "run")

    whole = train(settings, config, tmp_path / "whole", callback=copy)
    run = resume(tmp_path / "run")
    assert len(run.metrics) == 2
    for name in ("policy.safetensors", "policy.json"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert run.summary["evaluation"] == whole.summary["evaluation"]
    assert run.summary["env_steps"] == whole.summary["env_steps"]
    assert [row["return_mean"] for row in run.metrics] == [row["return_mean"] for row in whole.metrics]

    assert evaluate_run(run.path)["returns"] == whole.summary["evaluation"]["returns"]
    obs = np.random.default_rng(0).normal(size=(20, 4))
    assert np.array_equal(load_policy(run.path).act(obs, key=1), whole.policy.act(obs, key=1))
    assert set(whole.policy.act(obs).tolist()) <= {0, 1}
