"""The command line, called in this process (fast) or as a program of its own (whatever trains or is interrupted)."""

import os
import subprocess
import sys

import pytest

from mfpo.cli import main

# The smallest run there is: seconds to compile, nothing to learn.
TINY = (
    "--agents 2 --rounds 2 --local-steps 1 --trajectories 2 --hidden 4 --step plain --stepsize 0.01 --baseline none "
    "--no-normalise-observations --evaluation-episodes 3"
).split()

# Whoever starts this may ignore SIGINT; in a terminal nobody does.
PROGRAM = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from mfpo.cli import main; sys.exit(main())"
)


@pytest.fixture
def mfpo(capsys, monkeypatch):
    """Call `main` with arguments; the exit code, stdout and stderr. JAX keeps the devices this process has."""
    monkeypatch.setattr("mfpo.runs.machine.prepare", lambda env="": None)

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def no_training(monkeypatch):
    """Training is refused: for input that must not come so far."""

    def refuse(*args, **options):
        raise AssertionError("bad input reached the training")

    monkeypatch.setattr("mfpo.runs.training._go_on", refuse)


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """Start `mfpo` with arguments. Compiled programs are kept for the session, away from the user's cache."""
    cache = tmp_path_factory.mktemp("compiled")

    def start(*arguments, **options):
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache), "PYTHONWARNINGS": "error"}
        environment |= options.pop("env", {})
        command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8"}
        return subprocess.Popen(command, env=environment, **pipes, **options)

    return start


@pytest.fixture(scope="session")
def trained(program, tmp_path_factory):
    """A finished tiny run: its directory, stdout and stderr."""
    path = tmp_path_factory.mktemp("trained") / "run"
    process = program("train", "CartPole-v1", *TINY, "--out", path, "--tensorboard")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return path, out, err
