"""Tiers on the bus: what they say, described, translated, and published in rounds."""

from tiers.voice.announcer import Announcer
from tiers.voice.attach import attach
from tiers.voice.voices import Address

__all__ = ["Address", "Announcer", "attach"]
