"""Secondary tiers by name, as a configuration names them: ``{"type": "fs", "path": "…", "max_bytes": …}``.

A tier of somebody else needs no registration: ``module_path`` says where its class can be imported, or the
type is written ``module:Class``. A tier's module is imported when its type is asked for, so nobody needs the
client of an object store who has none. Here nothing is known of what a tier takes; its signature says it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import ClassVar, Final

from tiers.errors import TierValueError
from tiers.registry import Registry
from tiers.secondary import SecondaryTierManager

NOT_OPTIONS: Final = ("type", "module_path", "name")


class SecondaryTierFactory:
    """``memory``: a dict. ``fs``: a folder. ``s3``: a bucket (vLLM calls its tier over NIXL ``obj``)."""

    # mypy wants a concrete class for type[T]; this one is only compared with.
    _registry: ClassVar = Registry[SecondaryTierManager]("tier", SecondaryTierManager)  # type: ignore[type-abstract]

    @classmethod
    def register_tier(cls, tier_type: str, module_path: str, class_name: str) -> None:
        """Give a class a name; it is imported when it is asked for. A name can be given once."""
        cls._registry.register(tier_type, module_path, class_name)

    @classmethod
    def get_tier_class(cls, tier_config: Mapping[str, object]) -> type[SecondaryTierManager]:
        """The class that ``type`` names: in ``module_path``, else registered, else ``type`` is
        ``module:Class``.

        Raises ``TierValueError`` (a ``ValueError``) if there is none, if its module cannot be imported, or if
        it is no tier.
        """
        return cls._registry.find(tier_config.get("type"), tier_config.get("module_path"))

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
        tier_type = str(tier_config.get("name", tier_config["type"]))
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


SecondaryTierFactory.register_tier("memory", "tiers.memory", "MemoryTier")
SecondaryTierFactory.register_tier("fs", "tiers.filesystem.tier", "FilesystemTier")
SecondaryTierFactory.register_tier("s3", "tiers.objectstore.tier", "ObjectStoreTier")
