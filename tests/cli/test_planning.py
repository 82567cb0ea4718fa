import json
import subprocess
import sys

import pytest

from mfpo.cli.planning import table
from mfpo.learning.planner import Assumptions, Pilot, make_plans
from mfpo.runs.pilot import Estimates


def test_the_table_says_what_is_planned(mfpo):
    code, out, err = mfpo("plan", "--agents", 20, "--target-eps", 0.05)
    assert (code, err) == (0, "")
    heading, *rows = out.splitlines()
    assert heading.startswith("20 agents, ε = 0.05; L̃ = 1, σ_g = 1")
    *rows, note = rows
    assert rows == table(make_plans(Assumptions(agents=20, target_eps=0.05))).splitlines()
    first = [cell.strip() for cell in rows[2].strip("|").split("|")]
    # DN = 20, c_ν = 1/9600 + 3.2; (32 + 8)/T + c_ν² (T + 1)/(2048 T) ≤ 0.05 from T = 40.005/0.0449997 = 889.01 on
    assert len(rows) == 3  # all λ ask for the same
    assert first[:8] == ["0, 0.25, 0.5, 0.75, 1", "1", "1", "1", "890", "890", "445,000", "2.7 MB"]
    assert note.startswith("So few steps, compared with N²")


def test_where_there_is_a_trade_there_is_no_such_note(mfpo):
    _, out, _ = mfpo("plan", "--agents", 2, "--target-eps", 0.05)
    assert "So few steps" not in out and len(out.splitlines()) == 8
    _, out, _ = mfpo("plan", "--agents", 20, "--target-eps", 0.02)
    assert [line.split("|")[1].strip() for line in out.splitlines()[3:]] == ["0, 0.25, 0.5", "0.75, 1"]


def test_json_has_the_assumptions_and_a_plan_per_lambda(mfpo):
    code, out, _ = mfpo("plan", "--lambdas", "0,0.3,1", "--smoothness", 0, "--horizon", 5, "--json")
    answer = json.loads(out)
    assert code == 0
    assert [plan["lambda"] for plan in answer["plans"]] == [0, 0.3, 1]
    assert answer["assumptions"]["horizon"] == 5 and answer["assumptions"]["smoothness"] > 1000
    assert all(0 < plan["bound"] <= 0.05 for plan in answer["plans"])
    assert answer["figure"] is None


def test_given_k_and_d_leave_one_line(mfpo):
    _, out, _ = mfpo("plan", "--local-steps", 10, "--trajectories", 20)
    assert len(out.splitlines()) == 4
    assert out.splitlines()[-1].startswith("| – | 10 | 20 | 200 |")


def test_a_figure_is_drawn(mfpo, tmp_path):
    out = tmp_path / "plan.png"
    code, text, _ = mfpo("plan", "--out", out)
    assert code == 0 and text.splitlines()[-1] == str(out)
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--agents 0", "--agents is 0, but it must be at least 1."),
        ("--target-eps 0", "--target-eps is 0.0, but it must be above 0."),
        ("--target-eps nan", "--target-eps is not a number; give a number."),
        ("--target-eps 1e-300", "--target-eps is 1e-300, which takes more than 1e+15 rounds; give a larger one."),
        ("--lambdas 0,2", "--lambdas is 2.0, but it must be at most 1."),
        ("--lambdas=", "--lambdas is empty; give at least one number between 0 and 1."),
        ("--gamma 1 --smoothness 0", "--gamma is 1, but the lemmas' constants divide by 1 - γ"),
        ("--bound pinted", "--bound is 'pinted'. Did you mean printed?"),
        ("--agnets 3", "There is no option --agnets of `mfpo plan`. Did you mean --agents"),
        ("--out plan.doc", "plan.doc should end in one of .png, .svg, .pdf"),
        ("--pilot CartPol-v1", "There is no environment called 'CartPol-v1'. Did you mean"),
        ("--pilot CartPole-v1 --pilot-rounds 1", "--pilot-rounds is 1, but it must be at least 2."),
        ("--local-steps 2 --trajectories 2 --out x.png", "--local-steps and --trajectories leave λ no choice."),
    ],
)
def test_bad_input_is_one_sentence(mfpo, arguments, sentence):
    code, out, err = mfpo("plan", *arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


def test_help_ends_with_examples(mfpo):
    code, out, _ = mfpo("plan", "--help")
    assert code == 0 and "  mfpo plan --agents 20 --target-eps 0.05" in out[out.index("examples:") :]


def test_a_plan_does_not_wait_for_jax():
    code = "import sys; from mfpo.cli import main; main(['plan']); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0


def test_a_pilot_fills_in_what_was_not_given(mfpo, monkeypatch):
    found = Estimates(40.0, 300.0, 0.2, 0.04, horizon=500, parameters=386, pilot_trajectories=1000)
    asked = []
    monkeypatch.setattr("mfpo.runs.pilot.estimate", lambda pilot, gamma: asked.append((pilot, gamma)) or found)
    code, out, _ = mfpo("plan", "--pilot", "CartPole-v1", "--sigma", 3, "--gamma", 0.9, "--pilot-seed", 7, "--json")
    answer = json.loads(out)
    assert code == 0
    assert asked == [(Pilot("CartPole-v1", pilot_seed=7), 0.9)]
    assert answer["pilot"] == found._asdict()
    assert {name: answer["assumptions"][name] for name in ("sigma", "smoothness", "sigma_w", "horizon")} == {
        "sigma": 3.0,
        "smoothness": 300.0,
        "sigma_w": 0.2,
        "horizon": 500,
    }
    assert answer["assumptions"]["trajectories"] == 0
    _, text, _ = mfpo("plan", "--pilot", "CartPole-v1")
    measured = "CartPole-v1, 1,000 trajectories: σ_g = 40, L̃ = 300, σ_w = 0.2 (steps of 0.04), H = 500, d = 386"
    assert text.splitlines()[0] == f"{measured}; the gap is not measured: give --gap"
    _, text, _ = mfpo("plan", "--pilot", "CartPole-v1", "--gap", 80)
    assert text.splitlines()[0] == measured and "gap 80;" in text.splitlines()[1]
