"""The last rung: default settings learn to a threshold. Minutes of training are marked slow: `pytest -m slow`."""

import numpy as np
import pytest

from mfpo import algorithms, envs
from mfpo.federation import evaluate, make_engine
from mfpo.runs.settings import resolve


def train(env_id: str, seeds: range, rounds: int, episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean return of every round [seeds, rounds] and score of the final policy [seeds], at default settings."""
    settings, config = resolve({"env": env_id}, {})
    env = envs.make(env_id)
    algorithm = algorithms.make("mfpo", config, env.spec, settings.agents)
    curves, scores = [], []
    for seed in seeds:
        engine = make_engine("inprocess", algorithm, env, settings.agents, seed)
        state, curve = engine.start(), []
        for number in range(1, rounds + 1):
            state, log = engine.round(state, number)
            curve.append(log.returns.mean())
        curves.append(curve)
        scores.append(evaluate(algorithm, env, algorithm.actor(state.server), seed, episodes).mean())
    return np.array(curves), np.array(scores)


def test_ten_agents_solve_cartpole_in_five_rounds():
    curves, scores = train("CartPole-v1", range(1), rounds=5, episodes=100)
    assert curves[0].max() >= 475
    assert scores[0] >= 490


@pytest.mark.slow
def test_cartpole_ten_seeds():
    curves, scores = train("CartPole-v1", range(10), rounds=30, episodes=100)
    assert (scores == 500.0).sum() >= 9
    assert scores.min() >= 495
    assert (curves[:, :8].max(axis=1) >= 475).all()


@pytest.mark.slow
def test_pendulum_five_seeds():
    _, scores = train("Pendulum-v1", range(5), rounds=30, episodes=1000)
    assert scores.mean() >= -165
    assert scores.min() >= -185
