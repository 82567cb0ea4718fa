import json
import subprocess
import sys

import pytest

from mfpo.cli.planning import table
from mfpo.learning.planner import Assumptions, make_plans


def test_the_table_says_what_is_planned(mfpo):
    code, out, err = mfpo("plan", "--agents", 20, "--target-eps", 0.05)
    assert (code, err) == (0, "")
    heading, *rows = out.splitlines()
    assert heading.startswith("20 agents, ε = 0.05; L̃ = 1 (assumed), σ_g = 1")
    *rows, note = rows
    assert rows == table(make_plans(Assumptions(agents=20, target_eps=0.05))).splitlines()
    first = [cell.strip() for cell in rows[2].strip("|").split("|")]
    # DN = 20, c_ν = 1/9600 + 3.2; (32 + 8)/T + c_ν² (T + 1)/(2048 T) ≤ 0.05 from T = 40.005/0.0449997 = 889.01 on
    assert first[:8] == ["0", "1", "1", "1", "890", "890", "445,000", "2.7 MB"]
    assert note.startswith("So few steps, compared with N²")


def test_where_there_is_a_trade_there_is_no_such_note(mfpo):
    _, out, _ = mfpo("plan", "--agents", 2, "--target-eps", 0.05)
    assert "So few steps" not in out and len(out.splitlines()) == 8


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
        ("--lambdas ,", "--lambdas is empty; give at least one number between 0 and 1."),
        ("--gamma 1 --smoothness 0", "--gamma is 1, but the lemmas' constants divide by 1 - γ"),
        ("--bound pinted", "--bound is 'pinted'. Did you mean printed?"),
        ("--agnets 3", "There is no option --agnets of `mfpo plan`. Did you mean --agents"),
        ("--out plan.doc", "plan.doc should end in one of .png, .svg, .pdf"),
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
