"""The tables and figures of the README and docs, made from what is committed under results/.

    python studies/report.py            # rewrites the marked blocks and the figures
    python studies/report.py --check    # fails if a block is not what the results say

A block is what stands between `<!-- results: NAME -->` and `<!-- end -->`.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

import run_blocks
import study_blocks

from mfpo.learning.planner import Assumptions
from mfpo.reporting.curves import figure
from mfpo.reporting.plans import plan_figure

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
DOCS = ("ablation", "analysis", "baselines", "environments", "faults", "presets")
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in DOCS),
)

BLOCKS: dict[str, Callable[[], str]] = {
    "scores": run_blocks.scores,
    "paper": run_blocks.paper,
    "speed": lambda: run_blocks.speed("speed"),
    "speed mujoco": lambda: run_blocks.speed("speed-mujoco"),
    "speed atari": lambda: run_blocks.speed("speed-atari"),
    "speed processes": lambda: run_blocks.speed("speed-processes"),
    "speed off-policy": lambda: run_blocks.speed("speed-off-policy"),
    "ablations": study_blocks.ablations,
    "locomotion": lambda: run_blocks.against_paper(run_blocks.ABLATED, run_blocks.LOCOMOTION),
    "baselines locomotion": lambda: run_blocks.against_paper(run_blocks.BASELINES, run_blocks.LOCOMOTION),
    "locomotion earlier": lambda: run_blocks.against_paper(run_blocks.EARLIER, run_blocks.LOCOMOTION),
    "atari": lambda: run_blocks.against_paper({"MFPO": "mfpo", "MFPO, longer": "longer"}, run_blocks.ATARI),
    "baselines atari": lambda: run_blocks.against_paper(run_blocks.BASELINES, run_blocks.ATARI),
    "bounds": study_blocks.bounds,
    "constants": study_blocks.constants,
    "untuned": run_blocks.untuned,
    "faults": study_blocks.faults,
    "absent": study_blocks.absent,
    "caught": study_blocks.caught,
    "comparison cartpole": lambda: run_blocks.comparison("cartpole", run_blocks.SOLVED),
    "comparison pendulum": lambda: run_blocks.comparison("pendulum", -200.0),
    "search halfcheetah": lambda: run_blocks.search("halfcheetah"),
    "search hopper": lambda: run_blocks.search("hopper"),
    "catch": study_blocks.catch,
    "speedup": study_blocks.speedup,
    "sweep agents": lambda: study_blocks.swept("agents"),
    "sweep local_steps": lambda: study_blocks.swept("local_steps"),
    "sweep trajectories": lambda: study_blocks.swept("trajectories"),
    "ablation CartPole-v1": lambda: study_blocks.ablation("CartPole-v1"),
    "ablation Pendulum-v1": lambda: study_blocks.ablation("Pendulum-v1"),
}


def rewritten(text: str) -> str:
    """The page with every block made anew."""

    def block(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"<!-- results: {name} -->\n{BLOCKS[name]()}\n<!-- end -->"

    return re.sub(r"<!-- results: (.+?) -->.*?<!-- end -->", block, text, flags=re.DOTALL)


def figures() -> None:
    """The pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, env, threshold in (("cartpole", "CartPole-v1", run_blocks.SOLVED), ("pendulum", "Pendulum-v1", None)):
        paths = [run.path for run in run_blocks.records(f"{name}-seed*")]
        title = f"MFPO on {env}, 10 agents, {len(paths)} seeds"
        figure(paths, threshold=threshold, title=title).savefig(IMAGES / f"{name}.png", dpi=150)
    for run in run_blocks.records("pong-longer-seed0") + run_blocks.records("breakout-longer-seed0"):
        env, agents = run.settings["env"], run.settings["agents"]
        picture = figure([run.path], x="steps", title=f"MFPO on {env}, {agents} agents, one seed")
        picture.savefig(IMAGES / f"{run.path.name.split('-')[0]}.png", dpi=150)
    study_blocks.speedup_figure().savefig(IMAGES / "speedup.png", dpi=150)
    plan_figure(Assumptions(agents=20, target_eps=0.001)).savefig(IMAGES / "plan.png", dpi=150)


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = [page.name for page in PAGES if page.exists() and rewritten(page.read_text()) != page.read_text()]
    if check:
        print(f"not what the results say: {', '.join(stale)}" if stale else "the pages say what the results say")
        return 1 if stale else 0
    for page in PAGES:
        if page.exists():
            page.write_text(rewritten(page.read_text()))
    figures()
    return 0


if __name__ == "__main__":
    sys.exit(main())
