"""A federation that needs no compiling: its state is a fixed function of the round. Also a program, to be killed.

python fake_engine.py train|resume RUN ROUNDS
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfpo import algorithms, federation
from mfpo.config import option, validate
from mfpo.errors import UnknownName
from mfpo.federation import Engine, RoundLog, State
from mfpo.types import Algorithm, Discrete, EnvSpec, Plan

STEPS, EPISODES = 2, 3


@dataclass(frozen=True)
class Config:
    stepsize: float = option(0.1, "length of a step", above=0)
    cap: float = option(float("inf"), "upper bound", above=0)
    hidden: tuple[int, ...] = option((4, 3), "hidden units", least=1)
    rule: str = option("plain", "a choice", choices=("plain", "other"))

    def __post_init__(self) -> None:
        validate(self)


class Server(NamedTuple):
    theta: Any
    t: Any


def make_algorithm(name: str, config: Config, spec: EnvSpec, agents: int) -> Algorithm:
    config_class(name)
    assert isinstance(spec.action, Discrete)
    shape = (*spec.observation_shape, spec.action.n)

    def unused(*_: Any) -> Any:
        raise NotImplementedError

    return Algorithm(
        plan=Plan(STEPS, EPISODES),
        init=lambda key: Server({"w": jnp.full(shape, config.stepsize), "b": jnp.zeros(shape[-1])}, jnp.int32(0)),
        join=unused,
        download=unused,
        receive=unused,
        actor=lambda server: server.theta,
        act=lambda params, obs, key: (jax.random.categorical(key, obs @ params["w"] + params["b"]), jnp.zeros(())),
        greedy=lambda params, obs: jnp.argmax(obs @ params["w"] + params["b"]),
        learn=unused,
        upload=unused,
        merge=unused,
    )


def make_engine(
    name: str, algorithm: Algorithm, env: Any, agents: int, seed: int, devices: int, faults: Any = None
) -> Engine:
    def start() -> State:
        return State(
            algorithm.init(jax.random.key(seed)), {"u": jnp.zeros((agents, 3)), "seen": jnp.zeros(agents, bool)}
        )

    def round_(state: State, number: int) -> tuple[State, RoundLog]:
        time.sleep(pause)
        u = np.sin(np.asarray(state.agents["u"]) + np.float32(number + seed))
        w = np.cos(np.asarray(state.server.theta["w"]) * np.float32(1.7) + u.mean())
        theta = {"w": jnp.asarray(w), "b": state.server.theta["b"] + number}
        log = RoundLog(
            returns=np.arange(STEPS * agents * EPISODES, dtype=np.float32).reshape(STEPS, agents, EPISODES) + number,
            lengths=np.full((STEPS, agents, EPISODES), number),
            learn={
                "direction_norm": np.full((STEPS, agents), 2.0 * number),
                "weight_max": np.full((STEPS, agents), np.inf),
            },
            worked=agents,
            answered=agents,
            merge={"drift": 0.5, "direction_norm": 7.0},
        )
        return State(Server(theta, state.server.t + 1), {"u": jnp.asarray(u), "seen": ~state.agents["seen"]}), log

    return Engine(devices=1, bytes_up=100, bytes_down=10, start=start, round=round_)


pause = 0.0  # seconds a round takes


def evaluate(
    algorithm: Any, env: Any, params: Any, seed: int, episodes: int, greedy: bool = False, agent: int = 0
) -> np.ndarray:
    return np.arange(episodes, dtype=np.float32) + np.float32(params["b"][0]) + seed + 1000 * greedy


def config_class(name: str) -> type[Any]:
    if name != "fake":
        raise UnknownName(f"There is no algorithm called {name!r}.")
    return Config


def install(put: Callable[[object, str, Any], None]) -> None:
    put(algorithms, "make", make_algorithm)
    put(algorithms, "config_class", config_class)
    put(federation, "make_engine", make_engine)
    put(federation, "make_engine_on", lambda device, *rest: make_engine("inprocess", *rest[:4], 1, *rest[4:]))
    put(federation, "evaluate", evaluate)


def main(command: str, path: str, rounds: str) -> None:
    global pause
    from mfpo.runs import training
    from mfpo.runs.settings import resolve_options

    install(setattr)
    pause = 0.002

    def tell(row: dict[str, Any]) -> None:
        print(row["round"], flush=True)

    if command == "resume":
        training.resume(path, callback=tell, notice=print)
    else:
        settings, config = resolve_options(
            {"env": "CartPole-v1", "algorithm": "fake", "agents": 3, "rounds": int(rounds)}
        )
        training.train(settings, config, path, callback=tell)


if __name__ == "__main__":
    main(*sys.argv[1:])
