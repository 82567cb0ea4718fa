import json
import math

from mfpo.reporting.following import Followed, FollowedRows, number, read_object


def rows_of(*rounds, **values):
    return "".join(json.dumps({"round": t, "return_mean": 10.0 * t, "other": 1} | values) + "\n" for t in rounds)


def follow(tmp_path, text=""):
    file = tmp_path / "metrics.jsonl"
    file.write_text(text)
    return file, FollowedRows(file, ("return_mean",))


def rounds(rows):
    return [row["round"] for row in rows.now()]


def test_only_the_wanted_columns_are_kept(tmp_path):
    _, rows = follow(tmp_path, rows_of(1))
    assert rows.now() == [{"round": 1, "return_mean": 10.0}]


def test_what_is_added_is_read_and_nothing_twice(tmp_path, monkeypatch):
    file, rows = follow(tmp_path, rows_of(1, 2))
    assert rounds(rows) == [1, 2]
    parsed = []
    monkeypatch.setattr("json.loads", lambda line, loads=json.loads: parsed.append(line) or loads(line))
    assert rounds(rows) == [1, 2] and parsed == []
    with file.open("a") as end:
        end.write(rows_of(3))
    assert rounds(rows) == [1, 2, 3] and len(parsed) == 1


def test_a_line_is_read_when_it_is_whole(tmp_path):
    file, rows = follow(tmp_path, rows_of(1))
    line = rows_of(2)
    with file.open("a") as end:
        end.write(line[:9])
    assert rounds(rows) == [1]
    with file.open("a") as end:
        end.write(line[9:])
    assert rounds(rows) == [1, 2]


def test_damaged_lines_are_passed_over(tmp_path):
    deep = "[" * 100_000
    _, rows = follow(tmp_path, rows_of(1) + f'17\n{{"round": "x"}}\nhalf{{\n{deep}\n\n' + rows_of(2))
    assert rounds(rows) == [1, 2]


def test_a_run_cut_back_by_a_resume_goes_on_from_there(tmp_path):
    file, rows = follow(tmp_path, rows_of(1, 2, 3))
    assert rounds(rows) == [1, 2, 3]
    file.write_text(rows_of(1, 2))
    assert rounds(rows) == [1, 2]
    file.write_text(rows_of(1, 2) + rows_of(3, 4, return_mean=-1.0))
    assert [row["return_mean"] for row in rows.now()] == [10.0, 20.0, -1.0, -1.0]


def test_a_run_that_begins_anew_is_read_anew(tmp_path):
    file, rows = follow(tmp_path, rows_of(1, 2))
    assert rounds(rows) == [1, 2]
    file.write_text(rows_of(1, 2, 3, return_mean=7.5))
    assert [row["return_mean"] for row in rows.now()] == [7.5, 7.5, 7.5]
    file.unlink()
    assert rows.now() == []
    file.write_text(rows_of(1))
    assert rounds(rows) == [1]


def test_a_round_done_again_counts_once(tmp_path):
    _, rows = follow(tmp_path, rows_of(1, 2, 3) + rows_of(2, return_mean=5.0))
    assert [(row["round"], row["return_mean"]) for row in rows.now()] == [(1, 10.0), (2, 5.0)]


def test_numbers_are_what_a_browser_can_read():
    assert [number(x) for x in (1, 2.5, None, "3", True, math.nan, -math.inf)] == [1, 2.5] + [None] * 5
    assert number(10**400) is None
    assert number({}) is None


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path):
    file, read = tmp_path / "agents.json", []
    followed = Followed(file, lambda path: read.append(path) or read_object(path))
    assert followed.now() == {} and followed.now() == {} and len(read) == 1
    file.write_text('{"agents": []}')
    assert followed.now() == {"agents": []} and len(read) == 2
    file.write_text('{"agents": [1')
    assert followed.now() == {} and followed.now() == {} and len(read) == 3
    file.write_text("[1]")
    assert followed.now() == {}
