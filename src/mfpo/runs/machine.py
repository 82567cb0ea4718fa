"""How JAX uses this machine: every core, and programs it has compiled before. What the user decided stays.

All must be said before JAX starts its backends; a program that calls us may be past that, and keeps what it has.
"""

import ctypes
import hashlib
import os
import platform
import warnings
from pathlib import Path

REUSED = 2**28  # bytes
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def prepare(env: str = "") -> None:
    """Make every core this process may use a JAX device, and keep compiled programs for the next run of `env`.

    A program runs in the thread that calls it: the threads that step environments would else compete with as many of
    JAX's, and sampling from MuJoCo takes a quarter longer.
    """
    import jax

    if env.startswith("ALE/"):
        _reuse_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if "JAX_NUM_CPU_DEVICES" not in os.environ and "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        try:
            jax.config.update("jax_num_cpu_devices", cores)  # type: ignore[no-untyped-call]
        except RuntimeError:
            return
    if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
        jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder()))  # type: ignore[no-untyped-call]
        # a cache that cannot be read or written (a full disk) costs time, not results
        warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache")


def _reuse_memory() -> None:
    """Have glibc keep what a program works in for its next call, where it would give back blocks of 32 MB and more.

    The system clears every page that it hands out: learning from frames took a tenth longer. Replays are larger than
    what is kept. Only for frames: sampling from 200 HalfCheetahs takes 6% longer with it (in turns, two runs each).
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return
    if mallopt(M_MMAP_THRESHOLD, REUSED):
        mallopt(M_TRIM_THRESHOLD, REUSED)


def cache_folder() -> Path:
    """Where compiled programs are kept. One folder per kind of processor: a home directory may be shared by several."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "mfpo" / "compiled" / f"{platform.machine()}-{_processor()}"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
        features = sorted({line for line in text.splitlines() if line.startswith(("model name", "flags", "Features"))})
    except OSError:
        features = [platform.processor()]
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:12]
