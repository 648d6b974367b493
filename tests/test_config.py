"""``kvbus/config.py`` and ``kvbus/settings.py``: flags over environment over file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvbus.config import EngineSettings, FeedSettings, Settings, TierSettings, load
from kvbus.errors import ConfigError
from kvbus.settings import ENGINE_KEYS, FEED_KEYS, KEYS, TABLES, TIER_KEYS, Said

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


@pytest.mark.parametrize(
    ("flags", "environ", "text", "form"),
    [
        ({"format": "%h"}, {"KVBUS_JSON": "1"}, "", ("%h", False)),
        ({"json": True}, {"KVBUS_FORMAT": "%h"}, "", (None, True)),
        ({"json": False}, {"KVBUS_FORMAT": "%h"}, "json = true", ("%h", False)),
        ({}, {"KVBUS_FORMAT": "%h"}, "json = true", ("%h", False)),
        ({}, {"KVBUS_JSON": "1"}, "format = '%h'", (None, True)),
        ({"format": "%h", "json": True}, {}, "", ("%h", True)),
        ({}, {"KVBUS_FORMAT": "%h", "KVBUS_JSON": "1"}, "", ("%h", True)),
    ],
)
def test_the_stronger_word_on_the_form_counts(
    tmp_path: Path, flags: dict[str, object], environ: dict[str, str], text: str, form: tuple[str, bool]
) -> None:
    """A template or JSON said at one level takes the place of the other below it; both at one level stay."""
    given = settings(text, tmp_path, environ, **flags)
    assert (given.format, given.json) == form


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


TIER_TABLES = """
[[engine]]
name = "e1"
lateness = 2.5
[[engine.tier]]
name = "cpu"
endpoint = "tcp://a:1"
replay = "tcp://a:2"
[[engine.tier]]
name = "fs"
endpoint = "tcp://b:1"
topic = "kv"
"""


def test_engines_of_a_file(tmp_path: Path) -> None:
    """[[engine]] holds its tiers in order; [[feed]] tables and an endpoint may stand beside it."""
    tiers = (TierSettings("cpu", "tcp://a:1", "tcp://a:2"), TierSettings("fs", "tcp://b:1", topic=("kv",)))
    got = settings('endpoint = "tcp://c:1"\n' + TIER_TABLES, tmp_path)
    assert got.engine == (EngineSettings("e1", tiers, 2.5),)
    assert got.feed == (FeedSettings("tcp://c:1"),)
    assert len(settings(TIER_TABLES + '[[feed]]\nendpoint = "tcp://c:1"', tmp_path).feed) == 1


def test_engines_of_flags() -> None:
    """--engine names tiers in order, each with its replay after a plus."""
    got = settings(tiers=["e1=cpu@tcp://a:1+tcp://a:2,fs@ipc:///tmp/b", "e-2=x@tcp://c:1"], topic=["kv"])
    tiers = (
        TierSettings("cpu", "tcp://a:1", "tcp://a:2", ("kv",)),
        TierSettings("fs", "ipc:///tmp/b", None, ("kv",)),
    )
    second = EngineSettings("e-2", (TierSettings("x", "tcp://c:1", None, ("kv",)),))
    assert (got.engine, got.feed) == ((EngineSettings("e1", tiers), second), ())


def test_an_address_may_hold_the_signs_that_part_tiers() -> None:
    """Commas, pluses, equals and at signs inside an ipc path are of the path."""
    (engine,) = settings(tiers=["e=a@ipc:///x,y+z=1,b@ipc://@abstract+ipc:///r,s+t,c@ipc:///q"]).engine
    assert engine.tier == (
        TierSettings("a", "ipc:///x,y+z=1"),
        TierSettings("b", "ipc://@abstract", "ipc:///r,s+t"),
        TierSettings("c", "ipc:///q"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "cpu@tcp://a:1",
        "=cpu@tcp://a:1",
        "e/1=cpu@tcp://a:1",
        "e1=",
        "e1=cpu",
        "e1=@tcp://a:1",
        "e1=cpu@nonsense",
        "e1=cpu@tcp://a:1,fs@/tmp/x",
        "e1=cpu@ipc:///a,fs=ipc:///b",
        "e1=cpu@tcp://a:1+tcp://a:2+tcp://a:3",
    ],
)
def test_what_is_no_engine_is_a_fault(text: str) -> None:
    """A slip in --engine is refused with the form that is expected, not read as a strange path."""
    with pytest.raises(ConfigError, match=r"--engine.*expected .*TIER@ENDPOINT"):
        settings(tiers=[text])


def test_replays_pair_with_endpoints_then_with_tiers() -> None:
    """--replay goes to the endpoints in order, then to the tiers that have none of their own."""
    tiers = ["e1=cpu@tcp://a:1,fs@tcp://b:1+tcp://b:2,s3@tcp://c:1"]
    got = settings(endpoint=["tcp://e:1"], tiers=tiers, replay=["tcp://e:2", "tcp://a:2", "tcp://c:2"])
    assert [feed.replay for feed in got.feed] == ["tcp://e:2"]
    assert [tier.replay for tier in got.engine[0].tier] == ["tcp://a:2", "tcp://b:2", "tcp://c:2"]
    got = settings(endpoint=["tcp://e:1"], tiers=tiers, replay=["tcp://e:2"])
    assert [tier.replay for tier in got.engine[0].tier] == [None, "tcp://b:2", None]
    with pytest.raises(ConfigError, match="the 1 endpoints and the 2 tiers without one, in order, got 2"):
        settings(endpoint=["tcp://e:1"], tiers=tiers, replay=["tcp://e:2", "tcp://a:2"])


def test_addresses_of_one_level_replace_those_below(tmp_path: Path) -> None:
    """An engine or endpoint flag, or KVBUS_ENDPOINT, leaves nothing of the addresses further down."""
    text = TIER_TABLES + '[[feed]]\nendpoint = "tcp://c:1"\n'
    got = settings(text, tmp_path, tiers=["e2=cpu@tcp://d:1"])
    assert ([engine.name for engine in got.engine], got.feed) == (["e2"], ())
    got = settings(text, tmp_path, endpoint=["tcp://d:1"])
    assert (got.engine, got.feed) == ((), (FeedSettings("tcp://d:1"),))
    environ = {"KVBUS_ENDPOINT": "tcp://d:1", "KVBUS_RANKS": "2"}
    got = settings(text, tmp_path, environ)
    assert (got.engine, got.feed) == ((), (FeedSettings("tcp://d:1", ranks=2),))
    got = settings(text, tmp_path, environ, tiers=["e2=cpu@tcp://d:1"])
    assert ([engine.name for engine in got.engine], got.feed) == (["e2"], ())


def test_a_lateness_said_at_a_stronger_level_holds_for_every_engine(tmp_path: Path) -> None:
    """An engine's own lateness is the file's word: flag and environment are stronger."""
    assert settings(TIER_TABLES, tmp_path).engine[0].lateness == 2.5
    got = settings("lateness = 3\n" + TIER_TABLES, tmp_path)
    assert (got.lateness, got.engine[0].lateness) == (3.0, 2.5)
    got = settings(TIER_TABLES, tmp_path, {"KVBUS_LATENESS": "4"})
    assert (got.lateness, got.engine[0].lateness) == (4.0, None)
    got = settings(TIER_TABLES, tmp_path, {"KVBUS_LATENESS": "4"}, lateness=5.0)
    assert (got.lateness, got.engine[0].lateness) == (5.0, None)


def test_faults_of_engines_have_their_place(tmp_path: Path) -> None:
    """Engines without tiers, tiers without addresses, bad names and misspelt keys are told by place."""
    text = """
    [[engine]]
    name = "e/1"
    tier = []
    [[engine]]
    name = "e2"
    latenes = 1
    lateness = 0
    [[engine.tier]]
    name = "cpu"
    endpiont = "tcp://a:1"
    """
    told = faults(text, tmp_path)
    for place in (
        "engine[0].name: expected letters, digits and . _ -, got 'e/1'",
        "engine[0].tier: ",
        "engine[1].latenes: not a key; did you mean lateness?",
        "engine[1].lateness: ",
        "engine[1].tier[0].endpoint: missing",
        "engine[1].tier[0].endpiont: not a key; did you mean endpoint?",
    ):
        assert place in told


def test_what_is_said_of_an_endpoint_is_a_fault_beside_engines_only(tmp_path: Path) -> None:
    """ranks, bind, topic and replay of no endpoint are refused at every level; tiers have their own."""
    assert "kvbus.toml: bind: belongs to an endpoint" in faults("bind = true\n" + TIER_TABLES, tmp_path)
    assert "KVBUS_TOPIC" in faults(TIER_TABLES, tmp_path, {"KVBUS_TOPIC": "x"})
    assert "--ranks" in faults(TIER_TABLES, tmp_path, ranks=2)
    with pytest.raises(ConfigError, match="bind, ranks: expected without --engine"):
        settings(tiers=["e=cpu@tcp://a:1"], ranks=2, bind=True)


def test_what_the_environment_says_of_an_endpoint_is_not_passed_over_for_an_engine(tmp_path: Path) -> None:
    """A topic holds for tiers, ranks are refused; both go with an endpoint that an engine replaces."""
    tiers = ["e=cpu@tcp://a:1"]
    got = settings("", tmp_path, {"KVBUS_TOPIC": "kv@"}, tiers=tiers)
    assert got.engine[0].tier[0].topic == ("kv@",)
    with pytest.raises(ConfigError, match="ranks: expected without --engine"):
        settings("", tmp_path, {"KVBUS_RANKS": "2"}, tiers=tiers)
    got = settings("", tmp_path, {"KVBUS_RANKS": "2", "KVBUS_ENDPOINT": "tcp://b:1"}, tiers=tiers)
    assert got.feed == ()


@pytest.mark.parametrize("table", ["feed", "engine.tier"])
def test_no_topic_at_all_is_a_fault(table: str, tmp_path: Path) -> None:
    """An empty list would read nothing, in silence."""
    engine = '[[engine]]\nname = "e"\n' if table == "engine.tier" else ""
    told = faults(f'{engine}[[{table}]]\nname = "cpu"\nendpoint = "tcp://a:1"\ntopic = []\n', tmp_path)
    assert "[0].topic: " in told
    assert "at least 1 item" in told


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
    assert set(ENGINE_KEYS) == set(EngineSettings.__struct_fields__)
    assert set(TIER_KEYS) == set(TierSettings.__struct_fields__)


def test_every_key_is_in_the_docs() -> None:
    """docs/configuration.md describes every key and names its variable."""
    docs = (ROOT / "docs" / "configuration.md").read_text()
    for key in {*KEYS, *FEED_KEYS, *ENGINE_KEYS, *TIER_KEYS}:
        assert f"`{key}`" in docs, key
    for key in set(KEYS) - set(TABLES):
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
        ("LATENESS", "0"),
    ],
)
def test_the_environment_has_the_bounds_of_the_flags(name: str, value: str, tmp_path: Path) -> None:
    """A number that a flag would refuse is refused from the environment too, with its place."""
    with pytest.raises(ConfigError, match=f"KVBUS_{name}: input should be"):
        load({}, environ={f"KVBUS_{name}": value, "KVBUS_ENDPOINT": "tcp://a:1"}, cwd=tmp_path)
