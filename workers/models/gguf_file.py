"""Read a GGUF file strictly: every length is checked against the file before it is used.

The gguf package's own reader makes one array object per metadata element (4 s for a
vocabulary of 49,152) and believes any length that the file states; its tables and its
dequantization are used here, its reader is what the tests compare with.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from workers.models.errors import ModelInvalid, ModelUnsupported

T = TypeVar("T")
Scalar: TypeAlias = str | bool | int | float
Value: TypeAlias = Scalar | list[Scalar]
Floats: TypeAlias = npt.NDArray[np.float32]

SERVED = ("F32", "F16", "Q4_0", "Q4_1", "Q8_0")
"""Tensor types that are read; others have no test against a right answer here."""

_VERSIONS = (2, 3)
_MAX_DIMS = 4
_STRING, _ARRAY = 8, 9
_FORMATS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))


class Tensor(msgspec.Struct, frozen=True):
    """Where a tensor stands in the file.

    Attributes:
        type_number: GGML's number for its encoding.
        shape: outermost dimension first, as numpy has it.
        offset: bytes from the start of the file.
    """

    name: str
    type_number: int
    shape: tuple[int, ...]
    offset: int

    @property
    def type_name(self) -> str:
        """GGML's name for the encoding, or its number where it has none."""
        try:
            return str(GGMLQuantizationType(self.type_number).name)
        except ValueError:
            return f"number {self.type_number}"


class GgufFile:
    """A GGUF file: its metadata, and its tensors read one at a time.

    Attributes:
        metadata: every key and value.
        tensors: by name.

    Raises:
        ModelInvalid: the file is no GGUF, or ends too early, or contradicts itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file cannot be mapped
            self._data = b""
        except OSError as error:
            raise ModelInvalid(f"cannot read {path}: {error.strerror}") from error
        self._at = 0
        self.metadata: dict[str, Value] = {}
        self.tensors: dict[str, Tensor] = {}
        self._read_header()

    # --- metadata -----------------------------------------------------------------------

    def text(self, key: str, default: str | None = None) -> str:
        """A string.

        Raises:
            ModelInvalid: it is missing without a default, or of another type. The same holds
                for the readers of other types below.
        """
        return self._get(key, str, default)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer."""
        value = self._get(key, int, default)
        if isinstance(value, bool):
            raise self._broken(f"metadata {key} is no integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number."""
        return self._get(key, float, default)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        return self._get(key, bool, default)

    def texts(self, key: str) -> list[str]:
        """An array of strings."""
        return [self._item(key, item, str) for item in self._get(key, list)]

    def integers(self, key: str) -> list[int]:
        """An array of integers."""
        return [self._item(key, item, int) for item in self._get(key, list)]

    def numbers(self, key: str) -> list[float]:
        """An array of numbers."""
        return [self._item(key, item, float) for item in self._get(key, list)]

    def _get(self, key: str, kind: type[T], default: T | None = None) -> T:
        value = self.metadata.get(key, default)
        if value is None:
            raise self._broken(f"metadata {key} is missing")
        return self._item(key, value, kind)

    def _item(self, key: str, value: object, kind: type[T]) -> T:
        if not isinstance(value, kind):
            raise self._broken(f"metadata {key} is no {kind.__name__}")
        return value

    # --- tensors ------------------------------------------------------------------------

    def check_tensors(self) -> None:
        """See that every tensor can be read, before any work is spent on the first.

        Raises:
            ModelUnsupported: a tensor's encoding is not served.
            ModelInvalid: a tensor reaches beyond the end of the file.
        """
        for tensor in self.tensors.values():
            if tensor.type_name not in SERVED:
                raise ModelUnsupported(
                    f"{self.path}: tensor {tensor.name} is of type {tensor.type_name}; "
                    f"served are {', '.join(SERVED)}"
                )
            end = tensor.offset + self._byte_size(tensor)
            if end > len(self._data):
                raise self._broken(
                    f"it ends early: tensor {tensor.name} ends at byte {end}, "
                    f"the file at {len(self._data)}"
                )

    def read(self, tensor: Tensor) -> Floats:
        """A tensor's numbers; `check_tensors` has passed."""
        kind = GGMLQuantizationType(tensor.type_number)
        raw = np.frombuffer(self._data, np.uint8, self._byte_size(tensor), tensor.offset)
        row_bytes = raw.size // math.prod(tensor.shape[:-1])
        floats: Floats = dequantize(raw.reshape(*tensor.shape[:-1], row_bytes), kind)
        return floats

    def _byte_size(self, tensor: Tensor) -> int:
        block: int
        block_bytes: int
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.type_number)]
        if tensor.shape[-1] % block:
            raise self._broken(
                f"tensor {tensor.name} has rows of {tensor.shape[-1]}, "
                f"which blocks of {block} do not fill"
            )
        return math.prod(tensor.shape) // block * block_bytes

    # --- the file's start ---------------------------------------------------------------

    def _read_header(self) -> None:
        magic, version = self._take("4sI")
        if magic != b"GGUF":
            raise self._broken("it does not begin with GGUF")
        if version not in _VERSIONS:
            raise ModelUnsupported(f"{self.path} is GGUF version {version}; 2 and 3 are served")
        tensor_count, value_count = self._take("QQ")
        for _ in range(value_count):
            key = self._string()
            if key in self.metadata:
                raise self._broken(f"metadata {key} stands there twice")
            self.metadata[key] = self._value(self._take("I")[0])
        infos = [self._tensor() for _ in range(tensor_count)]
        alignment = self.integer("general.alignment", 32)
        if alignment < 1:
            raise self._broken(f"an alignment of {alignment}")
        start = -(-self._at // alignment) * alignment
        for info in infos:
            if info.name in self.tensors:
                raise self._broken(f"tensor {info.name} stands there twice")
            self.tensors[info.name] = msgspec.structs.replace(info, offset=start + info.offset)

    def _tensor(self) -> Tensor:
        name = self._string()
        (count,) = self._take("I")
        if not 1 <= count <= _MAX_DIMS:
            raise self._broken(f"tensor {name} has {count} dimensions")
        shape = self._take(f"{count}Q")[::-1]
        if 0 in shape:
            raise self._broken(f"tensor {name} is empty")
        type_number, offset = self._take("IQ")
        return Tensor(name, type_number, shape, offset)

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind in _FORMATS:
            scalar: Scalar = self._take(_FORMATS[kind])[0]
            return scalar
        if kind != _ARRAY:
            raise self._broken(f"metadata of the unknown type {kind}")
        item, count = self._take("IQ")
        if item == _STRING:
            return [self._string() for _ in range(count)]
        if item not in _FORMATS:
            raise self._broken(f"a metadata array of the unknown type {item}")
        return list(self._take(f"{count}{_FORMATS[item]}"))

    def _string(self) -> str:
        (size,) = self._take("Q")
        start = self._at
        self._at = self._within(size)
        try:
            return str(self._data[start : self._at], "utf-8")
        except UnicodeDecodeError as error:
            raise self._broken(f"text at byte {start} is not UTF-8") from error

    def _take(self, format: str) -> tuple[Any, ...]:
        try:
            # Standard sizes without padding; a count too large for memory is refused too.
            end = self._within(struct.calcsize("<" + format))
        except (struct.error, OverflowError) as error:
            raise self._broken("it states an impossible length") from error
        start, self._at = self._at, end
        return struct.unpack_from("<" + format, self._data, start)

    def _within(self, size: int) -> int:
        end = self._at + size
        if end > len(self._data):
            raise self._broken(f"it ends early, at byte {len(self._data)}")
        return end

    def _broken(self, what: str) -> ModelInvalid:
        return ModelInvalid(f"{self.path} is broken or incomplete: {what}")
