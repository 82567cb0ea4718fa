import sys

import numpy as np
import pytest

from mfpo.errors import ConfigError, MfpoError, MissingExtra
from mfpo.reporting.video import Film, film_episode, save_film


class Balance:
    """Pushes the cart under the pole; no learning needed."""

    def act(self, obs, *, greedy=False):
        x, x_dot, angle, angle_dot = obs
        return np.int32(angle + 0.5 * angle_dot + 0.05 * x_dot + 0.02 * x > 0)


class Overdo:
    """Asks for more torque than Pendulum has."""

    def act(self, obs, *, greedy=False):
        return np.array([99.0], np.float32)


def small(frames):
    return Film([np.full((20, 31, 3), 10 * i, np.uint8) for i in range(frames)], 50.0, 1.0)


def test_an_episode_is_filmed_from_first_to_last_frame():
    film = film_episode(Balance(), "CartPole-v1", seed=1)
    assert film.episode_return == 500
    assert len(film.frames) == 501
    assert film.frames[0].shape == (400, 600, 3)
    assert film.fps == 50


def test_actions_are_clipped_to_what_the_environment_allows():
    film = film_episode(Overdo(), "Pendulum-v1", seed=0)
    assert len(film.frames) == 201
    assert -2000 < film.episode_return < 0


def test_the_seed_chooses_the_episode():
    first, again, other = (film_episode(Balance(), "CartPole-v1", seed=s).frames[1] for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_gif_holds_the_frames_at_the_right_speed(tmp_path):
    from PIL import Image

    out = save_film(small(12), tmp_path / "episode.gif")
    with Image.open(out) as picture:
        assert picture.n_frames == 12
        assert picture.info["duration"] == 20
        assert picture.size == (31, 20)


def test_an_mp4_is_written_and_no_half_file_is_left(tmp_path):
    out = save_film(small(12), tmp_path / "episode.mp4")
    assert out.read_bytes()[4:8] == b"ftyp"
    assert list(tmp_path.iterdir()) == [out]


def test_bad_requests_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"should end in \.gif or \.mp4"):
        save_film(small(2), tmp_path / "episode.avi")
    with pytest.raises(MfpoError, match="There is no environment called 'Nope-v1'"):
        film_episode(Balance(), "Nope-v1")
    with pytest.raises(MfpoError, match="cannot be written"):
        save_film(small(2), tmp_path / "missing" / "episode.gif")


@pytest.mark.parametrize(
    ("module", "action", "extra"),
    [
        ("gymnasium", lambda path: film_episode(Balance(), "CartPole-v1"), "play"),
        ("PIL", lambda path: save_film(small(2), path / "x.gif"), "play"),
        ("imageio_ffmpeg", lambda path: save_film(small(2), path / "x.mp4"), "mp4"),
    ],
)
def test_without_an_extra_the_install_command_is_given(tmp_path, monkeypatch, module, action, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'mfpo\[{extra}\]'"):
        action(tmp_path)
