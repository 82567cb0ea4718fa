"""A real process, a real kill -9, at moments nobody chose."""

import os
import random
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest

import mfpo.errors

ROUNDS, KILLS = 100, 3


def start(command: str, run: Path) -> "subprocess.Popen[str]":
    program = Path(__file__).with_name("fake_engine.py")
    source = str(Path(mfpo.errors.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "JAX_PLATFORMS": "cpu"}
    arguments = [sys.executable, str(program), command, str(run), str(ROUNDS)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kill -9 is a Unix matter")
def test_killed_again_and_again_and_resumed(tmp_path: Path) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    undisturbed = start("train", whole)
    for attempt in range(KILLS):
        with start("resume" if attempt else "train", run) as process:
            assert process.stdout is not None
            list(islice(process.stdout, random.randint(1, 10)))  # it prints every round it has stored
            time.sleep(random.random() * 0.01)
            process.kill()
        assert process.returncode == -signal.SIGKILL
        assert not (run / "summary.json").exists()
    with start("resume", run) as process:
        printed = process.communicate()[0].split()
    assert process.returncode == 0 and printed[-1] == str(ROUNDS) and printed[0] != "1"
    assert undisturbed.communicate()[0].split() == [str(number) for number in range(1, ROUNDS + 1)]
    for name in ("policy.safetensors", "policy.json"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    assert len((run / "metrics.jsonl").read_text().splitlines()) == ROUNDS
    assert not list(run.rglob(".tmp-*"))
