"""Other projects' released code, which tests marked `peer` and the bench run against: where it lies, how it
is loaded.

It is never part of this repository and never installed: single modules, outside the tree, under names of
their own. What such a module imports from the rest of its project is given to it by small stand-ins, so
that what runs is its own code and nothing of ours pretends to be it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from dataclasses import make_dataclass
from pathlib import Path
from types import ModuleType
from typing import Final
from urllib.parse import urlsplit

VLLM_VERSION: Final = "0.33.0"
VLLM_PARTS: Final = ("vllm/distributed/kv_events.py", "vllm/v1/kv_offload/")
"""What is kept of the wheel; a folder ends in a slash."""

KV_EVENTS_CONFIG: Final = {
    "enable_kv_cache_events": False,
    "publisher": None,
    "endpoint": "tcp://*:5557",
    "replay_endpoint": None,
    "buffer_steps": 10_000,
    "hwm": 100_000,
    "max_queue_size": 100_000,
    "topic": "",
}


def peers_dir() -> Path:
    """``$KVBUS_TEST_PEERS``, else ``kvbus-peers`` in the user's cache."""
    if set_by_hand := os.environ.get("KVBUS_TEST_PEERS"):
        return Path(set_by_hand)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvbus-peers"


def vllm_dir() -> Path:
    """The folder that holds the package ``vllm``, brought or not."""
    return peers_dir() / f"vllm-{VLLM_VERSION}"


def load_kv_events() -> ModuleType:
    """vLLM's ``kv_events.py``: its publisher and event classes. Raises ``FileNotFoundError`` if not there."""
    path = vllm_dir() / VLLM_PARTS[0]
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: `make peers` brings it")
    spec = importlib.util.spec_from_file_location("kvbus_peer_kv_events", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    stand_ins = _stand_ins()
    before = {name: sys.modules.get(name) for name in stand_ins}
    sys.modules.update(stand_ins)
    # msgspec looks up a struct's annotations through sys.modules for as long as the class lives.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        for name, known in before.items():
            if known is None:
                del sys.modules[name]
            else:
                sys.modules[name] = known
    return module


def _stand_ins() -> dict[str, ModuleType]:
    fields = [(name, object, default) for name, default in KV_EVENTS_CONFIG.items()]
    contents: dict[str, dict[str, object]] = {
        "vllm": {},
        "vllm.config": {},
        "vllm.config.kv_events": {"KVEventsConfig": make_dataclass("KVEventsConfig", fields)},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.utils": {},
        "vllm.utils.network_utils": {
            "get_ip": lambda: "127.0.0.1",
            "get_tcp_uri": lambda ip, port: f"tcp://{ip}:{port}",
            "is_valid_ipv6_address": lambda address: ":" in address,
            "split_zmq_path": lambda path: (
                urlsplit(path).scheme,
                urlsplit(path).hostname,
                str(urlsplit(path).port),
            ),
        },
        "vllm.v1": {},
        "vllm.v1.core": {},
        "vllm.v1.core.kv_cache_utils": {"ExternalBlockHash": bytes | int},
    }
    modules = {}
    for name, names in contents.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(names)
    return modules
