"""`mfpo plot runs/*` meets folders of other commands, too."""

import pytest

from mfpo.errors import RunError
from mfpo.reporting import comparison, sweep
from mfpo.reporting.curves import figure
from mfpo.reporting.folders import is_run, runs_among


@pytest.fixture
def several(make_run, tmp_path):
    """Folders as `mfpo sweep` and `mfpo compare` leave them: half done, done, and done with the runs moved away."""
    make_run("sweep/agents=2/seed-0")
    make_run("compare/mfpo-seed0")
    (tmp_path / "tables").mkdir()
    for folder, name in (("compare", comparison.NUMBERS), ("tables", sweep.NUMBERS)):
        (tmp_path / folder / name).write_text("{}")
    return [str(tmp_path / name) for name in ("compare", "sweep", "tables")]


def test_folders_of_several_runs_are_left_out(make_run, several):
    first, second = str(make_run()), str(make_run())
    assert runs_among([first, *several, second]) == ([first, second], several)
    figure(runs_among([*several, first])[0])


def test_what_belongs_to_somebody_else_stays_and_is_refused(make_run, several, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    given = [str(make_run()), str(other), several[0]]
    assert runs_among(given) == (given[:2], several[:1])
    with pytest.raises(RunError, match="other is not a run: it has no config.toml"):
        figure(runs_among(given)[0])


def test_where_nothing_is_left_the_sentence_is_that_of_a_folder_that_is_no_run(several):
    for given in (several, several[:1]):
        assert runs_among(given) == (given, [])
        with pytest.raises(RunError, match="compare is not a run: it has no config.toml; give a directory"):
            figure(runs_among(given)[0])


def test_what_cannot_even_be_looked_at_is_no_run(tmp_path):
    name = tmp_path / ("x" * 300)
    assert not is_run(name) and runs_among([str(name)]) == ([str(name)], [])
    with pytest.raises(RunError, match="cannot be read"):
        figure([name])
