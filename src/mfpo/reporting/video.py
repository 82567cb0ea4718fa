"""An episode of a learnt policy, filmed through Gymnasium: GIF (Pillow) or MP4 (ffmpeg)."""

import importlib.util
import io
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mfpo import envs
from mfpo.blocks import Block
from mfpo.envs.gymnasium_env import Copy, make_copy
from mfpo.envs.mujoco import TASKS, silence
from mfpo.errors import ConfigError, MfpoError, MissingExtra, RunError
from mfpo.runs import files

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


def film_episode(actor: Actor, env: str, seed: int = 0, greedy: bool = False, horizon: int = 0) -> Film:
    """One episode of `env`, a Gymnasium id or package.module:EnvId, cut after `horizon` steps. Needs no display."""
    if env.startswith("ALE/"):
        return _film_frames(actor, env, seed, greedy)
    copy = _make(env, horizon)
    world = copy.env
    try:
        obs, _ = world.reset(seed=seed)
        frames, total, done = [world.render()], 0.0, False
        while not done:
            action = np.asarray(actor.act(copy.encode(obs), greedy=greedy))
            obs, reward, terminated, truncated, _ = world.step(copy.decode(action))
            frames.append(world.render())
            total += float(reward)
            done = terminated or truncated
        return Film(frames, float(world.metadata.get("render_fps", 30)), total)
    finally:
        world.close()


def _film_frames(actor: Actor, name: str, seed: int, greedy: bool) -> Film:
    """A game as the policy sees it: its frames, four times as large."""
    env: Any = envs.make(name)
    copies = env.open([{}])
    try:
        block, here = Block(env, copies, (0,), 1), np.ones((1, 1), bool)
        block.reset(here, np.array([[seed]], np.uint64) << np.uint64(33))
        frames, over, score = [_large(block.now[0, 0, -1])], False, np.zeros((1, 1))
        while not over:
            action = np.asarray(actor.act(block.now[0, 0], greedy=greedy))
            _, terminated, truncated, score = block.step(here, action[None, None])
            frames.append(_large(block.now[0, 0, -1]))
            over = bool(terminated[0, 0] or truncated[0, 0])
        return Film(frames, 15.0, float(score[0, 0]))
    finally:
        copies.close()


def _large(frame: Frame) -> Frame:
    return np.repeat(frame.repeat(4, axis=0).repeat(4, axis=1)[:, :, None], 3, axis=2)


def _make(env: str, horizon: int) -> Copy:
    # Must be set before these are imported: draw into memory if there is no screen, and print no greeting.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        import gymnasium
    except ImportError:
        raise MissingExtra("`mfpo play`", "play") from None
    if importlib.util.find_spec("mujoco"):
        silence()
    runs = env in TASKS and TASKS[env].hidden  # along a track, and out of the picture
    copy = make_copy(env, horizon, render_mode="rgb_array", **({"camera_name": "track"} if runs else {}))
    try:
        copy.env.reset(seed=0)
        copy.env.render()
    except gymnasium.error.DependencyNotInstalled:
        raise MissingExtra(f"drawing {env}", "play") from None
    except gymnasium.error.Error as error:
        raise MfpoError(f"Gymnasium cannot draw {env}: {error}") from None
    return copy


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
