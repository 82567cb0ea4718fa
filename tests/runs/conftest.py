import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mfpo.runs.settings import Settings, resolve_options


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The fake federation in place of the real one."""
    spec = importlib.util.spec_from_file_location("fake_engine", Path(__file__).with_name("fake_engine.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install(monkeypatch.setattr)
    return module


@pytest.fixture
def job(fake: ModuleType) -> tuple[Settings, Any]:
    """Settings and config of a small run with the fake federation."""
    return resolve_options(
        {"env": "CartPole-v1", "algorithm": "fake", "agents": 3, "rounds": 5, "seed": 2, "evaluation_episodes": 4}
    )
