import os

import pytest

from mfpo.runs import directory, locks

TABLE = """1: FLOCK  ADVISORY  WRITE 1117 fe:00:2320197 0 EOF
1: -> FLOCK  ADVISORY  WRITE 1118 fe:00:99 0 EOF
2: POSIX  ADVISORY  WRITE 1100 fe:00:2320238 128 128
3: FLOCK  ADVISORY  READ  1100 fe:00:2320239 0 EOF
4: FLOCK  ADVISORY  WRITE 1100 <none>:0 0 EOF
5: FLOCK
"""


def test_the_table_is_read(tmp_path):
    (tmp_path / "locks").write_text(TABLE)
    assert locks.held(tmp_path / "locks") == {(os.makedev(0xFE, 0), 2320197)}


def test_without_a_table_nothing_is_known(tmp_path):
    assert locks.held(tmp_path / "locks") == frozenset()


@pytest.mark.skipif(not locks.TABLE.exists(), reason="this system does not list its locks")
def test_a_run_in_training_is_in_the_table(tmp_path):
    place = (tmp_path.stat().st_dev, tmp_path.stat().st_ino)
    with directory.locked(tmp_path):
        assert place in locks.held()
    assert place not in locks.held()
