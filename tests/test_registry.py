import sys
from pathlib import Path

import pytest

from mfpo import algorithms, envs, registry
from mfpo.errors import MfpoError, UnknownName
from mfpo.federation import ENGINES, make_engine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of our own: `alpha` has two names, `beta` one, `helper` none."""
    package = tmp_path / "made_up_things"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "alpha.py").write_text("NAMES = ('first', 'second')\n")
    (package / "beta.py").write_text("NAMES = ('third',)\n")
    (package / "helper.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "made_up_things"
    for name in [name for name in sys.modules if name.partition(".")[0] == "made_up_things"]:
        del sys.modules[name]


def test_a_folder_lists_itself(folder: str) -> None:
    home = {"first": "alpha", "second": "alpha", "third": "beta"}
    assert registry.names(folder) == {name: f"made_up_things.{module}" for name, module in home.items()}


def test_adding_a_file_is_all_it_takes(folder: str, tmp_path: Path) -> None:
    assert "fourth" not in registry.names(folder)
    (tmp_path / folder / "gamma.py").write_text("NAMES = ('fourth',)\n")
    assert registry.get(folder, "fourth").__name__ == "made_up_things.gamma"


def test_get_returns_the_module(folder: str) -> None:
    assert registry.get(folder, "second") is registry.get(folder, "first")
    assert registry.get(folder, "third").NAMES == ("third",)


def test_an_unknown_name_is_answered_with_a_suggestion(folder: str) -> None:
    with pytest.raises(UnknownName) as caught:
        registry.get(folder, "secnd")
    assert str(caught.value) == "There is no made_up_thing called 'secnd'. Did you mean second?"
    with pytest.raises(UnknownName, match="Possible: first, second, third."):
        registry.get(folder, "x")


def test_nothing_registered_is_lost() -> None:
    assert {"CartPole-v1", "Pendulum-v1"} <= set(envs.list_environments())
    assert "mfpo" in algorithms.list_algorithms()
    assert set(ENGINES) == set(registry.names("mfpo.federation"))


def test_lists_are_sorted_and_every_name_can_be_made() -> None:
    assert envs.list_environments() == sorted(envs.list_environments())
    assert algorithms.list_algorithms() == sorted(algorithms.list_algorithms())
    for name in envs.list_environments():
        assert envs.make(name).spec.id == name
    for name in algorithms.list_algorithms():
        assert algorithms.config_class(name)() == algorithms.config_class(name)()


def test_unknown_environment_algorithm_and_engine() -> None:
    with pytest.raises(UnknownName, match="no environment called 'cartpole'. Did you mean CartPole-v1?"):
        envs.make("cartpole")
    with pytest.raises(UnknownName, match="no algorithm called 'mpfo'. Did you mean mfpo?"):
        algorithms.config_class("mpfo")
    with pytest.raises(UnknownName, match="no algorithm called 'mpfo'. Did you mean mfpo?"):
        algorithms.make("mpfo", None, envs.make("CartPole-v1").spec, 1)
    with pytest.raises(MfpoError, match="'inproces'. Did you mean inprocess?"):
        make_engine("inproces", None, envs.make("CartPole-v1"), 1, 0)
