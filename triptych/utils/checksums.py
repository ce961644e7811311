"""SHA-256 and sizes of files, to notice damage. They show accidents, not forgery: who edits a file can edit these."""

import hashlib
import json
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from triptych.utils.files import open_regular

Checksums = dict[str, dict[str, Any]]
"""By name relative to a folder: {"bytes": size, "sha256": hash}."""

_THREADS = 4  # SHA-256 runs outside of Python's lock


def sha256(path: Path) -> str:
    """The hash of a file, in hexadecimal."""
    with open(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_json(content: Any) -> str:
    """The hash of a content, however its JSON is laid out."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def checksums(folder: Path, names: Collection[str]) -> Checksums:
    """Of these files of a folder."""
    paths = {name: folder / name for name in sorted(names)}
    with ThreadPoolExecutor(_THREADS) as threads:
        hashes = dict(zip(paths, threads.map(sha256, paths.values())))
    return {name: {"bytes": path.stat().st_size, "sha256": hashes[name]} for name, path in paths.items()}


def differing_files(folder: Path, present: Collection[str], expected: Mapping[str, Any]) -> list[str]:
    """A clause for each file that is missing, unexpected or changed; `present` are the names that the folder has.

    Only files of both lists are read, so names with `..` in a hostile list read nothing. A file of another size is not
    hashed.
    """
    problems = [f"{name} is missing" for name in sorted(expected.keys() - set(present))]
    problems += [f"{name} is unexpected" for name in sorted(set(present) - expected.keys())]
    rest = []
    for name in sorted(set(present) & expected.keys()):
        known, size = expected[name], (folder / name).stat().st_size
        if not isinstance(known, dict) or size != known.get("bytes"):
            what = f"{known.get('bytes')} bytes" if isinstance(known, dict) else "a size and a hash"
            problems.append(f"{name} has {size} bytes, expected {what}")
        else:
            rest.append(name)
    actual = checksums(folder, rest)
    problems += [f"{name} is damaged: its SHA-256 is another" for name in rest if actual[name] != expected[name]]
    return problems
