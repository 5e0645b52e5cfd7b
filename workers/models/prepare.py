"""Bring a model onto this machine, once, whole or not at all.

A model is built in a folder beside its final one, synced, and renamed. Whoever builds holds
a lock on the model's name, so that a folder that is being built without its lock being held
is what a killed process left behind.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import assert_never

import msgspec

from workers.models.catalog import (
    DefaultModel,
    FolderModel,
    GgufModel,
    HubModel,
    ModelSource,
)
from workers.models.digests import DigestCache
from workers.models.errors import ModelError, ModelInvalid, ModelNotFound, StorageFailed
from workers.models.folder import check_folder, describe
from workers.models.messages import DType, OnProgress, PreparedModel, ignore

_STAMP = "inferlog.json"
_LOADER = 1
"""Raised whenever the loader writes something else for the same file."""


class _Stamp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a folder was made from; lies in the folder and so says that it is whole.

    Attributes:
        size: bytes of the source file.
        mtime_ns: its change time.
        commit: of the hub's repository.
    """

    source: str
    dtype: str | None = None
    size: int = 0
    mtime_ns: int = 0
    loader: int = 0
    commit: str | None = None


def prepare(
    source: ModelSource, home: Path, dtype: DType = "float32", progress: OnProgress = ignore
) -> PreparedModel:
    """Make a model ready to load; at once, and without network, where it is ready already.

    Args:
        source: from `workers.models.catalog.resolve`.
        home: inferlog's data folder; models go into `models` within it. A folder of the
            user's is served where it is and never written to.
        dtype: what GGUF weights become.
        progress: called in this thread, or in the downloading library's.

    Raises:
        ModelError: of the kind that fits, see `workers.models.errors`.
    """
    # Resolved, so that homes that share a folder of models share its digests.
    models = (home.expanduser() / "models").resolve()
    try:
        folder = _folder(source, models, dtype, progress)
        return describe(folder, source.model_id, DigestCache(models / ".digests.json"), progress)
    except OSError as error:
        raise StorageFailed(f"cannot prepare {source.model_id} in {models}: {error}") from error


def _folder(source: ModelSource, models: Path, dtype: DType, progress: OnProgress) -> Path:
    # The heavy libraries are imported only where there is work for them.
    match source:
        case FolderModel(path=path):
            return path
        case DefaultModel(path=path) | GgufModel(path=path):

            def convert(folder: Path) -> str | None:
                from workers.models import gguf_loader

                gguf_loader.convert(path, folder, dtype, progress)
                return None

            stamp = _gguf_stamp(path, dtype)
            return _Place(models, source.model_id).filled(stamp, convert, resumable=False)
        case HubModel(model_id=repo):
            place = _Place(models, repo)
            stamp = _Stamp(source=f"hub:{repo}")
            if not place.is_ready(stamp):
                from workers.models import hub

                if (cached := hub.find_cached(repo)) is not None:
                    return cached

            def download(folder: Path) -> str | None:
                return hub.download(repo, folder, progress)

            return place.filled(stamp, download, resumable=True)
        case _:
            assert_never(source)


def _gguf_stamp(path: Path, dtype: DType) -> _Stamp:
    try:
        stat = path.stat()
    except OSError as error:
        raise ModelNotFound(f"cannot read {path}: {error.strerror}") from error
    return _Stamp(
        source=path.name,
        dtype=dtype,
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        loader=_LOADER,
    )


class _Place:
    """Where one model goes, and the hidden names beside it that its making needs."""

    def __init__(self, models: Path, model_id: str) -> None:
        self._models = models
        safe = re.sub(r"[^\w.-]", "_", model_id.replace("/", "--"), flags=re.ASCII)
        # Not hidden, not `..`, and short enough for the names made from it.
        safe = safe.lstrip(".")[:128] or "model"
        self._final = models / safe
        self._lock = models / f".{safe}.lock"
        self._partial = models / f".{safe}.partial"
        self._download = models / f".{safe}.download"
        self._old = models / f".{safe}.old"

    def is_ready(self, stamp: _Stamp) -> bool:
        """Whether the model is there, whole, and made from this source."""
        try:
            found = msgspec.json.decode((self._final / _STAMP).read_bytes(), type=_Stamp)
            check_folder(self._final)
        except (OSError, msgspec.DecodeError, ModelError):
            return False
        return msgspec.structs.replace(found, commit=None) == stamp

    def filled(
        self, stamp: _Stamp, build: Callable[[Path], str | None], *, resumable: bool
    ) -> Path:
        """The model's folder, built if it is not there.

        Args:
            build: fills an empty folder, and may return the commit for the stamp.
            resumable: `build` goes on with what an earlier, killed one left.

        Raises:
            ModelError: `build` failed; a model that was there before still is.
            OSError: a folder cannot be written.
        """
        if self.is_ready(stamp):
            return self._final
        self._models.mkdir(parents=True, exist_ok=True)
        with _locked(self._lock):
            if self.is_ready(stamp):  # by another process, while this one waited
                return self._final
            if self._final.exists() and not (self._final / _STAMP).exists():
                raise StorageFailed(
                    f"{self._final} was not made by inferlog and is not replaced; "
                    "move it away, or name it with --model"
                )
            _sweep(self._models)
            shutil.rmtree(self._partial, ignore_errors=True)
            shutil.rmtree(self._old, ignore_errors=True)
            working = self._download if resumable else self._partial
            working.mkdir(exist_ok=True)
            try:
                commit = build(working)
                check_folder(working)
                stamp = msgspec.structs.replace(stamp, commit=commit)
                (working / _STAMP).write_bytes(msgspec.json.encode(stamp))
                _sync(working)
                self._publish(working)
            except ModelInvalid:
                # Going on with a broken download would break again.
                shutil.rmtree(working, ignore_errors=True)
                raise
            except BaseException:
                if not resumable or not any(working.iterdir()):
                    shutil.rmtree(working, ignore_errors=True)
                raise
            return self._final

    def _publish(self, working: Path) -> None:
        if self._final.exists():
            self._final.rename(self._old)
        working.rename(self._final)
        _sync_one(self._models)
        shutil.rmtree(self._old, ignore_errors=True)


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock that ends with this process, however it ends.

    The file stays: removing it would let two processes lock two files of one name.

    Raises:
        BlockingIOError: with `wait` off, another process holds it.
    """
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def _sweep(models: Path) -> None:
    """Remove what killed conversions of other models left behind."""
    for leftover in [*models.glob(".*.partial"), *models.glob(".*.old")]:
        try:
            with _locked(leftover.with_suffix(".lock"), wait=False):
                shutil.rmtree(leftover, ignore_errors=True)
        except BlockingIOError:
            continue  # its maker is alive; or it is this model's, whose lock is held


def _sync(folder: Path) -> None:
    """Have a folder's files on the disk before its name says that they are there."""
    for root, _, names in os.walk(folder):
        for name in names:
            _sync_one(Path(root) / name)
        _sync_one(Path(root))


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
