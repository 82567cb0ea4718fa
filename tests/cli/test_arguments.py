"""Bad input gets one sentence on stderr and exit code 2; nothing is trained, nothing is touched."""

import json
import subprocess
import sys

import pytest

from mfpo.errors import RunError

pytestmark = pytest.mark.usefixtures("no_training")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("trian CartPole-v1", "There is no command 'trian'. Did you mean train?"),
        ("train CartPol-v1", "There is no environment called 'CartPol-v1'. Did you mean CartPole-v1 or CartPole-v0?"),
        ("train CartPole-v1 --algorithm mfop", "There is no algorithm called 'mfop'. Did you mean mfpo?"),
        ("train CartPole-v1 --preset defualt", "no preset 'defualt' for mfpo on CartPole-v1. Did you mean default?"),
        ("train CartPole-v1 --engine debgu", "--engine is 'debgu'. Did you mean debug?"),
        ("train CartPole-v1 --step pain", "--step is 'pain'. Did you mean plain?"),
        ("train CartPole-v1 --agnets 3", "There is no option --agnets of `mfpo train`. Did you mean --agents"),
        ("train --agnets=3 CartPole-v1", "There is no option --agnets of `mfpo train`. Did you mean --agents"),
        ("train CartPole-v1 --agent 3", "There is no option --agent of `mfpo train`. Did you mean --agents"),
        ("train CartPole-v1 --xyzzy", "There is no option --xyzzy of `mfpo train`. See `mfpo train --help`."),
        ("train CartPole-v1 --agents 0", "--agents is 0, but it must be at least 1."),
        ("train CartPole-v1 --agents -3", "--agents is -3, but it must be at least 1."),
        ("train CartPole-v1 --algorithm fed_sac --reference-every 2", "--reference-every is 2, but this algorithm's"),
        ("train CartPole-v1 --no-server-adjustment --reference-every 2", "use mfpo with its server-side adjustment."),
        ("train CartPole-v1 --stepsize -0.1", "--stepsize is -0.1, but it must be above 0."),
        ("train CartPole-v1 --stepsize -1e-3", "--stepsize is -0.001, but it must be above 0."),
        ("train CartPole-v1 --stepsize nan", "--stepsize is not a number; give a number."),
        ("train CartPole-v1 --agents ten", "--agents: 'ten' is not a whole number."),
        ("train CartPole-v1 --agents 2.5", "--agents: '2.5' is not a whole number."),
        ("train CartPole-v1 --stepsize big", "--stepsize: 'big' is not a number."),
        ("train CartPole-v1 --hidden 16,x", "--hidden: 'x' is not a whole number."),
        ("train CartPole-v1 --hidden 16,,16", "--hidden: '' is not a whole number."),
        ("train CartPole-v1 --stepsize inf", "--stepsize is inf, but it must be at most 1000000.0."),
        ("train CartPole-v1 --attack sign-flip", "--attack was given, but nobody attacks; --byzantine N says how many"),
        ("train CartPole-v1 --attack-strength 2", "--attack-strength was given, but nobody attacks"),
        ("train CartPole-v1 --processes 2", "--processes was given, but CartPole-v1 uses every core in this one"),
        ("train my/envs.py:Base-v0", "not of a file: envs:Base-v0, in the directory"),
        ("train envs.py:Base-v0", "give the name of a module, not of a file: envs:Base-v0"),
        ("train CartPole-v1 --agents", "--agents needs a value; see `mfpo train --help`."),
        ("train CartPole-v1 --algorithm", "--algorithm needs a value; see `mfpo train --help`."),
        ("train CartPole-v1 --quiet=1", "--quiet takes no value"),
        ("train", "`mfpo train` needs ENV; see `mfpo train --help`."),
        ("train CartPole-v1 Pendulum-v1", "`mfpo train` has no use for 'Pendulum-v1'; see `mfpo train --help`."),
        ("resume", "`mfpo resume` needs RUN"),
        ("plot", "`mfpo plot` needs RUN"),
        ("list --jsn", "There is no option --jsn of `mfpo list`. Did you mean --json?"),
        ("--versoin", "There is no option --versoin of `mfpo`. Did you mean --version?"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(mfpo, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, out, err = mfpo(*arguments.split())
    assert code == 2
    assert out == ""
    assert err.startswith("mfpo: ") and err.count("\n") == 1
    assert sentence in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["resume", "evaluate", "plot", "play"])
def test_a_directory_that_is_no_run_is_refused(mfpo, tmp_path, command):
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "nothing"):
        code, out, err = mfpo(command, path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert str(path) in err
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_an_existing_out_is_refused_and_left_alone(mfpo, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    code, _, err = mfpo("train", "CartPole-v1", "--out", tmp_path)
    assert code == 2
    assert err.startswith(f"mfpo: {tmp_path} ") and "--out" in err and err.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_an_error_on_the_way_is_one_sentence_too(mfpo, tmp_path, monkeypatch):
    def full(*args, **options):
        raise RunError("The disk is full.\nGo on with: mfpo resume x")

    monkeypatch.setattr("mfpo.runs.training._go_on", full)
    code, out, err = mfpo("train", "CartPole-v1", "--out", tmp_path / "run")
    assert (code, out, err) == (2, "", "mfpo: The disk is full. Go on with: mfpo resume x\n")


def test_code_that_ends_the_program_has_not_succeeded(mfpo, tmp_path, monkeypatch):
    def end(*args, **options):
        raise SystemExit("bye")

    monkeypatch.setattr("mfpo.runs.training.train", end)
    code, out, err = mfpo("train", "CartPole-v1", "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert err.startswith("mfpo: Code that was called wanted to end the program (SystemExit: bye)")


def test_too_little_memory_is_one_sentence_too(mfpo, tmp_path, monkeypatch):
    def huge(*args, **options):
        raise MemoryError("Unable to allocate 37.3 GiB for an array")

    monkeypatch.setattr("mfpo.runs.training._go_on", huge)
    code, _, err = mfpo("train", "CartPole-v1", "--out", tmp_path / "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "not enough memory: Unable to allocate 37.3 GiB for an array. Smaller networks" in err


def test_a_bug_of_ours_keeps_its_traceback(mfpo, tmp_path):
    with pytest.raises(AssertionError, match="reached the training"):
        mfpo("train", "CartPole-v1", "--out", tmp_path / "run")


def test_tensorboard_without_its_extra_is_noticed_before_training(mfpo, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    code, _, err = mfpo("train", "CartPole-v1", "--out", tmp_path / "run", "--tensorboard")
    assert code == 2
    assert "pip install 'mfpo[tensorboard]'" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["", "train", "resume", "evaluate", "plot", "list", "play"])
def test_every_help_ends_with_examples(mfpo, command):
    code, out, err = mfpo(*command.split(), "--help")
    assert (code, err) == (0, "")
    assert f"  mfpo {command}" in out[out.index("examples:") :]


def test_no_arguments_show_the_help(mfpo):
    assert mfpo() == mfpo("--help")


def test_list_names_everything(mfpo):
    code, out, _ = mfpo("list", "--json")
    names = json.loads(out)
    assert code == 0
    assert {"CartPole-v1", "Pendulum-v1"} <= set(names["environments"])
    assert "mfpo" in names["algorithms"] and all(names["algorithms"].values())
    assert set(names["engines"]) == {"inprocess", "debug"}
    assert "default" in names["presets"]["CartPole-v1"]["mfpo"]
    _, text, _ = mfpo("list")
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines() if line.startswith("  ")}
    assert lines["Hopper-v5"] == "tuned for every algorithm" and lines["Ant-v5"] == "not tuned"
    assert lines["HalfCheetah-v5"] == "tuned for every algorithm; --preset paper: fedpg_br"
    assert all(name in text for name in [*names["environments"], *names["algorithms"], *names["engines"]])


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["trian"], ["plot", "--help"], ["resume"]])
def test_help_and_mistakes_do_not_wait_for_jax(arguments):
    code = f"import sys; from mfpo.cli import main; main({arguments!r}); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0


def test_a_reader_that_has_seen_enough_ends_it_without_a_traceback():
    code = "import sys; from mfpo.cli import main; sys.exit(main(['list', '--json']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141
