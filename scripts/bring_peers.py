"""Bring other projects' released code for the tests marked `peer` and for the bench: `make peers`.

Downloads the vLLM wheel (about 340 MB) with pip, keeps a few Python files of it under `peers_dir()`, and
removes the rest. Nothing is installed and nothing is written into the checkout. Running it again does
nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from scripts.peers import VLLM_PARTS, VLLM_VERSION, vllm_dir


def main() -> int:
    target = vllm_dir()
    if (target / VLLM_PARTS[0]).is_file():
        print(f"vLLM {VLLM_VERSION} is there: {target}", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory(prefix="kvbus-peers-") as folder:
        print(f"downloading the wheel of vLLM {VLLM_VERSION}, about 340 MB …", file=sys.stderr)
        done = subprocess.run(_pip_download(Path(folder)), check=False)
        wheel = next(Path(folder).glob("vllm-*.whl"), None)
        if done.returncode or wheel is None:
            print(
                "pip could not bring it; the tests marked `peer` will say that they are skipped",
                file=sys.stderr,
            )
            return 2
        count = unpack(wheel, target)
    print(f"{count} files of vLLM {VLLM_VERSION} in {target}", file=sys.stderr)
    return 0


def unpack(wheel: Path, target: Path) -> int:
    """Lay the wanted files of a wheel under ``target``, and how many. The first one wanted comes last: it
    marks the whole as there."""
    with zipfile.ZipFile(wheel) as archive:
        wanted = [name for name in archive.namelist() if name.endswith(".py") and name.startswith(VLLM_PARTS)]
        wanted.sort(key=lambda name: name == VLLM_PARTS[0])
        archive.extractall(target, wanted)
    return len(wanted)


def _pip_download(folder: Path) -> list[str]:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--no-deps",
        "--no-cache-dir",
    ]
    return [*pip, "--only-binary=:all:", "--dest", str(folder), f"vllm=={VLLM_VERSION}"]


if __name__ == "__main__":
    sys.exit(main())
