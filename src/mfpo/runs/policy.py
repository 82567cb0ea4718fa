"""A learnt policy, on its own: acts without the environment, the engine or the training code."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfpo import algorithms
from mfpo.config import as_dict, build
from mfpo.envs import gymnasium_env
from mfpo.errors import MfpoError, RunError
from mfpo.runs import directory, files, tensors
from mfpo.types import Algorithm, Box, Discrete, EnvSpec, Key, MultiDiscrete, PyTree

FORMAT = 1
WEIGHTS, DESCRIPTION = "policy.safetensors", "policy.json"


class Origin(NamedTuple):
    """What it takes to build the algorithm again that a policy came from; the environment itself is not needed."""

    algorithm: str
    config: Any  # the algorithm's Config
    spec: EnvSpec
    agents: int


class Policy:
    """What was learnt: observations in, actions out.

    Acting is random unless `greedy`. Calls without a key draw from `seed` and the number of calls so far: they differ
    from each other, and the same program gets the same actions again.
    """

    def __init__(self, origin: Origin, algorithm: Algorithm, params: PyTree, seed: int = 0) -> None:
        self.origin, self.spec, self.algorithm, self.params = origin, origin.spec, algorithm, params

        def act(params: PyTree, obs: jax.Array, key: Key) -> jax.Array:
            return algorithm.act(params, obs, key)[0]

        self._act = jax.jit(act)
        self._act_batch = jax.jit(jax.vmap(act, in_axes=(None, 0, 0)))
        self._greedy = jax.jit(algorithm.greedy)
        self._greedy_batch = jax.jit(jax.vmap(algorithm.greedy, in_axes=(None, 0)))
        self._key, self._calls = jax.random.key(seed), 0

    def act(self, obs: Any, *, greedy: bool = False, key: Key | int | None = None) -> np.ndarray:
        """The action for one observation, or one per row of a batch. `key` (a JAX key or a number) fixes the draw."""
        seen, single = self._seen(obs)
        if greedy:
            return np.asarray((self._greedy if single else self._greedy_batch)(self.params, jnp.asarray(seen)))
        key = self._draw_key(key)
        if single:
            return np.asarray(self._act(self.params, jnp.asarray(seen), key))
        return np.asarray(self._act_batch(self.params, jnp.asarray(seen), jax.random.split(key, len(seen))))

    def on(self, env: Any) -> Callable[..., Any]:
        """How to act in this Gymnasium environment: a function from its observations to its actions, options as `act`.

        Training flattens observations and numbers actions from zero; this translates, whatever the spaces are.
        """
        name = getattr(getattr(env, "spec", None), "id", type(env).__name__)
        copy = gymnasium_env.understand(name, env, self.spec.horizon)
        encode: Callable[[Any], Any]
        if self.spec.stack:  # frames are seen as they are
            shape = env.observation_space.shape
            if shape != self.spec.observation_shape:
                raise MfpoError(
                    f"The policy of {self.spec.id} sees frames of shape {self.spec.observation_shape}, but this "
                    f"environment shows {shape}. Make it with frameskip=1, and wrap it in AtariPreprocessing and "
                    f"FrameStackObservation(..., {self.spec.stack}) of gymnasium.wrappers."
                )
            encode, spec = np.asarray, copy.spec._replace(observation_shape=shape)
        else:
            encode, spec = copy.encode, copy.spec
        check_fit(self.spec, spec)
        return lambda observation, **options: copy.decode(self.act(encode(observation), **options))

    def _seen(self, obs: Any) -> tuple[np.ndarray, bool]:
        """The observations as networks take them, and whether it is one alone."""
        shape = self.spec.observation_shape
        try:
            seen = np.asarray(obs).astype(np.uint8 if self.spec.stack else np.float32)  # frames are bytes
        except (TypeError, ValueError):
            seen = np.zeros(0)
        single = seen.shape == shape
        if not single and seen.shape[1:] != shape:
            raise MfpoError(
                f"The policy of {self.spec.id} takes observations of shape {shape}, alone or with a batch axis in "
                f"front; it was given {np.shape(seen) if seen.size else type(obs).__name__}. For the observations of a "
                "Gymnasium environment as they are, use policy.on(env)."
            )
        if not self.spec.stack and not np.isfinite(seen).all():
            raise MfpoError(f"The policy of {self.spec.id} was given an observation that is not finite.")
        return seen, single

    def _draw_key(self, key: Key | int | None) -> Key:
        if key is None:
            self._calls += 1
            return jax.random.fold_in(self._key, self._calls)
        return jax.random.key(key) if isinstance(key, int | np.integer) else key


def check_fit(learnt: EnvSpec, now: EnvSpec) -> None:
    """Raise a `RunError` unless a policy that was learnt for one environment can act in the other."""
    for what, before, after in (
        ("observations of shape", learnt.observation_shape, now.observation_shape),
        ("the actions", learnt.action, now.action),
    ):
        if before != after:
            raise RunError(
                f"The environment {now.id} has {what} {after}, but the policy was learnt for {before}: it is not what "
                "it was. Bring back that version, or train again."
            )


def save_policy(folder: Path, policy: Policy) -> None:
    """Write both files of a policy. The bytes depend on the policy alone: equal policies, equal files."""
    origin = policy.origin
    description = {
        "format": FORMAT,
        "algorithm": origin.algorithm,
        "config": as_dict(origin.config),
        "agents": origin.agents,
        "env": _spec_to_plain(origin.spec),
    }
    files.replace(folder / WEIGHTS, *tensors.pack(policy.params, {"format": FORMAT}))
    files.replace(folder / DESCRIPTION, json.dumps(_write_infinite(description), indent=2, allow_nan=False).encode())


def load_policy(path: str | os.PathLike[str], seed: int = 0) -> Policy:
    """The policy of a run directory, or of a policy.safetensors with its policy.json beside it."""
    weights, again = Path(path), ""
    if os.path.isdir(weights):  # unlike the methods of Path, these never raise
        if os.path.isfile(weights / directory.CONFIG):
            again = f"; it is written again by: {files.resume_command(weights)}"
        weights /= WEIGHTS
    description = weights.with_suffix(".json")
    try:
        named, _ = tensors.unpack(weights.read_bytes())
        values = _read_infinite(json.loads(description.read_text("utf-8")))
    except FileNotFoundError as error:
        advice = again or "; a policy is two files, .safetensors and .json."
        raise RunError(f"There is no file {error.filename}{advice}") from error
    except OSError as error:
        raise RunError(f"Cannot read the policy {weights}: {files.reason(error)}.") from error
    except tensors.Damaged as damage:
        raise RunError(f"The policy {weights} {damage}{again or '.'}") from damage
    except ValueError as error:
        raise RunError(f"{description} is not valid JSON, so the policy beside it cannot be used.") from error
    return _rebuild(values, named, weights, description, seed)


def _rebuild(values: Any, named: dict[str, np.ndarray], weights: Path, description: Path, seed: int) -> Policy:
    found = values.get("format") if isinstance(values, dict) else None
    if found != FORMAT:
        raise RunError(f"{description} has policy format {found}, but this version of mfpo reads format {FORMAT}.")
    try:
        name = values["algorithm"]
        config = build(algorithms.config_class(name), values["config"], str(description))
        origin = Origin(name, config, _spec_from_plain(values["env"]), values["agents"])
        algorithm = algorithms.make(*origin)
        # only shapes are worked out here; no weights are drawn
        template = jax.eval_shape(lambda: algorithm.actor(algorithm.init(jax.random.key(0))))
        return Policy(origin, algorithm, tensors.fill(template, named), seed)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{description} is incomplete or has values of the wrong kind ({error}).") from error
    except MfpoError as error:
        raise RunError(f"{description} cannot be used: {error}") from error
    except tensors.Mismatch as mismatch:
        raise RunError(f"The policy {weights} {mismatch}: it does not belong to {description}.") from mismatch


def _spec_to_plain(spec: EnvSpec) -> dict[str, Any]:
    action = {name: list(x) if isinstance(x, tuple) else x for name, x in spec.action._asdict().items()}
    return {
        "id": spec.id,
        "observation_shape": list(spec.observation_shape),
        "action": action,
        "horizon": spec.horizon,
        "stack": spec.stack,
    }


def _spec_from_plain(values: dict[str, Any]) -> EnvSpec:
    action = {name: tuple(x) if isinstance(x, list) else x for name, x in values["action"].items()}
    kind: Any = Box if "low" in action else MultiDiscrete if isinstance(action["n"], tuple) else Discrete
    return EnvSpec(
        id=values["id"],
        observation_shape=tuple(values["observation_shape"]),
        action=kind(**action),
        horizon=values["horizon"],
        stack=values.get("stack", 0),
    )


def _write_infinite(value: Any) -> Any:
    """JSON has no infinite numbers, settings and action bounds do: they are written as "inf" and "-inf"."""
    if isinstance(value, dict):
        return {name: _write_infinite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_write_infinite(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _read_infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _read_infinite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_read_infinite(item) for item in value]
    return float(value) if value in ("inf", "-inf") else value
