"""``cli/format.py``: ``--format``."""

from __future__ import annotations

import pytest
from msgspec import Raw

from cli.format import DIRECTIVES, Shown, compile_format
from kvbus.errors import ConfigError
from kvbus.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    Undecodable,
    Unrecognized,
    tokens,
)
from kvbus.log import Received, SourceId

SOURCE = SourceId("tcp://a:1", b"kv@x", 3, 1)
STORED = BlockStored([255, 2**64 - 1], 16, tokens([1, 2, 3]), 16, medium="gpu", group_idx=2)


def shown(event: Event, index: int = 4) -> Shown:
    batch = EventBatch(12.25, [event])
    return Shown(Received(SOURCE, 5, 6, b"", 1_700_000_000_123_456_789, True, batch, "map"), index, event)


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("%t", "2023-11-14T22:13:20.123456Z"),
        ("%u", "12.250000"),
        ("%S|%T|%r|%I", "tcp://a:1|kv@x|3|1"),
        ("%e/%s/%i", "5/6/4"),
        ("%k %m %M %g", "BlockStored GPU gpu 2"),
        ("%h", "00000000000000ff,ffffffffffffffff"),
        ("%H", "255,18446744073709551615"),
        ("%p", "0000000000000010"),
        ("%n %b %l", "2 16 3"),
        ("%d %L %w", "map replay -"),
        ("100%%", "100%"),
        ("", ""),
        (r"a\tb\nc\\d\0e", "a\tb\nc\\d\0e"),
    ],
)
def test_directives(template: str, line: str) -> None:
    """Each directive gives what its help says; the line ends with a newline."""
    assert compile_format(template)(shown(STORED)) == line + "\n"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (BlockRemoved([1], "CPU", reason="evicted"), "BlockRemoved CPU 1 - 0 evicted"),
        (BlockRemoved([1], None), "BlockRemoved GPU 1 - 0 -"),
        (AllBlocksCleared(), "AllBlocksCleared - 0 - 0 -"),
        (Unrecognized("BlockTransferred", Raw(b"\xc0")), "BlockTransferred - 0 - 0 -"),
        (Undecodable("cut short", Raw(b"\xc1")), "Undecodable - 0 - 0 cut short"),
    ],
)
def test_what_is_absent_is_a_dash(event: Event, line: str) -> None:
    """Every kind of event can be shown with every directive."""
    assert compile_format("%k %m %n %p %l %w")(shown(event)) == line + "\n"
    compile_format("".join(f"%{name}" for name in DIRECTIVES))(shown(event))


@pytest.mark.parametrize("template", ["%z", "50%", "%-10s", r"\x41", "\\"])
def test_an_unknown_directive_is_an_error(template: str) -> None:
    """A template that says something kvbus does not know is refused, with what it knows."""
    with pytest.raises(ConfigError) as caught:
        compile_format(template)
    assert "%h" in caught.value.next_step


def test_text_from_the_network_cannot_steer_a_terminal() -> None:
    """Escape sequences and line ends in tags, media, reasons and topics are shown, not obeyed."""
    hostile = "\x1b[2J\nfake"
    source = SourceId("tcp://a:1", hostile.encode())
    for event in (
        Unrecognized(hostile, Raw(b"")),
        BlockRemoved([1], hostile, reason=hostile),
        Undecodable(hostile, Raw(b"")),
    ):
        received = Received(source, 0, 0, b"", 0, False, EventBatch(0.0, [event]), "map")
        line = compile_format("%T %k %m %M %w")(Shown(received, 0, event))
        assert "\x1b" not in line
        assert line.count("\n") == 1
