"""The texts: their examples run, their links lead somewhere, and the file list is the architecture."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
EXAMPLES = [
    pytest.param(code, id=f"{text.name}-{number}")
    for text in TEXTS
    for number, code in enumerate(
        re.findall(r"^```python\n(.*?)^```", text.read_text(), re.MULTILINE | re.DOTALL)
    )
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_examples_run(code: str, tmp_path: Path) -> None:
    """A Python example in the docs can be pasted into a file and runs to its end, quietly on stderr."""
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.name)
def test_links_lead_somewhere(text: Path) -> None:
    """Every relative link of a text points at a file of this repository."""
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", text.read_text())
    inside = [target for target in targets if "://" not in target]
    assert [target for target in inside if not (text.parent / target).exists()] == []


def test_every_page_is_in_the_index() -> None:
    """A reader who starts at docs/index.md can reach every page."""
    index = (ROOT / "docs" / "index.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {page for page in pages if f"({page})" not in index} == set()


def test_architecture_names_every_module() -> None:
    """ARCHITECTURE.md lists each module of the four packages, and none that is not there."""
    modules = {
        str(path.relative_to(ROOT).with_suffix(""))
        for package in ("kvbus", "tiers", "sinks", "cli")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    }
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`((?:kvbus|tiers|sinks|cli)/[\w/]+)`", text))
    packages = {
        str(folder.relative_to(ROOT)) for folder in ROOT.glob("*/*/") if (folder / "__init__.py").exists()
    }
    assert named - packages == modules
