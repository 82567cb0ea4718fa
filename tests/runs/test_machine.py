"""How JAX is set up, seen from fresh processes: it can be set up once only."""

import os
import platform
import subprocess
import sys

import pytest

from mfpo.runs import machine

SHOW = (
    "import jax; print(len(jax.devices()), jax.config.jax_compilation_cache_dir, "
    "jax.config.values['jax_cpu_enable_async_dispatch'])"
)
PREPARE = "from mfpo.runs import machine; machine.prepare(); "


def setup(code, tmp_path, **variables):
    """The number of devices, the cache, and whether programs run in other threads than their callers'."""
    unset = ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "JAX_CPU_ENABLE_ASYNC_DISPATCH")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tmp_path), **variables}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    count, cache, elsewhere = result.stdout.split()
    return int(count), cache, elsewhere == "True"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no process affinity")
def test_every_core_the_process_may_use_is_a_device(tmp_path):
    count, cache, elsewhere = setup(PREPARE + SHOW, tmp_path)
    assert count == len(os.sched_getaffinity(0)) and not elsewhere
    assert cache.startswith(str(tmp_path / "mfpo"))
    one = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
    assert setup(one + PREPARE + SHOW, tmp_path)[0] == 1


@pytest.mark.parametrize(
    "variables",
    [{"JAX_NUM_CPU_DEVICES": "3"}, {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}],
    ids=lambda variables: next(iter(variables)),
)
def test_what_the_user_decided_stays(tmp_path, variables):
    others = {"JAX_COMPILATION_CACHE_DIR": "/elsewhere", "JAX_CPU_ENABLE_ASYNC_DISPATCH": "1"}
    assert setup(PREPARE + SHOW, tmp_path, **variables, **others) == (3, "/elsewhere", True)


def test_the_python_interface_uses_every_core_too(tmp_path):
    train = "mfpo.train('CartPole-v1', agents=2, rounds=1, local_steps=1, trajectories=2, evaluation_episodes=2, "
    two = "import os; os.sched_getaffinity = lambda _: {0, 1}; import mfpo; "
    run = two + train + f"baseline='none', step='plain', out={str(tmp_path / 'run')!r}); "
    assert setup(run + SHOW, tmp_path)[0] == 2
    assert "devices = 2" in (tmp_path / "run" / "config.toml").read_text()
    for again in ("resume", "evaluate"):
        assert setup(two + f"mfpo.{again}({str(tmp_path / 'run')!r}); " + SHOW, tmp_path)[0] == 2


def test_a_program_that_has_started_jax_keeps_its_devices(tmp_path):
    late = "import jax; jax.config.update('jax_num_cpu_devices', 1); jax.devices(); " + PREPARE
    assert setup(late + SHOW, tmp_path)[0] == 1


def test_the_cache_is_kept_per_kind_of_processor(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = machine.cache_folder()
    monkeypatch.setattr(machine, "_processor", lambda: "another")
    assert here.parent == machine.cache_folder().parent
    assert here != machine.cache_folder()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_memory_is_used_again_for_games(tmp_path):
    games = "from mfpo.runs import machine; machine.prepare('ALE/Pong-v5'); "
    work = (
        "import resource; "
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt; "
        "use = lambda: b'x' * 2**26; "  # 64 MB, 16,384 pages
        "use(); before = faults(); all(use() for _ in range(5)); print(faults() - before, 'x', False)"
    )
    assert setup(games + work, tmp_path)[0] < 5_000
    assert setup(games + work, tmp_path, MALLOC_TRIM_THRESHOLD_="131072")[0] > 5_000  # what the user decided stays
    assert setup(PREPARE + work, tmp_path)[0] > 5_000
