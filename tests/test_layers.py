"""Which room may use which, and how big a file and a function may be."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mfpo
import mfpo.types

SOURCE = Path(mfpo.types.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

FOUNDATION = {"types", "errors", "config", "registry", "random"}
MATHEMATICS = FOUNDATION | {"learning"}
WORLD = FOUNDATION | {"envs"}
FEDERATION = MATHEMATICS | WORLD | {"algorithms", "rollout", "blocks", "streams", "hosted", "federation"}
RUNS = FEDERATION | {"runs"}
REPORTING = RUNS | {"reporting"}

ALLOWED = {
    "types": set(),
    "errors": set(),
    "config": {"errors"},
    "registry": {"errors"},
    "random": {"types"},
    "learning": MATHEMATICS,
    "algorithms": MATHEMATICS | {"algorithms"},
    "envs": WORLD,
    "rollout": WORLD | {"rollout"},
    "blocks": WORLD,
    "streams": WORLD | {"rollout", "blocks"},
    "hosted": WORLD | {"rollout", "blocks", "streams", "hosted"},
    "federation": FEDERATION,
    "flower": RUNS | {"flower"},  # federation/flower: it stores what it does, as a run does
    "runs": RUNS,
    "reporting": REPORTING,
    "presets": set(),
    "cli": REPORTING | {"cli", "flower", "__init__"},
    "__init__": REPORTING,
    "__main__": {"cli"},
}

MOST_LINES_PER_FILE = 350
MOST_LINES_PER_FUNCTION = 60


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def room_of(path: Path) -> str:
    return room_named(path.relative_to(SOURCE).with_suffix("").parts)


def room_named(parts: tuple[str, ...]) -> str:
    """The room of a module. Flower has one of its own: it stands on `runs`, the other engines below it."""
    return "flower" if parts[:2] == ("federation", "flower") else parts[0]


def exists(*parts: str) -> bool:
    place = SOURCE.joinpath(*parts)
    return place.is_dir() or place.with_suffix(".py").is_file()


def imported_rooms(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, room) of every import of our own, those inside functions and under TYPE_CHECKING included."""
    package = ("mfpo", *path.relative_to(SOURCE).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            source = (*start, *(node.module.split(".") if node.module else ()))
            modules = [(*source, alias.name) for alias in node.names]
        else:
            continue
        for module in modules:
            if module[0] == "mfpo":
                room = room_named(module[1:]) if len(module) > 1 and exists(module[1]) else "__init__"
                yield node.lineno, room


def wrong_imports(path: Path, text: str) -> list[str]:
    allowed = ALLOWED[room_of(path)]
    found = imported_rooms(path, ast.parse(text))
    return [f"{name_of(path)}:{line} imports {room}" for line, room in found if room not in allowed]


def test_every_room_has_its_rule() -> None:
    assert {room_of(path) for path in FILES} <= ALLOWED.keys()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_follow_the_plan(path: Path) -> None:
    assert wrong_imports(path, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("learning/nets.py", "from mfpo.envs import make"),
        ("learning/nets.py", "from mfpo import rollout"),
        ("envs/cartpole.py", "import mfpo.learning.nets"),
        ("envs/cartpole.py", "from ..learning import nets"),
        ("algorithms/mfpo.py", "def f():\n    from mfpo import envs"),
        ("algorithms/mfpo.py", "from mfpo.rollout import pure_sampler"),
        ("algorithms/mfpo.py", "from mfpo.federation.round import Purpose"),
        ("rollout.py", "from . import federation"),
        ("federation/round.py", "from mfpo.runs import files"),
        ("federation/round.py", "from mfpo.federation.flower import wire"),
        ("federation/flower/wire.py", "from mfpo.reporting import curves"),
        ("runs/files.py", "from mfpo.reporting import curves"),
        ("runs/files.py", "from mfpo.federation.flower.agent import serve"),
        ("runs/files.py", "from mfpo import train"),
        ("reporting/curves.py", "from mfpo.cli import main"),
        ("__init__.py", "from mfpo.cli import main"),
        ("types.py", "import mfpo.errors"),
    ],
)
def test_a_wrong_import_is_noticed(file: str, line: str) -> None:
    assert len(wrong_imports(SOURCE / file, line)) == 1


def test_the_plan_itself_keeps_mathematics_and_world_apart() -> None:
    assert "envs" not in ALLOWED["learning"] and "learning" not in ALLOWED["envs"]
    assert not ALLOWED["algorithms"] & {"envs", "rollout", "blocks", "streams", "hosted", "federation"}
    assert all("cli" not in rooms for name, rooms in ALLOWED.items() if name not in ("cli", "__main__"))


def test_files_are_short() -> None:
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: n for name, n in lengths.items() if n > MOST_LINES_PER_FILE} == {}


def test_functions_are_short() -> None:
    long = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                if lines > MOST_LINES_PER_FUNCTION:
                    long[f"{name_of(path)}:{node.lineno} {node.name}"] = lines
    assert long == {}


def test_public_names_exist() -> None:
    assert mfpo.__all__
    assert len(set(mfpo.__all__)) == len(mfpo.__all__)
    assert [name for name in mfpo.__all__ if not hasattr(mfpo, name)] == []
