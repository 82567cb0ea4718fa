"""Names of environments that are not ours."""

import contextlib
import sys
from pathlib import Path

import numpy as np
import pytest

from mfpo.envs import gymnasium_env
from mfpo.errors import ConfigError, MissingExtra, UnknownName
from mfpo.types import Discrete


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("CartPole", "CartPole-v1"),
        ("CartPole-v7", "CartPole-v1"),
        ("Ant-v1", "Ant-v5"),
    ],
)
def test_an_unknown_id_is_answered_with_a_known_one(name, near):
    with pytest.raises(UnknownName, match=rf"no environment called '{name}'. Did you mean {near}.*package\.module:"):
        gymnasium_env.make(name)


def test_an_unknown_id_far_from_all_others_has_a_short_answer():
    with pytest.raises(UnknownName, match="Possible: .* \\.\\.\\. If another package registers it") as caught:
        gymnasium_env.make("xyzzy")
    assert len(str(caught.value)) < 500


FILE = """
import gymnasium
from gymnasium import spaces

class Mine(gymnasium.Env):
    observation_space, action_space = spaces.Discrete(3), spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}
    def step(self, action):
        return 1 + action, 1.0, bool(action), False, {}

gymnasium.register("Mine-v0", Mine, max_episode_steps=5)
"""


def test_a_file_in_the_current_directory_is_found(folder):
    (folder / "my_own_env.py").write_text(FILE)
    env = gymnasium_env.make("my_own_env:Mine-v0")
    assert env.spec.id == "my_own_env:Mine-v0"
    assert (env.spec.observation_shape, env.spec.action, env.spec.horizon) == ((3,), Discrete(2), 5)
    with contextlib.closing(env.open([{}])) as copies:
        assert copies.reset(np.arange(1), np.zeros(1, np.uint64)).tolist() == [[1.0, 0.0, 0.0]]
        observation, reward, terminated, truncated, _ = copies.step(np.arange(1), np.ones(1, np.int32))
        assert observation.tolist() == [[0.0, 0.0, 1.0]]
        assert (reward[0], terminated[0], truncated[0]) == (1.0, True, False)
    with pytest.raises(
        ConfigError, match="'my_own_env' registers no environment called 'Mime-v0'. Did you mean Mine-v0"
    ):
        gymnasium_env.make("my_own_env:Mime-v0")


def test_what_a_module_does_to_the_working_directory_holds_for_its_environment(folder):
    (folder / "sim").mkdir()
    (folder / "sim" / "data.txt").write_text("7")
    made = "def __init__(self): open('data.txt').close()"
    opens = FILE.replace("(gymnasium.Env):", f"(gymnasium.Env):\n    {made}")
    (folder / "sim" / "__init__.py").write_text(f"import os; os.chdir(os.path.dirname(__file__)){opens}")
    assert gymnasium_env.make("sim:Mine-v0").spec.horizon == 5
    assert Path.cwd() == folder


def test_a_module_of_a_package_is_found(folder):
    (folder / "my_package").mkdir()
    (folder / "my_package" / "worlds.py").write_text(FILE)
    assert gymnasium_env.make("my_package.worlds:Mine-v0", 3).spec.horizon == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "module 'my_own_env' could not be imported: ModuleNotFoundError: No module named 'my_own_env'. It must"),
        ("import nothing_like_it", "could not be imported: ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("1 / 0", "module 'my_own_env' could not be imported: ZeroDivisionError"),
        ("def", "module 'my_own_env' could not be imported: SyntaxError: invalid syntax [^ ]*, line 1..$"),
        ("", r"registers no environment called 'Mine-v0'. It registers none; let it call gymnasium.register\("),
    ],
)
def test_a_module_that_does_not_help_is_explained(folder, text, sentence):
    if text is not None:
        (folder / "my_own_env.py").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        gymnasium_env.make("my_own_env:Mine-v0")


def test_what_a_module_registers_of_others_is_its_own(folder):
    (folder / "my_own_env.py").write_text("import gymnasium; gymnasium.register('Else-v0', 'gymnasium:Env')")
    with pytest.raises(
        ConfigError, match="'my_own_env' registers no environment called 'Else-v1'. Did you mean Else-v0"
    ):
        gymnasium_env.make("my_own_env:Else-v1")


@pytest.mark.parametrize("name", [":Mine-v0", "my_own_env:", ":"])
def test_half_a_name_is_explained(name):
    with pytest.raises(ConfigError, match=f"'{name}' names no environment; write package.module:EnvId"):
        gymnasium_env.make(name)


@pytest.mark.parametrize("text", ["raise SystemExit('no licence')", "import sys; sys.exit(0)"])
def test_a_module_that_ends_the_program_is_explained(folder, text):
    (folder / "my_own_env.py").write_text(text)
    with pytest.raises(ConfigError, match="module 'my_own_env' could not be imported: SystemExit"):
        gymnasium_env.make("my_own_env:Mine-v0")


def test_without_gymnasium_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtra, match=r"The environment 'Acrobot-v1' needs .*'mfpo\[gymnasium\]'"):
        gymnasium_env.make("Acrobot-v1")
