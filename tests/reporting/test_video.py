import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from mfpo import algorithms
from mfpo.cli import main
from mfpo.envs import mujoco
from mfpo.errors import ConfigError, MfpoError, MissingExtra, StepFailed
from mfpo.reporting.video import Film, film_episode, save_film, world_of
from mfpo.runs import directory
from mfpo.runs.building import make_env
from mfpo.runs.policy import Origin, Policy, save_policy
from mfpo.runs.settings import resolve


class Balance:
    """Pushes the cart under the pole; no learning needed."""

    def act(self, obs, *, greedy=False):
        x, x_dot, angle, angle_dot = obs
        return np.int32(angle + 0.5 * angle_dot + 0.05 * x_dot + 0.02 * x > 0)


class Overdo:
    """Asks for more torque than Pendulum has."""

    def act(self, obs, *, greedy=False):
        return np.array([99.0], np.float32)


class Still:
    """Does nothing, with so many joints or buttons; keeps what it saw."""

    def __init__(self, action):
        self.action, self.seen = np.asarray(action), []

    def act(self, obs, *, greedy=False):
        self.seen.append(np.array(obs))
        return self.action


class Grey(gymnasium.Env):
    """A user's own: every picture is as bright as the world, the first argument of which has no default."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012
    observation_space, action_space = spaces.Box(0, 255, (1,)), spaces.Discrete(2)

    def __init__(self, brightness, says="picture", render_mode=None):
        self.brightness, self.says, self.render_mode = brightness, says, render_mode
        self.picture = np.zeros((4, 6, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.picture[:] = self.brightness
        return np.float32([self.brightness]), {}

    def step(self, action):
        if self.says == "trouble":
            raise RuntimeError("the wheel came off")
        self.picture += 1
        return np.float32([self.brightness]), 1.5, False, False, {}

    def render(self):
        answers = {
            "picture": self.picture,
            "text": "a text",
            "floats": np.zeros((4, 6)),
            "ill": [1, [2]],
            "empty": np.zeros((0, 0, 3), np.uint8),
        }
        if self.says == "end":
            raise SystemExit("bye")
        return answers.get(self.says)


class Blind(gymnasium.Env):
    """One that nobody can look at."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

    def __init__(self, depth=1):
        self.depth = depth

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}


class Unfinished(Blind):
    """It takes the render mode, but does not draw."""

    def __init__(self, depth=1, render_mode=None):
        super().__init__(depth)


@pytest.fixture(autouse=True)
def own():
    """Environments of a user."""
    for creator in (Grey, Blind, Unfinished):
        gymnasium.register(f"{creator.__name__}-v0", creator, max_episode_steps=50)
    yield
    for creator in (Grey, Blind, Unfinished):
        del gymnasium.registry[f"{creator.__name__}-v0"]


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


@pytest.mark.parametrize(
    ("name", "action", "size"),
    [
        ("CartPole-v1", 0, (400, 600)),
        ("Hopper-v5", [0, 0, 0], (480, 480)),
        ("ALE/Pong-v5", 0, (336, 336)),
        ("MountainCar-v0", 0, (400, 600)),
    ],
)
def test_the_horizon_cuts_every_film(name, action, size):
    film = film_episode(Still(action), name, horizon=3)
    assert len(film.frames) == 4
    assert all(frame.shape == (*size, 3) for frame in film.frames)
    assert all(np.ptp(frame) > 50 for frame in film.frames)  # there is something in it


def test_a_pole_is_as_long_as_in_its_world():
    usual, long = (
        film_episode(Still(1), "CartPole-v1", horizon=5, world=world).frames[0] for world in ({}, {"length": 1.0})
    )
    wood = [(frame == (202, 152, 101)).all(axis=2).any(axis=1).sum() for frame in (usual, long)]  # rows with the pole
    assert wood[1] == pytest.approx(2 * wood[0], abs=12)


def test_another_cartpole_moves_as_in_our_equations():
    from mfpo.envs import cartpole

    world = {"masspole": 2.0, "length": 0.8, "gravity": 3.0, "force_mag": 5.0, "masscart": 0.5}
    actor = Still(1)
    film_episode(actor, "CartPole-v1", horizon=6, world=world)
    state = actor.seen[0]
    for seen in actor.seen[1:]:
        state, _, _ = cartpole.step(cartpole.World(**world), state, np.int32(1), None)
        np.testing.assert_allclose(seen, state, rtol=1e-5, atol=1e-6)


def test_a_pendulum_swings_in_its_world():
    usual, heavy = Still([0.0]), Still([0.0])
    film_episode(usual, "Pendulum-v1", seed=1, horizon=3)
    film_episode(heavy, "Pendulum-v1", seed=1, horizon=3, world={"g": 20.0})
    assert np.array_equal(usual.seen[0], heavy.seen[0])
    gained = [actor.seen[1][2] - actor.seen[0][2] for actor in (usual, heavy)]
    assert gained[1] == pytest.approx(2 * gained[0], rel=1e-4)


def test_mujoco_is_filmed_in_the_world_of_the_simulation():
    """Without gravity it floats, and else it begins to fall."""
    still, falls = Still([0.0, 0.0, 0.0]), Still([0.0, 0.0, 0.0])
    floating = film_episode(still, "Hopper-v5", seed=4, horizon=8, world={"gravity": 0.0})
    film_episode(falls, "Hopper-v5", seed=4, horizon=8, world={"gravity": 90.0})
    copies = mujoco.make("Hopper-v5").open([{"gravity": 0.0}])
    first = copies.reset(np.arange(1), np.array([4], np.uint64))
    assert np.array_equal(still.seen[0], first[0]) and np.array_equal(falls.seen[0], first[0])
    outcome = [copies.step(np.arange(1), np.zeros((1, 3), np.float32)) for _ in range(8)]
    assert np.array_equal(still.seen[-1], outcome[-2].shown[0])
    assert floating.episode_return == pytest.approx(sum(float(x.reward[0]) for x in outcome), rel=1e-6)
    assert falls.seen[-1][0] < still.seen[-1][0] - 0.01  # its height
    assert not np.array_equal(floating.frames[0], floating.frames[-1])
    assert floating.fps == 125


def test_a_game_is_filmed_in_its_world():
    """Where every frame repeats the action before, the game does not hear of the first one it is given."""
    films = [
        film_episode(Still(action), "ALE/Pong-v5", horizon=12, world={"sticky": sticky})
        for sticky in (0.0, 1.0)
        for action in (0, 3)
    ]
    hears, deaf = (not np.array_equal(a.frames[-1], b.frames[-1]) for a, b in (films[:2], films[2:]))
    assert (hears, deaf) == (True, False)


def test_an_environment_of_a_user_is_filmed_in_its_world():
    film = film_episode(Still(0), "Grey-v0", horizon=3, world={"brightness": 90})
    assert [frame.max() for frame in film.frames] == [90, 91, 92, 93]  # though it draws into one array
    assert (film.fps, film.episode_return) == (5.0, 4.5)
    with pytest.raises(ConfigError, match="Grey-v0 cannot be made: TypeError: .*'brightness'"):
        film_episode(Still(0), "Grey-v0")
    with pytest.raises(ConfigError, match="--world sets 'colour', which Grey-v0 does not take"):
        film_episode(Still(0), "Grey-v0", world={"brightness": 1, "colour": 2})


def test_the_example_shows_how_warm_it_is(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(sys, "path", list(sys.path))
    rooms = [
        film_episode(Still([0.5]), "examples.heating:Heating-v0", horizon=4, world={"power": power}).frames
        for power in (1.0, 20.0)
    ]
    assert np.array_equal(rooms[0][0], rooms[1][0])
    cold, warm = ((frames[-1] == (200, 50, 40)).all(axis=2).sum() for frames in rooms)  # of the red
    assert 0 < cold < warm


@pytest.mark.parametrize("said", ["fast", None, 0, -5])
def test_an_odd_number_of_frames_a_second_is_none(monkeypatch, said):
    monkeypatch.setitem(Grey.metadata, "render_fps", said)
    assert film_episode(Still(0), "Grey-v0", horizon=3, world={"brightness": 90}).fps == 30.0


@pytest.mark.parametrize("name", ["Blind-v0", "Unfinished-v0", "Grey-v0"])
def test_what_cannot_be_drawn_is_told_in_a_sentence(name):
    world = {"depth": 2} if name != "Grey-v0" else {"brightness": 2, "says": "nothing"}
    with pytest.raises(ConfigError) as caught:
        film_episode(Still(0), name, world=world)
    assert str(caught.value) == (
        f"The environment {name} cannot be filmed: it has no render mode 'rgb_array'. Implement render(), list "
        "'rgb_array' in metadata['render_modes'], and let the constructor take render_mode."
    )


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        ("text", r"Grey-v0 cannot be filmed: its render\(\) returns <U6 of shape \(\), but it should return a picture"),
        (
            "floats",
            r"its render\(\) returns float64 of shape \(4, 6\), but it should return a picture, an array of uint8",
        ),
        ("empty", r"its render\(\) returns uint8 of shape \(0, 0, 3\), but it should return a picture"),
        ("ill", "Grey-v0 cannot be drawn: ValueError"),
        ("end", "Grey-v0 cannot be drawn: SystemExit: bye"),
        ("trouble", "Grey-v0 of agent 2 failed in step 1 of its episode: RuntimeError: the wheel came off"),
    ],
)
def test_an_environment_that_fails_is_told_in_a_sentence(monkeypatch, says, sentence):
    if says == "trouble":
        monkeypatch.setattr(Grey, "render", lambda self: self.picture)
    with pytest.raises((ConfigError, StepFailed), match=sentence):
        film_episode(Still(0), "Grey-v0", world={"brightness": 2, "says": says}, agent=2)


def test_the_world_is_that_of_an_agent_of_the_run(tmp_path):
    settings, config = resolve({"env": "CartPole-v1", "agents": 3, "world": "length=0.25..1"}, {})
    directory.write_config(tmp_path, settings, config)
    assert world_of(tmp_path) == {"length": 0.25}
    assert world_of(tmp_path / "policy.safetensors", 2) == {"length": 1.0}
    with pytest.raises(ConfigError, match=r"--agent is 3, but the run .* has the agents 0 to 2\."):
        world_of(tmp_path, 3)
    directory.write_config(tmp_path, replace(settings, world=""), config)
    assert world_of(tmp_path) == {}
    assert world_of(tmp_path / "elsewhere" / "policy.safetensors") == {}


def untrained(folder, env, **settings):
    """A run directory with a policy that learnt nothing."""
    settings, config = resolve({"env": env, "agents": 2, **settings}, {})
    spec = make_env(settings).spec
    algorithm = algorithms.make(settings.algorithm, config, spec, settings.agents)
    params = algorithm.actor(algorithm.init(jax.random.key(0)))
    directory.write_config(folder, settings, config)
    save_policy(folder, Policy(Origin(settings.algorithm, config, spec, settings.agents), algorithm, params))
    return str(folder)


@pytest.mark.parametrize(("more", "brightness"), [([], 90), (["--agent", "1"], 10)])
def test_play_shows_an_agents_world_and_keeps_to_the_horizon(tmp_path, capsys, more, brightness):
    from PIL import Image

    run = untrained(tmp_path, "Grey-v0", horizon=4, world="brightness=90,10")
    assert main(["play", run, *more]) == 0
    assert capsys.readouterr().out.startswith("return 6.00 in 4 steps:")
    with Image.open(tmp_path / "episode.gif") as picture:
        assert np.array(picture.convert("RGB")).max() == brightness


def test_play_says_what_an_environment_lacks(tmp_path, capsys):
    run = untrained(tmp_path, "Blind-v0", world="depth=1,2")
    assert main(["play", run]) == 2
    assert capsys.readouterr().err.startswith("mfpo: The environment Blind-v0 cannot be filmed: it has no render mode")


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
