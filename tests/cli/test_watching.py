import json
import re
import signal
import subprocess
import sys
import urllib.request

import pytest


def test_bad_input_is_one_sentence(mfpo, tmp_path):
    for arguments, sentence in [
        ((tmp_path / "nothing",), "nothing does not exist; give a run directory, a folder of runs, or the folder"),
        ((tmp_path, "--port", "x"), "--port: 'x' is not a whole number."),
        ((tmp_path, "--port", "99999"), "--port is 99999, but ports are 1 to 65535; 0 takes a free one."),
        ((tmp_path, "--prot", "1"), "There is no option --prot of `mfpo watch`. Did you mean --port or --host?"),
        ((), "`mfpo watch` needs RUN|DIR; see `mfpo watch --help`."),
    ]:
        code, out, err = mfpo("watch", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert sentence in err


def test_help_ends_with_examples(mfpo):
    code, out, _ = mfpo("watch", "--help")
    assert code == 0 and "  mfpo watch runs" in out[out.index("examples:") :]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_it_says_where_it_is_and_ends_cleanly(program, tmp_path, name):
    process = program("watch", tmp_path, "--port", "0")
    try:
        line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert address, line + process.stderr.read()
        with urllib.request.urlopen(f"{address[0]}api/runs", timeout=20) as answer:
            assert json.loads(answer.read())["runs"] == []
        process.send_signal(getattr(signal, name))
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 128 + getattr(signal, name)
    assert (out, err) == ("", f"mfpo: no runs in {tmp_path} yet; they are shown as they appear.\n")


def test_a_watcher_in_the_background_of_a_script_ends_too(tmp_path):
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); from mfpo.cli import main; "
        "code = main(sys.argv[1:]); assert 'jax' not in sys.modules; sys.exit(code)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "watch", str(tmp_path), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert "watching" in process.stdout.readline()
        process.terminate()
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 143, err
