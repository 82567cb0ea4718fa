import pytest

from mfpo.errors import RunError
from mfpo.reporting.records import load_metrics, load_record


def test_a_run_is_read_back(make_run):
    record = load_record(make_run(rounds=4, seed=3, momentum=0.5))
    assert record.settings["seed"] == 3
    assert record.config["momentum"] == 0.5
    assert [row["round"] for row in record.rows] == [1, 2, 3, 4]
    assert record.summary["evaluation"]["mean"] == 500


def test_an_unfinished_run_has_no_summary(make_run):
    assert load_record(make_run(finished=False)).summary == {}


def test_a_run_before_its_first_round_has_no_rows(make_run):
    run = make_run(rounds=2)
    (run / "metrics.jsonl").unlink()
    assert load_metrics(run) == []


def test_a_line_cut_off_by_a_crash_is_left_out(make_run):
    run = make_run(rounds=3)
    whole = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(whole[:-9])
    assert [row["round"] for row in load_metrics(run)] == [1, 2]


def test_a_damaged_line_in_the_middle_is_named(make_run):
    run = make_run(rounds=3)
    first, _, third = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([first, "17", third]))
    with pytest.raises(RunError, match=r"line 2, is not a JSON object"):
        load_metrics(run)


def test_what_is_not_a_run_is_refused_with_the_reason(tmp_path):
    with pytest.raises(RunError, match="there is no such directory"):
        load_record(tmp_path / "nothing")
    with pytest.raises(RunError, match="it has no config.toml"):
        load_record(tmp_path)
    (tmp_path / "config.toml").write_text("[project]\nname = 'other'\n")
    with pytest.raises(RunError, match="is not a run's config.toml"):
        load_record(tmp_path)
    (tmp_path / "config.toml").write_text("not toml")
    with pytest.raises(RunError, match="is not a run's config.toml"):
        load_record(tmp_path)
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunError, match="it is not text"):
        load_record(tmp_path)
