"""Whose the working directory is."""

import os
from pathlib import Path

from mfpo.envs.place import Place


def test_a_directory_that_was_removed_does_not_keep_us(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = Place()
    for _ in range(2):
        with place:
            (tmp_path / "gone").mkdir()
            os.chdir(tmp_path / "gone")
            (tmp_path / "gone").rmdir()
        assert Path.cwd() == tmp_path


def test_where_we_have_moved_they_begin_anew(tmp_path, monkeypatch):
    for name in ("ours", "theirs", "new"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "ours")
    place, seen = Place(), []
    for here in ("ours", "ours", "new"):
        os.chdir(tmp_path / here)
        with place:
            seen.append(Path.cwd().name)
            os.chdir(tmp_path / "theirs")
    assert seen == ["ours", "theirs", "new"]
