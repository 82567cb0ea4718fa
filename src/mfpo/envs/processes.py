"""Copies of an environment in a process of their own, for environments that hold Python's lock while they step.

The process is started anew, not forked, as JAX has threads. It takes a call from its standard input and writes the
result to its standard output; what environments print goes to standard error. It ends when its input does, so it does
not outlive the process it works for, however that ends.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mfpo.envs import gymnasium_env
from mfpo.errors import ConfigError, CopyFailed, MfpoError, StepFailed, UnknownName
from mfpo.types import HostedEnv, Outcome, World

PATIENCE = 5.0  # seconds for environments to close


def in_processes(env: HostedEnv, horizon: int, world: World, processes: int) -> HostedEnv:
    """The Gymnasium environment, which `gymnasium_env` made for this horizon and world, stepped by other processes."""
    running: weakref.WeakSet[Remote] = weakref.WeakSet()
    changing = threading.Lock()

    def open_(worlds: Sequence[World], learning: bool = False, together: bool = False) -> Remote:
        remote = Remote()
        with changing:
            running.add(remote)  # before it opens anything, which may take for ever
        remote.open(env.spec.id, horizon, world, worlds)
        return remote

    def stop() -> None:
        with changing:
            now = list(running)
        with ThreadPoolExecutor() as closing:
            list(closing.map(Remote.close, now))

    return env._replace(open=open_, processes=processes, stop=stop)


class Remote:
    """`Copies` in a process of their own."""

    def __init__(self) -> None:
        path = [entry for entry in sys.path if isinstance(entry, str)]  # Python itself looks at no others
        code = f"import sys; sys.path[:] = {path!r}; from mfpo.envs import processes; processes.serve()"
        self._busy = False  # somebody waits for an answer
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us to handle
            )
        except OSError as error:
            raise StepFailed(f"No process could be started to step environments: {error}") from error

    def open(self, name: str, horizon: int, world: World, worlds: Sequence[World]) -> None:
        """Make a copy for each of the worlds of the environment, which is known as that of this horizon and world."""
        try:
            self._call(0, name, horizon, dict(world), [dict(each) for each in worlds])
        except CopyFailed as error:
            self.close()
            raise StepFailed(f"The environment {name} could not be opened in a process of its own: {error}") from error
        except MfpoError as error:
            self.close()
            if not isinstance(error, UnknownName):
                raise
            raise ConfigError(
                f"--processes was given, but {name} is only registered in this process. Register it in a module and "
                "name that too, as in package.module:EnvId, or leave --processes out."
            ) from error

    def reset(self, which: NDArray[np.intp], seeds: NDArray[np.uint64] | None) -> NDArray[np.float32]:
        """As `Copies.reset`."""
        shown: NDArray[np.float32] = self._call(int(which[0]), "reset", which, seeds)
        return shown

    def step(self, which: NDArray[np.intp], action: NDArray[Any]) -> Outcome:
        """As `Copies.step`."""
        outcome: Outcome = self._call(int(which[0]), "step", which, action)
        return outcome

    def close(self) -> None:
        """Let the process end by itself, and end it if it does not. A call that another thread waits for fails."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(OSError):  # a request that nobody reads
            self._process.stdin.close()
        if not self._busy:
            self._process.stdout.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()

    def _call(self, first: int, *request: Any) -> Any:
        """What it answers. If it ends instead, the `first` of the copies meant is said to have failed."""
        try:
            answer = self._ask(request)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:  # ValueError: it has been closed
            self.close()
            ending = _ending(self._process.returncode)
            raise CopyFailed(first, f"the process that steps it ended: {ending}") from error
        except BaseException:
            self.close()  # an answer that nobody took would pass for the next one
            raise
        if isinstance(answer, MfpoError):
            raise answer
        return answer

    def _ask(self, request: Any) -> Any:
        assert self._process.stdin and self._process.stdout
        self._busy = True
        try:
            pickle.dump(request, self._process.stdin)
            self._process.stdin.flush()
            return pickle.load(self._process.stdout)
        finally:
            self._busy = False


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"signal {-code} ({signal.Signals(-code).name})"


def serve() -> None:
    """What the process does."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    copies: Any = None
    try:
        while True:
            try:
                request = pickle.load(requests)
            except (EOFError, OSError, pickle.UnpicklingError):  # a request may have been cut off
                return
            try:
                if copies is None:
                    name, horizon, world, worlds = request
                    copies = gymnasium_env.make(name, horizon, world).open(worlds)
                    answer = None
                else:
                    method, *given = request
                    answer = getattr(copies, method)(*given)
            except MfpoError as error:
                answer = error
            except BaseException as error:  # what is none of ours is the environment's, interrupts included
                answer = CopyFailed(int(request[1][0]) if copies else 0, f"{type(error).__name__}: {error}")
            try:
                pickle.dump(answer, answers)
                answers.flush()
            except OSError:  # nobody reads it
                return
    finally:
        if copies is not None:
            copies.close()
