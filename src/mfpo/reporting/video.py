"""An episode of a learnt policy, filmed through Gymnasium: GIF (Pillow) or MP4 (ffmpeg)."""

import contextlib
import importlib.util
import io
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mfpo import envs
from mfpo.blocks import Block
from mfpo.envs import gymnasium_env, worlds
from mfpo.envs.mujoco import TASKS, silence
from mfpo.envs.place import elsewhere
from mfpo.errors import ConfigError, MissingExtra, RunError, StepFailed
from mfpo.runs import directory, files
from mfpo.types import Copies, HostedEnv, World

FORMATS = (".gif", ".mp4")
Frame = NDArray[np.uint8]


class Actor(Protocol):
    """What is filmed; `mfpo.load_policy` returns one."""

    def act(self, obs: Any, *, greedy: bool = False) -> Any:
        """The action for an observation."""


class Film(NamedTuple):
    """A whole episode."""

    frames: list[Frame]
    fps: float
    episode_return: float


class _Stage(NamedTuple):
    """One copy of an environment, and how it is drawn."""

    env: HostedEnv
    copies: Copies
    draw: Callable[[], Any]  # as it is now
    fps: float


def world_of(place: Path, agent: int = 0) -> dict[str, Any]:
    """The world of an agent of the run that a policy lies in; the usual one if there is no run around it."""
    folder = place if place.is_dir() else place.parent
    if not (folder / directory.CONFIG).exists():
        return {}
    settings, _ = directory.read_config(folder)
    if not 0 <= agent < settings.agents:
        raise ConfigError(f"--agent is {agent}, but the run {folder} has the agents 0 to {settings.agents - 1}.")
    each = worlds.parse(settings.world, settings.agents)
    return dict(each[agent]) if each else {}


def film_episode(
    actor: Actor,
    env: str,
    seed: int = 0,
    greedy: bool = False,
    horizon: int = 0,
    world: World | None = None,
    agent: int = 0,
) -> Film:
    """One episode of `env`, a Gymnasium id or package.module:EnvId, cut after `horizon` steps. Needs no display.

    `world` has the parameters that differ from the usual ones; failures are told as those of `agent`, whose it is.
    """
    enter = _game if env.startswith("ALE/") else _physics if env in TASKS else _gymnasium
    with enter(env, horizon, world or {}) as stage:
        block, here = Block(stage.env, stage.copies, (agent,), 1), np.ones((1, 1), bool)
        unused = 33 if stage.env.spec.stack else 0  # a game takes the highest bits of a seed alone
        block.reset(here, np.array([[seed]], np.uint64) << np.uint64(unused))
        frames, over, score = [_frame(env, stage.draw)], False, np.zeros((1, 1))
        while not over:
            action = np.asarray(actor.act(block.now[0, 0], greedy=greedy))
            _, terminated, truncated, score = block.step(here, action[None, None])
            frames.append(_frame(env, stage.draw))
            over = bool(terminated[0, 0] or truncated[0, 0])
        return Film(frames, stage.fps, float(score[0, 0]))


@contextlib.contextmanager
def _game(name: str, horizon: int, world: World) -> Iterator[_Stage]:
    """A game as the policy sees it: its frames, four times as large."""
    env: Any = envs.make(name, horizon)
    with contextlib.closing(env.open([world])) as copies:
        yield _Stage(env, copies, lambda: _large(copies.frames[0]), 15.0)


def _large(frame: Frame) -> Frame:
    return np.repeat(frame.repeat(4, axis=0).repeat(4, axis=1)[:, :, None], 3, axis=2)


@contextlib.contextmanager
def _physics(name: str, horizon: int, world: World) -> Iterator[_Stage]:
    """Our simulation; Gymnasium's, which does not know our worlds, is put into the same state and drawn."""
    _prepare()
    env: Any = envs.make(name, horizon)
    camera = {"camera_name": "track"} if TASKS[name].hidden else {}  # else it runs out of the picture
    canvases: Any = gymnasium_env.make(name).open([{"render_mode": "rgb_array", **camera}])
    with contextlib.closing(env.open([world])) as copies, contextlib.closing(canvases):
        canvas = canvases.inner(0).unwrapped

        def draw() -> Any:
            canvas.set_state(copies.qpos[0], copies.qvel[0])
            return canvas.render()

        yield _Stage(env, copies, draw, float(canvas.metadata["render_fps"]))


@contextlib.contextmanager
def _gymnasium(name: str, horizon: int, world: World) -> Iterator[_Stage]:
    """Gymnasium's environment, which takes the world as arguments or, if it is one of ours too, as attributes."""
    _prepare()
    ours = name in envs.list_environments()
    arguments: dict[str, Any] = {} if ours else dict(world)
    env = gymnasium_env.make(name, horizon, arguments)  # not drawn yet: tells all that is wrong with it otherwise
    try:
        copies: Any = env.open([{**arguments, "render_mode": "rgb_array"}])
    except ConfigError as error:
        if isinstance(error.__cause__, TypeError):
            raise _not_drawn(name) from error
        raise
    with contextlib.closing(copies):
        inner = copies.inner(0)
        if ours:
            _move(inner.unwrapped, world)
        fps = inner.metadata.get("render_fps")
        yield _Stage(
            env, copies, inner.render, float(fps) if isinstance(fps, int | float | np.number) and fps > 0 else 30.0
        )


def _move(env: Any, world: World) -> None:
    """Into a world of ours, whose parameters have the names of Gymnasium's attributes."""
    for name, value in world.items():
        setattr(env, name, value)
    if hasattr(env, "polemass_length"):  # CartPole keeps what follows from them
        env.total_mass, env.polemass_length = env.masspole + env.masscart, env.masspole * env.length


def _prepare() -> None:
    # Must be set before these are imported: draw into memory if there is no screen, and print no greeting.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        import gymnasium  # noqa: F401
    except ImportError:
        raise MissingExtra("`mfpo play`", "play") from None
    if importlib.util.find_spec("mujoco"):
        silence()


def _frame(name: str, draw: Callable[[], Any]) -> Frame:
    from gymnasium.error import DependencyNotInstalled

    try:
        with elsewhere:
            drawn = draw()
        frame = np.array(drawn)  # a copy, for an environment may draw all its pictures into one array
    except DependencyNotInstalled:
        raise MissingExtra(f"drawing {name}", "play") from None
    except NotImplementedError as error:
        raise _not_drawn(name) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise StepFailed(f"The environment {name} cannot be drawn: {type(error).__name__}: {error}") from error
    if drawn is None:
        raise _not_drawn(name)
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or not frame.size:
        raise ConfigError(
            f"The environment {name} cannot be filmed: its render() returns {frame.dtype} of shape {frame.shape}, but "
            "it should return a picture, an array of uint8 of shape (height, width, 3)."
        )
    return frame


def _not_drawn(name: str) -> ConfigError:
    return ConfigError(
        f"The environment {name} cannot be filmed: it has no render mode 'rgb_array'. Implement render(), list "
        "'rgb_array' in metadata['render_modes'], and let the constructor take render_mode."
    )


def check_format(out: str | Path) -> Path:
    """`out`, if its suffix is that of a film: better asked before an episode than after."""
    if Path(out).suffix.lower() not in FORMATS:
        raise ConfigError(f"{out} should end in .gif or .mp4; the suffix chooses the format.")
    return Path(out)


def save_film(film: Film, out: str | Path) -> Path:
    """Write a film."""
    out = check_format(out)
    try:
        if out.suffix.lower() == ".gif":
            files.replace(out, _gif(film))
        else:
            _write_mp4(film, out)
    except OSError as error:
        raise RunError(f"The film {out} cannot be written: {files.reason(error)}.") from None
    return out


def _gif(film: Film) -> bytes:
    """One palette for all frames, taken from nine of them: it does not flicker, and it keeps the file small."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("a GIF", "play") from None
    # Browsers show frames of less than 20 ms slowly, and a GIF counts in steps of 10 ms.
    every = max(1, round(film.fps * 0.02))
    delay = max(20, round(100 * every / film.fps) * 10)
    chosen = film.frames[:: max(1, len(film.frames) // 8)]
    palette = Image.fromarray(np.concatenate([frame[::2, ::2] for frame in chosen])).quantize(128)
    images = [
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE) for frame in film.frames[::every]
    ]
    drawn = io.BytesIO()
    images[0].save(drawn, "GIF", save_all=True, append_images=images[1:], duration=delay, loop=0, optimize=False)
    return drawn.getvalue()


def _write_mp4(film: Film, out: Path) -> None:
    try:
        import imageio_ffmpeg
    except ImportError:
        raise MissingExtra("an MP4 (a GIF needs less)", "mp4") from None
    height, width = film.frames[0].shape[:2]
    even = (width - width % 2, height - height % 2)  # the codec halves both sides
    temporary = out.with_name(f"{files.TEMPORARY}{out.name}")
    try:
        writer = imageio_ffmpeg.write_frames(str(temporary), even, fps=film.fps, macro_block_size=2, quality=7)
        with warnings.catch_warnings():  # JAX warns of fork; ffmpeg is a program of its own and touches none of it
            warnings.filterwarnings("ignore", message=r"os\.fork\(\)", category=RuntimeWarning)
            writer.send(None)
        for frame in _cropped(film.frames, *even):
            writer.send(frame)
        writer.close()
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)


def _cropped(frames: list[Frame], width: int, height: int) -> Iterator[bytes]:
    for frame in frames:
        yield np.ascontiguousarray(frame[:height, :width]).tobytes()
