"""Reading GGUF files, against the gguf package's own reader."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.workers.models import samples
from workers.models.errors import ModelError, ModelInvalid, ModelUnsupported
from workers.models.gguf_file import SERVED, GgufFile


@pytest.mark.parametrize("encoding", SERVED)
def test_a_file_is_read_as_the_reference_reads_it(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "model.gguf"
    expected = samples.write(path, encoding=encoding)
    file, reference = GgufFile(path), gguf.GGUFReader(path)
    file.check_tensors()
    theirs = {name: f.contents() for name, f in reference.fields.items() if name[:5] != "GGUF."}
    assert file.metadata == theirs
    assert [tensor.offset for tensor in file.tensors.values()] == [
        tensor.data_offset for tensor in reference.tensors
    ]
    for name, tensor in file.tensors.items():
        np.testing.assert_array_equal(file.read(tensor), expected[name], strict=True)


def test_an_encoding_that_is_not_served_is_named_with_its_tensor(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    samples.write(path, encoding="Q5_0")
    with pytest.raises(ModelUnsupported, match=r"token_embd\.weight is of type Q5_0") as raised:
        GgufFile(path).check_tensors()
    assert "Q8_0" in str(raised.value)


def test_an_encoding_that_nobody_knows_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    samples.write(path)
    content = bytearray(path.read_bytes())
    # A tensor's name is followed by its number of dimensions, these, and its encoding.
    at = content.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 2 * 8
    content[at : at + 4] = struct.pack("<I", 999)
    path.write_bytes(content)
    with pytest.raises(ModelUnsupported, match=r"token_embd\.weight is of type number 999"):
        GgufFile(path).check_tensors()


def test_a_file_cut_off_anywhere_is_an_error_that_says_so(tmp_path: Path) -> None:
    whole, cut = tmp_path / "model.gguf", tmp_path / "cut.gguf"
    samples.write(whole, encoding="Q4_0")
    content = whole.read_bytes()
    for size in [*range(64), *range(64, len(content), 997), len(content) - 1]:
        cut.write_bytes(content[:size])
        with pytest.raises(ModelInvalid, match="broken or incomplete"):
            GgufFile(cut).check_tensors()


def test_a_file_with_wrong_bytes_is_never_worse_than_an_error(tmp_path: Path) -> None:
    whole, damaged = tmp_path / "model.gguf", tmp_path / "damaged.gguf"
    samples.write(whole)
    content = whole.read_bytes()
    header = content.index(b"output_norm.weight") + 64
    dice = random.Random(7)
    for _ in range(400):
        wrong = bytearray(content)
        at = dice.randrange(header)
        wrong[at : at + 8] = dice.randbytes(8)
        damaged.write_bytes(wrong)
        try:
            GgufFile(damaged).check_tensors()
        except ModelError as error:
            assert str(damaged) in str(error)  # noqa: PT017 - some damage goes unseen


def test_a_length_beyond_all_memory_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    samples.write(path)
    content = bytearray(path.read_bytes())
    # The key is followed by the types of the array and its items, and their count.
    at = content.index(b"token_type") + len(b"token_type") + 8
    for count in (2**32, 2**61, 2**63, 2**64 - 1):
        content[at : at + 8] = struct.pack("<Q", count)
        path.write_bytes(content)
        with pytest.raises(ModelInvalid, match="broken or incomplete"):
            GgufFile(path)


def test_an_empty_file_and_other_files_are_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for content in (b"", b"GGUF", b"PK\x03\x04" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(ModelInvalid):
            GgufFile(path)
    with pytest.raises(ModelInvalid, match="cannot read"):
        GgufFile(tmp_path / "absent.gguf")


def test_a_version_from_the_past_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    with pytest.raises(ModelUnsupported, match="version 1"):
        GgufFile(path)
