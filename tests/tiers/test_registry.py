"""Classes by name: where they are found, and what is said when they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiers.errors import TierValueError
from tiers.registry import Registry


class Clock:
    """What may be asked for."""


class Sundial(Clock):
    """One of them, imported when it is asked for."""


class Spoon:
    """No clock."""


@pytest.fixture
def clocks() -> Registry[Clock]:
    made = Registry("clock", Clock)
    made.register("sun", __name__, "Sundial")
    return made


@pytest.mark.parametrize(
    ("name", "module_path"),
    [("sun", None), (f"{__name__}:Sundial", None), ("Sundial", __name__)],
    ids=["registered", "module:Class", "module_path"],
)
def test_three_ways_lead_to_a_class(clocks: Registry[Clock], name: str, module_path: str | None) -> None:
    """A class is found by the name it was given, or by where it can be imported, written either way."""
    assert clocks.find(name, module_path) is Sundial


def test_who_says_where_means_it(clocks: Registry[Clock]) -> None:
    """A module that is named is looked into, whatever has the same name in the registry."""
    clocks.register("Spoon", __name__, "Sundial")
    with pytest.raises(TierValueError, match="no Clock"):
        clocks.find("Spoon", __name__)


def test_a_name_is_given_once(clocks: Registry[Clock]) -> None:
    """A name that is taken is refused, and keeps its class."""
    with pytest.raises(TierValueError, match="the clock 'sun' is registered already"):
        clocks.register("sun", __name__, "Clock")
    assert clocks.find("sun") is Sundial


def test_a_class_is_imported_when_it_is_asked_for(clocks: Registry[Clock]) -> None:
    """Naming a class whose module is not there is no error before somebody wants it."""
    clocks.register("moon", "no.such.module", "Moon")
    assert clocks.find("sun") is Sundial
    with pytest.raises(TierValueError, match=r"the clock 'moon' cannot be imported.*No module named 'no'"):
        clocks.find("moon")


@pytest.mark.parametrize("name", ["", "tower", ":Sundial", None, 7], ids=repr)
def test_an_unknown_name_is_told_the_known_ones(clocks: Registry[Clock], name: object) -> None:
    """A name that leads nowhere, and what is no name at all, gets the list of what there is."""
    with pytest.raises(TierValueError, match=r"no clock .*Known: sun; or write module:Class"):
        clocks.find(name)


@pytest.mark.parametrize("name", ["Spoon", "Nothing", "Path", "__doc__"])
def test_only_classes_of_the_kind(clocks: Registry[Clock], name: str) -> None:
    """Another class, no class and an absent name are refused by name."""
    with pytest.raises(TierValueError, match=f"{name}.*no Clock"):
        clocks.find(f"{__name__}:{name}")


@pytest.mark.parametrize(
    ("name", "module_path"),
    [(".hidden:Clock", None), ("a..b:Clock", None), ("Clock", ""), ("Clock", 7), ("nul\0:Clock", None)],
    ids=repr,
)
def test_a_place_that_is_none(clocks: Registry[Clock], name: str, module_path: object) -> None:
    """What Python cannot import is a TierValueError that says why, however it is misspelt."""
    with pytest.raises(TierValueError, match=r"cannot be imported: .*Error"):
        clocks.find(name, module_path)


@pytest.mark.parametrize("source", ["1/0", "def", "import no_such_thing", "absent"])
def test_a_module_that_fails(
    clocks: Registry[Clock], source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a foreign module raises as it is imported is said as a TierValueError, the cause kept."""
    (tmp_path / "failing_clock.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TierValueError, match="cannot be imported") as caught:
        clocks.find("failing_clock:Clock")
    assert caught.value.__cause__ is not None
