"""``kvbus/config.py`` and ``kvbus/settings.py``: flags over environment over file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvbus.config import FeedSettings, Settings, load
from kvbus.errors import ConfigError
from kvbus.settings import FEED_KEYS, KEYS, Said

ROOT = Path(__file__).resolve().parent.parent


def settings(
    text: str = "", folder: Path | None = None, environ: dict[str, str] | None = None, **flags: object
) -> Settings:
    """Load with ``text`` as kvbus.toml in ``folder``."""
    if folder is not None:
        (folder / "kvbus.toml").write_text(text)
    return load(flags, environ=environ or {}, cwd=folder or Path("/nonexistent"))


def faults(text: str, folder: Path, environ: dict[str, str] | None = None, **flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        settings(text, folder, environ, **flags)
    return str(caught.value)


def test_defaults_hold_where_nobody_says_anything() -> None:
    """With no file, no variable and no flag, the documented defaults hold."""
    assert settings() == Settings()


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    """The same key said three times: the flag counts; without it the variable; without that the file."""
    text, environ = "idle = 1.0\nflush = 2.0\nstrict = true\n", {"KVBUS_IDLE": "10", "KVBUS_FLUSH": "20"}
    got = settings(text, tmp_path, environ, idle=100.0)
    assert (got.idle, got.flush, got.strict) == (100.0, 20.0, True)


def test_feeds_of_a_file(tmp_path: Path) -> None:
    """Each [[feed]] is an engine with its own replay, topics, ranks, direction and name."""
    text = """
    [[feed]]
    endpoint = "tcp://a:5557"
    replay = "tcp://a:5558"
    topic = ["kv@", "x"]
    ranks = 4
    name = "prefill"
    [[feed]]
    endpoint = "ipc:///tmp/b"
    topic = "one topic"
    bind = true
    """
    assert settings(text, tmp_path).feed == (
        FeedSettings("tcp://a:5557", "tcp://a:5558", ("kv@", "x"), 4, False, "prefill"),
        FeedSettings("ipc:///tmp/b", None, ("one topic",), 1, True, None),
    )


def test_an_endpoint_flag_replaces_the_feeds_of_the_file(tmp_path: Path) -> None:
    """Who names an endpoint on the command line gets that one, not the file's as well."""
    text = '[[feed]]\nendpoint = "tcp://a:5557"\n'
    got = settings(
        text, tmp_path, endpoint=["tcp://b:1", "tcp://c:1"], replay=["tcp://b:2", "tcp://c:2"], ranks=2
    )
    assert got.feed == (
        FeedSettings("tcp://b:1", "tcp://b:2", ranks=2),
        FeedSettings("tcp://c:1", "tcp://c:2", ranks=2),
    )


def test_the_environment_names_endpoints_too(tmp_path: Path) -> None:
    """KVBUS_ENDPOINT and KVBUS_REPLAY hold lists and replace the feeds of the file."""
    environ = {
        "KVBUS_ENDPOINT": "tcp://b:1, tcp://c:1",
        "KVBUS_REPLAY": "tcp://b:2 tcp://c:2",
        "KVBUS_BIND": "false",
    }
    got = settings('[[feed]]\nendpoint = "tcp://a:5557"\n', tmp_path, environ)
    assert [(feed.endpoint, feed.replay) for feed in got.feed] == [
        ("tcp://b:1", "tcp://b:2"),
        ("tcp://c:1", "tcp://c:2"),
    ]


def test_a_single_engine_needs_no_table(tmp_path: Path) -> None:
    """endpoint, replay, topic and ranks may stand at the top of the file."""
    got = settings('endpoint = "tcp://a:1"\nreplay = "tcp://a:2"\nranks = 2\n', tmp_path)
    assert got.feed == (FeedSettings("tcp://a:1", "tcp://a:2", ranks=2),)


def test_every_fault_is_told_at_once_with_its_place(tmp_path: Path) -> None:
    """Unknown keys, wrong types and values out of bounds of file and environment come in one error."""
    text = """
    idel = 3
    flush = "soon"
    speed = "fast"
    [[feed]]
    endpoint = "tcp://a:1"
    ranks = 0
    [[feed]]
    replay = "tcp://b:2"
    bnd = true
    """
    told = faults(text, tmp_path, {"KVBUS_STRCT": "1", "KVBUS_IDLE": "never"})
    assert "7 faults" not in told
    assert "8 faults" in told
    path = tmp_path / "kvbus.toml"
    for place in (
        f"{path}: idel: not a key; did you mean idle?",
        f"{path}: flush: ",
        f"{path}: speed: expected max or a factor",
        f"{path}: feed[0].ranks: ",
        f"{path}: feed[1].endpoint: missing",
        f"{path}: feed[1].bnd: not a key; did you mean bind?",
        "environment: KVBUS_STRCT: not a setting; did you mean KVBUS_STRICT?",
        "environment: KVBUS_IDLE: ",
    ):
        assert place in told


def test_a_file_that_is_not_toml_is_a_fault(tmp_path: Path) -> None:
    """A syntax error names the file and the line."""
    told = faults("idle = = 3\n", tmp_path)
    assert "kvbus.toml" in told
    assert "line 1" in told


@pytest.mark.parametrize("text", ['endpoint = "tcp://a:1"\n[[feed]]\nendpoint = "tcp://b:1"\n'])
def test_endpoint_and_feed_in_one_file_is_a_fault(text: str, tmp_path: Path) -> None:
    """Two ways to name engines in one file are not guessed at."""
    assert "endpoint: expected inside a [[feed]]" in faults(text, tmp_path)


def test_feed_keys_that_would_go_unheard_are_a_fault(tmp_path: Path) -> None:
    """A variable or flag that speaks of an endpoint, where the endpoints are the file's feeds, is refused."""
    text = '[[feed]]\nendpoint = "tcp://a:1"\n'
    assert "KVBUS_TOPIC" in faults(text, tmp_path, {"KVBUS_TOPIC": "x"})
    assert "--ranks" in faults(text, tmp_path, ranks=2)


def test_replays_pair_with_endpoints() -> None:
    """There is no replay, or one for each endpoint."""
    with pytest.raises(ConfigError, match="expected none or one for each of the 2 endpoints"):
        settings(endpoint=["tcp://a:1", "tcp://b:1"], replay=["tcp://a:2"])


def test_the_file_may_be_named(tmp_path: Path) -> None:
    """--config names a file, KVBUS_CONFIG another; the flag wins, and one that is not there is a fault."""
    (tmp_path / "one.toml").write_text("idle = 1\n")
    (tmp_path / "two.toml").write_text("idle = 2\n")
    environ = {"KVBUS_CONFIG": str(tmp_path / "two.toml")}
    assert load({}, environ=environ, cwd=tmp_path).idle == 2
    assert load({}, file=tmp_path / "one.toml", environ=environ, cwd=tmp_path).idle == 1
    with pytest.raises(ConfigError, match="no such file"):
        load({}, file=tmp_path / "none.toml", environ={}, cwd=tmp_path)


def test_variables_that_kubernetes_sets_are_not_settings(tmp_path: Path) -> None:
    """A service called kvbus puts KVBUS_SERVICE_HOST and the like into every pod; they are no fault."""
    environ = {
        "KVBUS_SERVICE_HOST": "10.0.0.1",
        "KVBUS_PORT_5557_TCP": "tcp://10.0.0.1:5557",
        "KVBUS_PORT": "x",
    }
    assert settings("", tmp_path, environ) == Settings()


def test_numbers_are_taken_for_text_where_text_is_meant(tmp_path: Path) -> None:
    """speed = 10 and from = -5 need no quotes."""
    got = settings("speed = 10\nfrom = -5\n", tmp_path)
    assert (got.speed, got.start) == ("10", "-5")


def test_the_checked_keys_are_the_settings() -> None:
    """What a file may say and what the settings hold are the same names, but for a feed's flags."""
    names = {"json" if name == "as_json" else name for name in Said.model_fields}
    assert names - {"endpoint", "replay", "topic", "ranks", "bind"} == set(Settings.__struct_fields__)
    assert set(FEED_KEYS) == set(FeedSettings.__struct_fields__)


def test_every_key_is_in_the_docs() -> None:
    """docs/configuration.md describes every key and names its variable."""
    docs = (ROOT / "docs" / "configuration.md").read_text()
    for key in {*KEYS, *FEED_KEYS}:
        assert f"`{key}`" in docs, key
    for key in set(KEYS) - {"feed"}:
        assert f"`KVBUS_{key.upper()}`" in docs, key


def test_nothing_heavy_is_imported_where_nothing_is_configured(tmp_path: Path) -> None:
    """Without file and variables, loading settings does not wait for pydantic."""
    probe = "import sys; from kvbus.config import load; load({}); print('pydantic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", probe],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FLUSH", "0"),
        ("FLUSH", "1e300"),
        ("FLUSH", "61"),
        ("IDLE", "1e10"),
        ("LINGER", "1e300"),
        ("RANKS", "70000"),
    ],
)
def test_the_environment_has_the_bounds_of_the_flags(name: str, value: str, tmp_path: Path) -> None:
    """A number that a flag would refuse is refused from the environment too, with its place."""
    with pytest.raises(ConfigError, match=f"KVBUS_{name}: input should be"):
        load({}, environ={f"KVBUS_{name}": value, "KVBUS_ENDPOINT": "tcp://a:1"}, cwd=tmp_path)
