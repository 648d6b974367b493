"""An extra that is not installed."""

from __future__ import annotations

import importlib
import sys

import pytest

from cli.extras import extra
from kvbus.errors import ConfigError


def load(module: str) -> None:
    with extra("plot", module="matplotlib", what="--plot", otherwise="leave it out"):
        importlib.import_module(module)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what needs it, how to install it, and what goes without."""
    missing = ("matplotlib", "matplotlib.figure")
    for module in missing:
        monkeypatch.setitem(sys.modules, module, None)
    for module in missing:
        with pytest.raises(ConfigError, match="--plot needs matplotlib") as caught:
            load(module)
        assert caught.value.next_step == "Install kvbus[plot], or leave it out."


def test_any_other_missing_module_is_a_fault() -> None:
    """What is missing inside of what is installed is not blamed on the extra."""
    with pytest.raises(ModuleNotFoundError):
        load("no_such_module")
