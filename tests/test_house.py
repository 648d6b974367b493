"""The house itself: who may import whom, what `kvbus` offers, what a fresh machine installs, what the docs
name.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kvbus
import tiers

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("cli", "kvbus", "sinks", "tiers")
FORBIDDEN = {
    "kvbus": {"tiers", "sinks", "cli"},
    "tiers": {"sinks", "cli"},
    "sinks": {"tiers", "cli"},
    "cli": set[str](),
}

PUBLIC = {
    "kvbus": [
        "Aggregator",
        "AllBlocksCleared",
        "Arrival",
        "Audit",
        "BlockRemoved",
        "BlockStored",
        "CaptureError",
        "ConfigError",
        "DialectReader",
        "EncodeError",
        "EndpointError",
        "Entry",
        "EpochBegan",
        "Event",
        "EventBatch",
        "Feed",
        "KvbusError",
        "Limits",
        "LogError",
        "LogLockedError",
        "LogReader",
        "LogVersionError",
        "Loss",
        "Notice",
        "PositionedEntry",
        "Progress",
        "Publisher",
        "PublisherCounts",
        "PublisherInfo",
        "Received",
        "Report",
        "Residency",
        "Round",
        "Sink",
        "SourceId",
        "Standing",
        "Stray",
        "Subscriber",
        "Summary",
        "Undecodable",
        "Unrecognized",
        "Verdict",
        "canonical_hash",
        "canonical_medium",
        "emitted",
        "encode",
        "ingest",
        "record",
        "summarize",
        "token_list",
        "tokens",
    ],
    "tiers": [
        "ARCCachePolicy",
        "Address",
        "Announcer",
        "Attachment",
        "Backpressure",
        "BlockCorruptError",
        "BlockDescription",
        "BlockIDsLoadStoreSpec",
        "BlockMissingError",
        "BlockStatus",
        "BlockStore",
        "BlockUnsureError",
        "CPULoadStoreSpec",
        "CPUOffloadingManager",
        "CPUPrimaryTierOffloadingManager",
        "CachePolicy",
        "CachePolicyFactory",
        "ChatTraffic",
        "Descriptions",
        "Drain",
        "EventBuffer",
        "FilesystemStore",
        "FilesystemTier",
        "GPUBlockPool",
        "GPULoadStoreSpec",
        "JobResult",
        "LRUCachePolicy",
        "LoadStoreSpec",
        "Locality",
        "LookupResult",
        "Medium",
        "MemoryTier",
        "ObjectStoreTier",
        "OffloadKey",
        "OffloadPolicy",
        "OffloadingEvent",
        "OffloadingManager",
        "ParentManager",
        "PrepareStoreOutput",
        "ReqContext",
        "Request",
        "RequestOffloadingContext",
        "ScheduleEndContext",
        "SecondaryTierFactory",
        "SecondaryTierManager",
        "Slots",
        "StorageTier",
        "TierContractError",
        "TierError",
        "TierFilter",
        "TierMatcher",
        "TierMemoryError",
        "TierStalledError",
        "TierValueError",
        "TieringOffloadingManager",
        "TransferJob",
        "TransferResult",
        "UnknownRequestError",
        "Voice",
        "attach",
        "get_offload_block_hash",
        "get_offload_group_idx",
        "hash_block",
        "hash_blocks",
        "make_offload_key",
        "read_trace",
        "synthetic",
    ],
}


def imported(source: str) -> Iterator[str]:
    """Top-level names a module imports: by statement anywhere in it, or by ``import_module("…")``."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield module.partition(".")[0]


def trespasses(package: str, source: str) -> set[str]:
    return set(imported(source)) & FORBIDDEN[package]


@pytest.mark.parametrize("package", PACKAGES)
def test_import_direction(package: str) -> None:
    """kvbus knows neither tiers nor sinks nor cli, those two not each other, and nothing imports cli."""
    modules = sorted((ROOT / package).rglob("*.py"))
    assert modules
    found = {str(m.relative_to(ROOT)): bad for m in modules if (bad := trespasses(package, m.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("kvbus", "import sinks.duckdb"),
        ("kvbus", "def late():\n    from sinks.duckdb import DuckDBSink"),
        ("kvbus", "import importlib\nimportlib.import_module('cli.main')"),
        ("sinks", "from cli import main"),
        ("sinks", "import msgspec, tiers"),
        ("tiers", "from sinks import duckdb"),
    ],
)
def test_import_direction_is_really_looked_at(package: str, source: str) -> None:
    """A forbidden import is seen wherever it stands and however it is spelt."""
    assert trespasses(package, source)


@pytest.mark.parametrize("package", [kvbus, tiers], ids=lambda package: package.__name__)
def test_public_names_are_a_decision(package: ModuleType) -> None:
    """What `kvbus` and `tiers` offer changes only together with these lists."""
    offered = PUBLIC[package.__name__]
    assert package.__all__ == offered == sorted(offered)
    assert [name for name in offered if not hasattr(package, name)] == []


@pytest.mark.parametrize(
    ("package", "heavy"),
    [
        ("kvbus", {"duckdb", "numpy", "pyarrow", "pydantic", "rich", "torch", "typer"}),
        ("tiers", {"boto3", "botocore", "duckdb", "matplotlib", "pyarrow", "pydantic", "torch", "typer"}),
    ],
)
def test_importing_is_cheap(package: str, heavy: set[str]) -> None:
    """An engine that imports kvbus to publish gets no database, no data frames, no terminal; one that imports
    tiers to keep books, no torch and no client of an object store.
    """
    probe = f"import {package}, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def table() -> dict[str, Any]:
    """The [project] table of pyproject.toml."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert isinstance(found, dict)
    return found


def requirements() -> list[Requirement]:
    """Everything pyproject.toml asks for, extras included."""
    extras = table()["optional-dependencies"].values()
    return [Requirement(text) for texts in (table()["dependencies"], *extras) for text in texts]


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def test_ranges_in_pyproject_exact_versions_in_constraints() -> None:
    """Each dependency is a range without ==, and the version in constraints.txt lies within it."""
    exact = pinned()
    for requirement in requirements():
        assert "==" not in str(requirement.specifier), requirement
        assert requirement.specifier.contains(exact[canonicalize_name(requirement.name)]), requirement


def foreign(*packages: str) -> set[str]:
    """The distributions that modules of these packages import, other than Python's own and ours."""
    distributions = {"zmq": "pyzmq", "pydantic_core": "pydantic", "botocore": "boto3", "zlib_ng": "zlib-ng"}
    return {
        distributions.get(name, name)
        for package in packages
        for module in (ROOT / package).rglob("*.py")
        for name in imported(module.read_text())
        if name not in sys.stdlib_module_names and name not in {*PACKAGES, "__future__"}
    }


def test_declared_dependencies_are_the_imported_ones() -> None:
    """What the packages import is declared, and nothing else is: none by accident, none for nothing."""
    extras = table()["optional-dependencies"]
    used = ("tiers", "s3", "plot", "pytest")
    texts = [*table()["dependencies"], *(text for name in used for text in extras[name])]
    assert foreign(*PACKAGES) == {Requirement(text).name for text in texts}


def test_the_bus_and_the_log_need_no_extra() -> None:
    """`pip install kvbus` is enough to publish, record and check: extras are for tiers and plots alone, and
    the plugin is pytest's to load.
    """
    core = {Requirement(text).name for text in table()["dependencies"]}
    assert foreign("kvbus", "sinks") <= core | {"pytest"}
    users = [m.name for m in (ROOT / "kvbus").rglob("*.py") if "pytest" in imported(m.read_text())]
    assert users == ["pytest_plugin.py"]


def test_constraints_hold_transitive_dependencies_too() -> None:
    """A fresh machine gets no version that constraints.txt does not name."""
    exact, waiting, seen = pinned(), [r for r in requirements() if r.name != "torch"], set[str]()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        waiting += [Requirement(text) for text in importlib.metadata.requires(name) or []]
    assert sorted(seen - exact.keys()) == []
    assert len(seen) > len(requirements()) / 2


def test_wheel_carries_four_typed_packages_and_one_command(tmp_path: Path) -> None:
    """An installed kvbus has its four packages, each with py.typed, the license, the command `kvbus`, and the
    plugin that pytest finds.
    """
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        timeout=100,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = [n for n in names if n.endswith("entry_points.txt")]
        points = archive.read(entry_points).decode()
        assert "[console_scripts]\nkvbus = cli.entry:main" in points
        assert "[pytest11]\nkvbus = kvbus.pytest_plugin" in points
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert {n.partition("/")[0] for n in names if "dist-info" not in n} == set(PACKAGES)


def test_changelog_speaks_of_this_version() -> None:
    """CHANGELOG.md has an Unreleased section and the version that pyproject.toml names."""
    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert table()["version"] in headings or headings == ["Unreleased"]
