"""Storage tiers that own their events: a table of contents, empty until the first tier is here."""

__all__: list[str] = []
