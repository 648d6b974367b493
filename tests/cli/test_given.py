"""``cli/given.py``: a flag that would have no effect is refused, in every command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from cli.given import is_given, refuse, refuse_all_but
from cli.main import app
from kvbus.errors import ConfigError
from kvbus.testing import history
from sinks.duckdb import DuckDBLog

HERE = "tcp://127.0.0.1:1"
NO_EFFECT = [
    ["check", "LOG", "--for", "1"],
    ["check", "LOG", "--for", "0"],
    ["check", "LOG", "--exit"],
    ["check", "LOG", "--replay", HERE],
    ["check", "LOG", "--topic", "kv"],
    ["check", "LOG", "--ranks", "2"],
    ["check", "LOG", "--bind"],
    ["check", "LOG", "--connect"],
    ["check", "LOG", "--lateness", "2"],
    ["check", HERE, "--tiers", "a,b"],
    ["check", HERE, "--story"],
    ["check", HERE, "--lateness", "2"],
    ["check", "LOG", "--github", "--json"],
    ["check", "LOG", "--github", "--story"],
    ["check", "LOG", "--list"],
    ["check", "--list", "--explain", "O1"],
    ["check", "--explain", "O1", "--strict"],
    ["check", "--list", "--junit", "x.xml"],
    ["tail", HERE, "--lateness", "2"],
    ["tail", HERE, "--order", "emitted"],
    ["tail", HERE, "--no-payload"],
    ["tail", HERE, "--from", "-5"],
    ["record", HERE, "-o", "x.duckdb", "--lateness", "2"],
    ["record", HERE, "-o", "x.duckdb", "--capacity", "GPU=3"],
    ["replay", "LOG", "--linger", "1"],
    ["replay", "LOG", "--no-wait"],
    ["replay", "LOG", "--replay-endpoint", HERE],
    ["replay", "LOG", "--no-payload"],
    ["replay", "LOG", "--to", HERE, "--no-payload"],
    ["replay", "LOG", "--to", HERE, "--json"],
    ["replay", "LOG", "--to", HERE, "--rank", "0"],
    ["diff", "--list", "LOG"],
    ["diff", "--list", "--ignore", "tokens"],
    ["baseline", "LOG", "--json"],
    ["sql", "LOG", "SELECT 1", "--csv", "--json"],
    ["run", "--plot", "x.svg"],
    ["run", "--what-if", "policy=lru|arc", "--record", "x.duckdb"],
]


@pytest.mark.parametrize("words", NO_EFFECT, ids=" ".join)
def test_what_would_have_no_effect_is_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, the flag by its name and a next step; nothing is printed and nothing written."""
    monkeypatch.chdir(tmp_path)
    DuckDBLog(tmp_path / "LOG").close()
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    named = [word for word in words if word.startswith("--") and word != "--to"] or ["LOG"]
    assert any(name in done.stderr for name in [*named, "ENDPOINT"])
    assert len(done.stderr.splitlines()) >= 2
    assert [path.name for path in tmp_path.iterdir()] == ["LOG"]


@pytest.mark.parametrize(
    ("words", "said", "printed"),
    [
        (["--format", "%s"], {"KVBUS_JSON": "1"}, "0\n"),
        (["--json"], {"KVBUS_FORMAT": "%s"}, '{"source"'),
        (["--no-json"], {"KVBUS_FORMAT": "%s"}, "0\n"),
    ],
    ids=str,
)
def test_a_form_that_is_asked_for_is_printed_whatever_the_environment_says(
    words: list[str], said: dict[str, str], printed: str, tmp_path: Path
) -> None:
    """Flags win: a template over KVBUS_JSON, JSON over KVBUS_FORMAT."""
    with DuckDBLog(tmp_path / "LOG") as log:
        log.write([at.entry for at in history("g:+a")])
    done = CliRunner(env=said).invoke(app, ["replay", str(tmp_path / "LOG"), *words])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith(printed)


def test_who_is_given() -> None:
    """Whatever its value: also a flag that says no, and one that says what holds anyway."""
    seen: list[bool] = []
    own = typer.Typer()

    @own.command()
    def command(
        context: typer.Context,
        names: Annotated[list[str] | None, typer.Argument(metavar="[LOG]")] = None,
        loud: Annotated[bool, typer.Option("--loud/--still")] = True,
        size: int = 3,
    ) -> None:
        _ = names, loud, size
        seen[:] = [is_given(context, name) for name in ("names", "loud", "size")]
        with pytest.raises(KeyError):
            is_given(context, "other")
        refuse_all_but(context, ("names", "loud"), "expected alone")
        refuse(context, ("names",), "expected elsewhere")

    run = CliRunner().invoke
    assert (run(own, []).exit_code, seen) == (0, [False, False, False])
    assert (run(own, ["--loud"]).exit_code, seen) == (0, [False, True, False])
    assert (run(own, ["--still"]).exit_code, seen) == (0, [False, True, False])
    for words, says in ((["--size", "3"], "--size: expected alone"), (["x"], "LOG: expected elsewhere")):
        error = run(own, words).exception
        assert isinstance(error, ConfigError)
        assert says in error.problem
