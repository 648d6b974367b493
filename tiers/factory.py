"""Secondary tiers by name, as a configuration names them: ``{"type": "fs", "path": "…", "max_bytes": …}``.

A tier of somebody else needs no registration: ``module_path`` says where its class can be imported, or the
type is written ``module:Class``. A tier's module is imported when its type is asked for, so nobody needs the
client of an object store who has none. Here nothing is known of what a tier takes; its signature says it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from tiers.errors import TierValueError
from tiers.secondary import SecondaryTierManager

NOT_OPTIONS: Final = ("type", "module_path", "name")


class SecondaryTierFactory:
    """``memory``: a dict. ``fs``: a folder. ``s3``: a bucket (vLLM calls its tier over NIXL ``obj``)."""

    _registry: ClassVar[dict[str, Callable[[], object]]] = {}

    @classmethod
    def register_tier(cls, tier_type: str, module_path: str, class_name: str) -> None:
        """Give a class a name; it is imported when it is asked for. A name can be given once."""
        if tier_type in cls._registry:
            raise TierValueError(
                f"the tier {tier_type!r} is registered already", next_step="Take another name."
            )
        cls._registry[tier_type] = lambda: getattr(importlib.import_module(module_path), class_name)

    @classmethod
    def get_tier_class(cls, tier_config: Mapping[str, object]) -> type[SecondaryTierManager]:
        """The class that ``type`` names: registered, or in ``module_path``, or ``type`` is ``module:Class``.

        Raises ``TierValueError`` (a ``ValueError``) if there is none, or if it is no tier,
        and what importing the module raises.
        """
        name, module_path = cls._type_of(tier_config), tier_config.get("module_path")
        if module_path is None and name in cls._registry:
            found = cls._registry[name]()
        else:
            where, _, class_name = name.rpartition(":")
            where = where if module_path is None else str(module_path)
            if not where:
                raise TierValueError(f"no tier {name!r}", next_step=cls._known())
            found = getattr(importlib.import_module(where), class_name, None)
        if not (isinstance(found, type) and issubclass(found, SecondaryTierManager)):
            raise TierValueError(
                f"the tier {name!r} is {found!r}, which is no SecondaryTierManager",
                next_step="Derive the class from tiers.SecondaryTierManager.",
            )
        return found

    @classmethod
    def create_secondary_tier(
        cls,
        tier_config: Mapping[str, object],
        primary_kv_view: memoryview,
        offloading_spec: object = None,
    ) -> SecondaryTierManager:
        """The tier that ``tier_config`` describes: ``type``, maybe ``module_path``, and ``name``, by which
        counters and events know it (its type, if there is none); the rest goes to it.

        Raises as ``get_tier_class``, ``TierValueError`` for an option that the tier does not have or lacks,
        and what the tier's constructor raises.
        """
        tier_class = cls.get_tier_class(tier_config)
        tier_type = str(tier_config.get("name", cls._type_of(tier_config)))
        options = {name: value for name, value in tier_config.items() if name not in NOT_OPTIONS}
        signature = inspect.signature(tier_class)
        try:
            call = signature.bind(offloading_spec, primary_kv_view, tier_type, **options)
        except TypeError as error:
            raise TierValueError(
                f"the tier {tier_type!r} cannot be made: {error}",
                next_step=f"Its options: {', '.join(list(signature.parameters)[3:]) or 'none'}.",
            ) from error
        return tier_class(*call.args, **call.kwargs)

    @classmethod
    def _type_of(cls, tier_config: Mapping[str, object]) -> str:
        tier_type = tier_config.get("type")
        if not (isinstance(tier_type, str) and tier_type):
            raise TierValueError(f"a tier of type {tier_type!r}", next_step=cls._known())
        return tier_type

    @classmethod
    def _known(cls) -> str:
        return f"Known: {', '.join(sorted(cls._registry))}; or write module:Class."


SecondaryTierFactory.register_tier("memory", "tiers.memory", "MemoryTier")
SecondaryTierFactory.register_tier("fs", "tiers.filesystem", "FilesystemTier")
SecondaryTierFactory.register_tier("s3", "tiers.objectstore", "ObjectStoreTier")
