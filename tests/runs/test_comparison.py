"""A comparison runs what is missing, goes on with what is half done, and says what came of it."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mfpo.errors import ConfigError, RunError
from mfpo.reporting.comparison import NUMBERS, TABLE, save_comparison, table_text
from mfpo.runs import comparison, directory, entries

VALUES = {"agents": 3, "rounds": 4, "evaluation_episodes": 4}


def planned(out: Path, seeds: int = 2, **changes: Any) -> list[entries.Entry]:
    return comparison.plan("CartPole-v1", ["fake"], seeds, out, VALUES | changes)


class Stop(Exception):
    pass


def stop_after(rounds: int) -> Any:
    def callback(row: dict[str, Any]) -> None:
        if row["round"] == rounds:
            raise Stop

    return callback


def test_what_is_finished_is_not_run_again_and_what_is_half_done_goes_on(fake: ModuleType, tmp_path: Path) -> None:
    first, second = planned(tmp_path)
    rounds: list[int] = []
    entries.run(first)
    with pytest.raises(Stop):
        entries.run(second, callback=stop_after(2))
    assert [entries.is_finished(entry) for entry in planned(tmp_path)] == [True, False]
    entries.run(first, callback=lambda row: rounds.append(row["round"]))
    assert rounds == []
    entries.run(second, callback=lambda row: rounds.append(row["round"]))
    assert rounds == [3, 4]
    assert all(map(entries.is_finished, planned(tmp_path)))
    assert [directory.read_config(entry.path)[0].seed for entry in (first, second)] == [0, 1]


def test_it_can_be_extended_by_seeds_and_rounds(fake: ModuleType, tmp_path: Path) -> None:
    for entry in planned(tmp_path):
        entries.run(entry)
    longer = planned(tmp_path, seeds=3, rounds=6)
    assert [entries.is_finished(entry) for entry in longer] == [False] * 3
    assert [len(entries.run(entry).metrics) for entry in longer] == [6] * 3
    with pytest.raises(RunError, match="was trained for 6 rounds, more than 4"):
        planned(tmp_path)


def test_a_run_of_other_settings_is_not_touched(fake: ModuleType, tmp_path: Path) -> None:
    (entry,) = planned(tmp_path, seeds=1)
    entries.run(entry)
    with pytest.raises(RunError, match="fake-seed0 holds a run with other settings; give another --out"):
        planned(tmp_path, seeds=1, agents=5)


@pytest.mark.parametrize(
    ("algorithms", "seeds", "sentence"),
    [([], 1, "--algorithms names none"), (["fake", "fake"], 1, "names fake twice"), (["fake"], 0, "--seeds is 0")],
)
def test_plans_that_make_no_sense(
    fake: ModuleType, tmp_path: Path, algorithms: list[str], seeds: int, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        comparison.plan("CartPole-v1", algorithms, seeds, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_algorithm_that_does_not_suit_is_found_before_any_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="withstands at most 1 Byzantine agents of 3, but 2 are assumed"):
        comparison.plan("CartPole-v1", ["mfpo", "fedpg_br"], 2, tmp_path, VALUES | {"byzantine": 2})
    assert not list(tmp_path.iterdir())


def test_table_and_figures(fake: ModuleType, tmp_path: Path) -> None:
    """The fake's episodes return 0, 1, 2, 3 plus its seed plus 1 + 2 + 3 + 4."""
    runs = planned(tmp_path, seeds=4)
    for entry in runs:
        entries.run(entry)
    rows, figures = save_comparison([entry.path for entry in runs], tmp_path)
    (row,) = rows
    assert row["scores"] == [11.5, 12.5, 13.5, 14.5] and row["mean"] == row["iqm"] == 13.0
    assert row["std"] == pytest.approx(1.118, abs=1e-3) and 11.5 <= row["interval"][0] < 13 < row["interval"][1] <= 14.5
    assert row["trajectories_per_agent"] == 4 * 6 and row["bytes_up"] == 4 * 3 * 100
    assert json.loads((tmp_path / NUMBERS).read_text()) == rows
    assert (tmp_path / TABLE).read_text() == table_text(rows) + "\n"
    assert "| fake " in table_text(rows) and "13.0 ± 1.1" in table_text(rows)
    assert [figure.name for figure in figures] == [
        f"curves-{x}.png" for x in ("rounds", "trajectories", "steps", "bytes")
    ]
    assert all(figure.read_bytes().startswith(b"\x89PNG") for figure in figures)
