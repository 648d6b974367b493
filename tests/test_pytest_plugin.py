"""``kvbus/pytest_plugin.py``: in somebody else's tests, as the docs show it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "regression.md").read_text()
(EXAMPLE,) = re.findall(r"^```python\n(from collections.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

RIGHT = """\
        if len(self._blocks) == self._room:
            self._evict()
        self._blocks[key] = None
        self._events.append(OffloadingEvent([key], "CPU", removed=False))
"""
WRONG = """\
        self._blocks[key] = None
        self._events.append(OffloadingEvent([key], "CPU", removed=False))
        if len(self._blocks) > self._room:
            self._evict()
"""

pytest_plugins = ["pytester"]


@pytest.fixture
def installed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder in which kvbus is installed as pyproject.toml says, and no other plugin."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    about = pytester.mkdir("site") / "kvbus-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: kvbus\nVersion: 0\n")
    lines = [f"{name} = {module}" for name, module in points.items()]
    (about / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    monkeypatch.setenv("PYTHONPATH", f"{about.parent}:{ROOT}")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return pytester


def run(where: pytest.Pytester, *args: str) -> pytest.RunResult:
    return where.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider", "-W", "error", *args)


def test_the_example_of_the_docs(installed: pytest.Pytester) -> None:
    """It fails for want of a baseline, writes it with --kvbus-update, and passes from then on."""
    installed.makepyfile(test_host_cache=EXAMPLE)
    run(installed).assert_outcomes(passed=2, failed=1)
    run(installed, "--kvbus-update").assert_outcomes(passed=3)
    run(installed).assert_outcomes(passed=3)
    assert (installed.path / "host_cache.baseline").read_text().splitlines()[2:] == [
        *("1 | stored CPU b1", "1 | stored CPU b2", "1 | removed CPU b2", "1 : stored CPU b3")
    ]


def test_a_manager_that_takes_room_before_it_is_there_fails(installed: pytest.Pytester) -> None:
    """Each of the three tests fails, with the story that the docs show."""
    assert RIGHT in EXAMPLE
    installed.makepyfile(test_host_cache=EXAMPLE)
    run(installed, "--kvbus-update").assert_outcomes(passed=3)
    installed.makepyfile(test_host_cache=EXAMPLE.replace(RIGHT, WRONG))
    done = run(installed)
    done.assert_outcomes(failed=3)
    text = re.sub(r"^E +", "", done.stdout.str(), flags=re.MULTILINE)
    shown = PAGE.split("the first test fails with")[1].split("```text\n")[1].split("```")[0]
    for line in shown.splitlines():
        assert line.strip() in text
    assert "1 reordered" in text


def test_a_run_that_does_not_ask_pays_nothing(installed: pytest.Pytester) -> None:
    """Neither numpy nor sockets are loaded for tests without the fixture."""
    installed.makepyfile(
        "import sys\n\ndef test_x():\n    assert not {'numpy', 'pyarrow', 'duckdb'} & set(sys.modules)\n"
    )
    run(installed).assert_outcomes(passed=1)


def test_kvbus_without_pytest() -> None:
    """Nothing but the plugin itself imports pytest."""
    probe = "import sys, kvbus, kvbus.collection; print('pytest' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
