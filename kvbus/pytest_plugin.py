"""The pytest plugin: a fixture ``kv_events`` and a flag ``--kvbus-update``. Loaded by pytest alone.

What the fixture can do is in ``kvbus/collection``, which is imported where a test asks for it, so that a run
without such tests pays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kvbus.collection import KvEvents


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvbus", "order of KV-cache events")
    group.addoption(
        "--kvbus-update",
        action="store_true",
        help="write the baselines of assert_matches_baseline instead of comparing with them",
    )


@pytest.fixture
def kv_events(request: pytest.FixtureRequest) -> KvEvents:
    """Gathers KV-cache events and asserts their order. Names of baselines begin at the test's folder."""
    from kvbus.collection import KvEvents

    return KvEvents(folder=request.path.parent, update=bool(request.config.getoption("--kvbus-update")))
