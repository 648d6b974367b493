"""What a stored block is called where its medium has names: ``<hhh>/<hash>_g<group>``.

A folder by the first three digits of the hash, and a name that says the key: a key has one name, and it can
be read back. A fan-out of 4096 is enough, a million blocks are 244 a folder. The second level that vLLM's fs
tier has makes a folder for nearly every block, which costs more than the file: a small block took 140 µs
instead of 40, and listing three times as long (ext4, 20 000 blocks).
"""

from __future__ import annotations

import re
from typing import Final

from tiers.keys import OffloadKey, get_offload_block_hash, get_offload_group_idx, make_offload_key

FAN_OUT_DIGITS: Final = 3
FAN_OUT: Final = re.compile(f"[0-9a-f]{{{FAN_OUT_DIGITS}}}")
NAME: Final = re.compile(r"(?P<hash>(?:[0-9a-f]{2})*)_g(?P<group>0|[1-9][0-9]{0,9})")


def block_name(key: OffloadKey) -> str:
    """``"0a1/0a1b…_g0"``: the fan-out folder and the name in it."""
    digits = get_offload_block_hash(key).hex()
    return f"{digits[:FAN_OUT_DIGITS].ljust(FAN_OUT_DIGITS, '0')}/{digits}_g{get_offload_group_idx(key)}"


def read_block_name(name: str) -> OffloadKey | None:
    """The key whose ``block_name`` this is; None for any other name."""
    match = NAME.fullmatch(name.rpartition("/")[2])
    if match is None or int(match["group"]) >= 1 << 32:
        return None
    key = make_offload_key(bytes.fromhex(match["hash"]), int(match["group"]))
    return key if block_name(key) == name else None
