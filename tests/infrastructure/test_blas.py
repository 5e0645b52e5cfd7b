"""Which BLAS library is loaded ahead of MLX, and how."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infrastructure import blas

linux = pytest.mark.skipif(sys.platform != "linux", reason="MLX has its own elsewhere")
ROOT = Path(__file__).parents[2]
INSTALLED = blas.find("", "linux").path
packaged = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="there is no package for it"
)


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own: a library once loaded stays."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def probe(setting: str) -> dict[str, Any]:
    """What `python -m workers.runner.probe` prints."""
    environment = os.environ | {"INFERLOG_BLAS": setting}
    command = [sys.executable, "-m", "workers.runner.probe"]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.returncode == (1 if "error" in found else 0), result.stderr
    return found


def test_macos_needs_none() -> None:
    choice = blas.set_up("", "darwin")
    assert choice.path is None
    assert not choice.slow
    blas.preload(Path("/absent"), "darwin")


def test_none_means_mlx_s_own() -> None:
    for setting in ("none", "None"):
        choice = blas.find(setting, "linux")
        assert choice.path is None
        assert choice.slow


def test_a_path_goes_before_the_package(tmp_path: Path) -> None:
    library = tmp_path / "libblas.so"
    library.touch()
    assert blas.find(str(library), "linux").path == library


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(blas.BlasError, match=f"INFERLOG_BLAS={tmp_path}/absent.so: no such file"):
        blas.find(f"{tmp_path}/absent.so", "linux")
    with pytest.raises(blas.BlasError, match="no such file"):
        blas.find(str(tmp_path), "linux")


@linux
def test_a_file_that_is_no_library_is_named(tmp_path: Path) -> None:
    library = tmp_path / "libblas.so"
    library.write_text("no library")
    with pytest.raises(blas.BlasError, match=f"cannot load the BLAS library {library}"):
        blas.set_up(str(library), "linux")


@linux
def test_a_library_without_blas_is_refused() -> None:
    import _ctypes

    with pytest.raises(blas.BlasError, match="has no cblas_sgemm"):
        blas.preload(Path(_ctypes.__file__))


@packaged
def test_the_package_is_found_without_being_imported() -> None:
    code = (
        "import sys; from infrastructure import blas; print(blas.find().path);"
        "assert not {'ngsolve_openblas', 'mlx', 'numpy'} & set(sys.modules)"
    )
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(INSTALLED)


def test_without_the_package_the_way_to_get_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_files_of", lambda package: [])
    choice = blas.set_up("", "linux")
    assert choice.path is None
    assert choice.slow
    assert "pip install ngsolve-openblas" in choice.reason


@linux
def test_a_default_that_cannot_be_loaded_is_a_reason_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libopenblas.so"
    library.write_text("no library")
    monkeypatch.setattr(blas, "_files_of", lambda package: [library])
    choice = blas.set_up("", "linux")
    assert choice.path is None
    assert choice.slow
    assert str(library) in choice.reason


@packaged
def test_a_machine_without_a_fortran_runtime_borrows_mlx_s() -> None:
    code = (
        "from infrastructure import blas; blas._lend_fortran(); import ctypes;"
        "ctypes.CDLL('libgfortran.so.5')._gfortran_concat_string; blas.set_up(); print('fine')"
    )
    result = run(code)
    assert result.stdout.strip() == "fine", result.stderr


@linux
def test_without_any_fortran_runtime_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_files_of", lambda package: [])
    with pytest.raises(OSError, match=r"libgfortran\.so\.5 is neither installed nor in"):
        blas._lend_fortran()


@packaged
def test_mlx_computes_many_times_faster_with_it() -> None:
    fast, slow = probe(""), probe("none")
    assert fast["blas_path"] == str(INSTALLED)
    assert slow["blas_path"] is None
    assert fast["gflops"] > 4 * slow["gflops"]
    for found in (fast, slow):
        assert found["device"] == "cpu"
        assert found["mlx_version"]
        assert found["memory_bytes"] > 1 << 30


@packaged
def test_a_copy_anywhere_works_as_the_package_does(tmp_path: Path) -> None:
    assert INSTALLED is not None
    library = Path(shutil.copy(INSTALLED, tmp_path / "libanything.so"))
    assert probe(str(library))["blas_path"] == str(library)


def test_the_probe_names_what_is_wrong() -> None:
    if sys.platform == "linux":
        assert probe("/absent.so") == {"error": "INFERLOG_BLAS=/absent.so: no such file"}
