"""SHA-256 of model files, remembered so that a restart does not read them all again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from workers.models.messages import OnProgress, Progress, ignore

_CHUNK = 1 << 22  # bytes
_REPORT_EVERY = 1 << 27  # bytes


class _Entry(msgspec.Struct, frozen=True):
    """Digest of some files, true as long as each has this name, size and change time."""

    files: list[tuple[str, int, int]]
    sha256: str


class DigestCache:
    """Digests beside the models, in one JSON file; losing it costs time only.

    Two processes that write at once may lose each other's entries, never mix them up.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def digest(self, files: Sequence[Path], progress: OnProgress = ignore) -> str:
        """SHA-256, in hex, of files one after another.

        Args:
            files: of one folder.

        Raises:
            OSError: a file cannot be read.
        """
        stats = [(file.name, file.stat()) for file in files]
        seen = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
        key = f"{files[0].parent}/{files[0].name}"
        entry = self._load().get(key)
        if entry is not None and entry.files == seen:
            return entry.sha256
        sha256 = _hash(files, sum(stat.st_size for _, stat in stats), progress)
        self._save(key, _Entry(seen, sha256))
        return sha256

    def _load(self) -> dict[str, _Entry]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, _Entry])
        except (OSError, msgspec.DecodeError):
            return {}

    def _save(self, key: str, entry: _Entry) -> None:
        entries = {name: old for name, old in self._load().items() if Path(name).exists()}
        entries[key] = entry
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(entries))
            temporary.replace(self._path)
        except OSError:
            # A full disk must not keep a model of the user's own from being served.
            temporary.unlink(missing_ok=True)


def _hash(files: Sequence[Path], total: int, progress: OnProgress) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    done = reported = 0
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while size := stream.readinto(buffer):
                digest.update(buffer[:size])
                done += size
                if done - reported >= _REPORT_EVERY:
                    progress(Progress(phase="hashing", done_bytes=done, total_bytes=total))
                    reported = done
    return digest.hexdigest()
