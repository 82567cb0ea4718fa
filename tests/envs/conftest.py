"""Environments that are registered for one test only."""

import contextlib
import functools
import sys

import gymnasium
import pytest
from tests.envs.toys import Toy


@pytest.fixture
def toy():
    """Registers a Toy, and forgets it afterwards."""
    with contextlib.ExitStack() as stack:

        def register(env_id="Toy-v0", max_episode_steps=20, creator=Toy, **kwargs):
            gymnasium.register(
                env_id, functools.partial(creator, **kwargs) if kwargs else creator, max_episode_steps=max_episode_steps
            )
            stack.callback(gymnasium.registry.pop, env_id)
            return env_id

        yield register


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current directory; what is imported and registered from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    modules, known = set(sys.modules), set(gymnasium.registry)
    yield tmp_path
    for module in set(sys.modules) - modules:
        if getattr(sys.modules[module], "__file__", None) and str(tmp_path) in str(sys.modules[module].__file__):
            del sys.modules[module]
    for env_id in set(gymnasium.registry) - known:
        del gymnasium.registry[env_id]
