"""Classes of one kind by name, for configurations that choose one: ours by a short name, anybody's by place.

A class is imported when it is asked for, so nobody needs what another class needs. Where it is comes from
outside, and so does the code that is run there: whatever goes wrong becomes one error that names the place.
Nothing is made here, and nothing is known of what a class takes.
"""

from __future__ import annotations

import importlib
from typing import Generic, NamedTuple, TypeVar

from tiers.errors import TierValueError

T = TypeVar("T")


class Place(NamedTuple):
    """Where a class can be imported."""

    module_path: str
    class_name: str


class Registry(Generic[T]):
    """``what`` is found here, in a word (``"tier"``), each derived from ``base``."""

    def __init__(self, what: str, base: type[T]) -> None:
        self._what = what
        self._base = base
        self._places: dict[str, Place] = {}

    def register(self, name: str, module_path: str, class_name: str) -> None:
        """Give a class a name. ``TierValueError`` for a name that is taken."""
        if name in self._places:
            raise TierValueError(
                f"the {self._what} {name!r} is registered already", next_step="Take another name."
            )
        self._places[name] = Place(module_path, class_name)

    def find(self, name: object, module_path: object = None) -> type[T]:
        """The class called ``name`` in ``module_path``; without one, the registered class of that name, or
        ``name`` is ``module:Class``.

        Raises ``TierValueError`` if there is none, if its module cannot be imported, for whatever reason, or
        if it is no class of this kind.
        """
        place = self._place(name, module_path)
        try:
            found = getattr(importlib.import_module(place.module_path), place.class_name, None)
        except (Exception, SystemExit) as error:  # the module is somebody else's, and may raise anything
            raise TierValueError(
                f"the {self._what} {name!r} cannot be imported: {type(error).__name__}: {error}",
                next_step="Write module:Class, of a module that can be imported here.",
            ) from error
        if not (isinstance(found, type) and issubclass(found, self._base)):
            raise TierValueError(
                f"the {self._what} {name!r} is {found!r}, which is no {self._base.__name__}",
                next_step=f"Derive the class from tiers.{self._base.__name__}.",
            )
        return found

    def _place(self, name: object, module_path: object) -> Place:
        if isinstance(name, str) and module_path is not None:
            return Place(str(module_path), name)
        if isinstance(name, str) and name in self._places:
            return self._places[name]
        where, _, class_name = name.rpartition(":") if isinstance(name, str) else ("", "", "")
        if not where:
            raise TierValueError(
                f"no {self._what} {name!r}",
                next_step=f"Known: {', '.join(sorted(self._places))}; or write module:Class.",
            )
        return Place(where, class_name)
