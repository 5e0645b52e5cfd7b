"""A fast BLAS for MLX on a Linux CPU.

MLX's wheel brings the reference BLAS, at 3 GFLOP/s on a machine where OpenBLAS does 126.
Symbols of a library that is loaded before MLX, and globally, go before those of the one that
MLX brings. On macOS MLX has Accelerate and Metal, and nothing is to be done.

The library comes from the PyPI package `ngsolve-openblas`, which is built for every x86-64
processor (cmeel-openblas is built for AVX-512 alone and is an illegal instruction elsewhere;
scipy-openblas prefixes its symbols). It needs the runtime of GNU Fortran, which a machine
without compilers lacks and MLX's wheel carries under another name.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib import metadata
from pathlib import Path

import msgspec

PACKAGE = "ngsolve-openblas"
_MLX_PACKAGE = "mlx-cpu"
_SYMBOL = "cblas_sgemm"
_FORTRAN = "libgfortran.so.5"


class BlasError(Exception):
    """The BLAS library that was asked for is not there or cannot be used."""


class Blas(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of a BLAS library.

    Attributes:
        path: the library to load ahead of MLX, or None for MLX's own.
        reason: why this one, for people.
        slow: it is a fallback that costs a factor of 10 or more.
    """

    path: Path | None
    reason: str
    slow: bool = False


def set_up(setting: str = "", platform: str = sys.platform) -> Blas:
    """Find and load the library; call it before MLX is imported, in that process.

    Where the user named no library, one that cannot be loaded is a reason and no error.

    Raises:
        BlasError: the library that the user named is not there or cannot be used.
    """
    blas = find(setting, platform)
    if blas.path is None:
        return blas
    try:
        preload(blas.path, platform)
    except BlasError as error:
        if setting:
            raise
        return Blas(path=None, reason=f"MLX's own: {error}", slow=True)
    return blas


def find(setting: str = "", platform: str = sys.platform) -> Blas:
    """Choose the library without loading it.

    Args:
        setting: INFERLOG_BLAS: `none` for MLX's own, a path, or empty for the default.
        platform: as `sys.platform`.

    Raises:
        BlasError: the setting names a file that does not exist.
    """
    if platform != "linux":
        return Blas(path=None, reason=f"MLX's own, which is fast on {platform}")
    if setting.lower() == "none":
        return Blas(path=None, reason="MLX's own, as INFERLOG_BLAS=none asks", slow=True)
    if setting:
        path = Path(setting).expanduser()
        if not path.is_file():
            raise BlasError(f"INFERLOG_BLAS={setting}: no such file")
        return Blas(path=path.resolve(), reason="as INFERLOG_BLAS asks")
    for path in _files_of(PACKAGE):
        if path.name.startswith("libopenblas"):
            return Blas(path=path, reason=f"from the package {PACKAGE}")
    return Blas(
        path=None,
        reason=f"MLX's own: {PACKAGE} is not installed; on x86-64 `pip install {PACKAGE}`, "
        "elsewhere install OpenBLAS and name libopenblas.so with INFERLOG_BLAS",
        slow=True,
    )


def preload(path: Path, platform: str = sys.platform) -> None:
    """Load a BLAS library so that MLX, imported later, uses it. Does nothing on macOS.

    Raises:
        BlasError: it cannot be loaded, or has no BLAS under the usual names.
    """
    if platform != "linux":
        return
    try:
        library = _load(path)
    except OSError as error:
        raise BlasError(f"cannot load the BLAS library {path}: {error}") from error
    if not hasattr(library, _SYMBOL):
        raise BlasError(f"the BLAS library {path} has no {_SYMBOL}: MLX would not use it")


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        if _FORTRAN not in str(error):
            raise
        _lend_fortran()
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _lend_fortran() -> None:
    """Load the Fortran runtime from MLX's wheel under the name that other libraries need.

    The wheel's copy is named with a digest, so that it meets no other. The loader knows a
    library by the name inside it; a copy in memory is given the plain one.

    Raises:
        OSError: the wheel has no such library, or it cannot be loaded.
    """
    files = {path.name.split("-")[0]: path for path in _files_of(_MLX_PACKAGE)}
    if "libgfortran" not in files:
        raise OSError(f"{_FORTRAN} is neither installed nor in the package {_MLX_PACKAGE}")
    if "libquadmath" in files:  # needed by the former, which a copy no longer stands beside
        ctypes.CDLL(str(files["libquadmath"]))
    name = b"\0" + os.fsencode(files["libgfortran"].name) + b"\0"
    plain = b"\0" + _FORTRAN.encode()
    image = files["libgfortran"].read_bytes().replace(name, plain.ljust(len(name), b"\0"))
    memory = os.memfd_create(_FORTRAN)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(image)
        ctypes.CDLL(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)


def _files_of(package: str) -> list[Path]:
    """The shared libraries of an installed package."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if ".so" in file.name]
