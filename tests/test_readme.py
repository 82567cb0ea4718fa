"""The pages say what the committed results say, and every command they print exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mfpo.cli.parser import parse
from mfpo.errors import MfpoError

ROOT = Path(__file__).parent.parent


def test_tables_are_made_from_the_results():
    done = subprocess.run([sys.executable, "studies/report.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


COMMANDS = [
    line.split("#")[0].strip()
    for line in (ROOT / "README.md").read_text().splitlines()
    if line.startswith("    mfpo ") and "--help" not in line
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_printed_command_is_understood(command):
    try:
        parse(command.split()[1:])
    except MfpoError as error:
        pytest.fail(f"{command}: {error}")


def test_there_are_commands_to_check():
    assert len(COMMANDS) >= 8


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_what_is_cited_is_this_version():
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert f"\nversion: {version[1]}\n" in (ROOT / "CITATION.cff").read_text()
