"""What ``--json`` prints: one object a line, in every command.

Events and rows of SQL, which pass by the hundred thousand, have encoders of their own.
"""

from __future__ import annotations

import msgspec


def json_line(found: object) -> str:
    """An object, with the end of its line."""
    return msgspec.json.encode(found).decode() + "\n"
