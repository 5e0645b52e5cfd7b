"""What may go wrong between a model's name and a folder that a runner can load.

Errors::

    ModelError
    ├── ModelNotFound        nothing of this name, or the default model is not installed
    ├── ModelInvalid         the file or folder is broken or incomplete
    ├── ModelUnsupported     it is whole, but of a kind that is not served
    ├── DownloadFailed       the hub cannot be reached or does not give the model
    ├── StorageFailed        the home folder cannot be written
    └── PreparationCrashed   the process that prepares the model ended without a word
"""

from __future__ import annotations

from typing import ClassVar


class ModelError(Exception):
    """Base of these errors; the message says what to do about it.

    Attributes:
        code: names the kind of error across a process border.
    """

    code: ClassVar[str] = "model_error"


class ModelNotFound(ModelError):
    """Nothing of this name is here."""

    code = "model_not_found"


class ModelInvalid(ModelError):
    """A model file or folder is broken or incomplete."""

    code = "model_invalid"


class ModelUnsupported(ModelError):
    """A model of a kind that is not served."""

    code = "model_unsupported"


class DownloadFailed(ModelError):
    """The hub cannot be reached, or does not give this model."""

    code = "download_failed"


class StorageFailed(ModelError):
    """The home folder cannot be written: no space, no right, an I/O error."""

    code = "storage_failed"


class PreparationCrashed(ModelError):
    """The process that prepares the model ended without saying why."""

    code = "preparation_crashed"


_BY_CODE = {
    kind.code: kind
    for kind in (
        ModelNotFound,
        ModelInvalid,
        ModelUnsupported,
        DownloadFailed,
        StorageFailed,
        PreparationCrashed,
    )
}


def from_code(code: str, message: str) -> ModelError:
    """The error of this code, as it was before it crossed a process border."""
    return _BY_CODE.get(code, ModelError)(message)
