"""What all tests share."""

import ctypes
import gc
import signal
import sys
from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Many tests build the same engine anew; what took long to compile is kept until the session ends.

    Each worker keeps its own: JAX does not expect others to read while it writes.
    """
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.devices()  # starts JAX with one device; else the first test that calls `mfpo` would give it one per core


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """The programs of a file's tests go with them: those of all files together are several GB."""
    yield
    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)(0)


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Where a test runner was started in the background, SIGINT is ignored; in a terminal it is not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
