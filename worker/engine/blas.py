"""Fast and row-invariant fp32 matrix products for mlx on Linux CPUs.

mlx's Linux wheel links a reference BLAS of a few GFLOP/s. An OpenBLAS that is loaded globally before mlx interposes `cblas_sgemm` and is
20 to 80 times faster. Its Sandybridge kernels give a row the same bits for every row index and batch size; its newer kernels do not, and
then a row would depend on the slot it was decoded in. So the library is probed before mlx can see it, and left out when it fails.

`SPECMILL_BLAS` decides: `auto` (default; OpenBLAS if it is row-invariant), `openblas` (OpenBLAS in any case), `reference` (never).
"""

import ctypes
import os
import platform
import sys
from functools import cache

import numpy as np

LIBRARY = "libopenblas.so.0"
INVARIANT_KERNEL = "Sandybridge"  # measured bit-identical for M = 1 to 96 rows, 1 and 2 threads, OpenBLAS 0.3.21
REFERENCE = "reference"  # what mlx brings along
MODES = ("auto", "openblas", REFERENCE)
_ROW_MAJOR, _NO_TRANSPOSE, _TRANSPOSE = 101, 111, 112  # CBLAS enumeration


@cache
def prepare() -> str:
    """Put the best row-invariant BLAS in place; call before mlx is imported, later calls change nothing.

    Returns:
        The library and its kernel, `reference` on Linux without one, or the empty string where mlx does not use BLAS of this kind.
    """
    if sys.platform != "linux":
        return ""
    mode = os.environ.get("SPECMILL_BLAS", "auto")
    if mode not in MODES:
        raise ValueError(f"SPECMILL_BLAS must be one of {', '.join(MODES)}; received {mode!r}")
    if mode == REFERENCE:
        return REFERENCE
    if "mlx.core" in sys.modules:
        _warn("mlx was imported before OpenBLAS could be loaded; fp32 matrix products run on the reference BLAS.")
        return REFERENCE
    if platform.machine() == "x86_64":
        os.environ.setdefault("OPENBLAS_CORETYPE", INVARIANT_KERNEL)
    try:
        library = ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_LOCAL)
    except OSError:
        _warn(f"{LIBRARY} was not found: fp32 runs 20 to 80 times slower. On Debian or Ubuntu: apt-get install libopenblas0-pthread")
        return REFERENCE
    kernel = _kernel_name(library)
    if mode == "auto" and not sgemm_is_row_invariant(library):
        _warn(
            f"OpenBLAS with its {kernel} kernel makes a row depend on its batch slot; using the slow reference BLAS instead. "
            f"Unset OPENBLAS_CORETYPE (now {os.environ.get('OPENBLAS_CORETYPE', 'unset')!r}) to get the row-invariant kernel, "
            "or set SPECMILL_BLAS=openblas to accept the dependence."
        )
        return REFERENCE
    ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_GLOBAL)
    return f"openblas {kernel}"


def sgemm_is_row_invariant(library: ctypes.CDLL, inner: int = 288, columns: int = 96) -> bool:
    """Whether `cblas_sgemm` gives one row the same bits at every index of every batch size, and the right values.

    One row [inner] is multiplied with a matrix [columns, inner] as 1, 2, … 96 equal rows.
    """
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((columns, inner)).astype(np.float32)
    row = rng.standard_normal((1, inner)).astype(np.float32)
    alone = _sgemm(library, row, weight)
    if not np.allclose(alone, row.astype(np.float64) @ weight.T.astype(np.float64), rtol=1e-3, atol=1e-3):
        return False
    return all(
        np.array_equal(_sgemm(library, np.repeat(row, count, axis=0), weight), np.repeat(alone, count, axis=0))
        for count in (2, 3, 4, 5, 7, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96)
    )


def _sgemm(library: ctypes.CDLL, left: np.ndarray, weight: np.ndarray) -> np.ndarray:
    rows, inner = left.shape
    columns = weight.shape[0]
    out = np.zeros((rows, columns), np.float32)
    pointer = ctypes.POINTER(ctypes.c_float)
    library.cblas_sgemm(
        _ROW_MAJOR,
        _NO_TRANSPOSE,
        _TRANSPOSE,
        *(rows, columns, inner),
        ctypes.c_float(1.0),
        *(left.ctypes.data_as(pointer), inner),
        *(weight.ctypes.data_as(pointer), inner),
        ctypes.c_float(0.0),
        *(out.ctypes.data_as(pointer), columns),
    )
    return out


def _kernel_name(library: ctypes.CDLL) -> str:
    library.openblas_get_corename.restype = ctypes.c_char_p
    return str(library.openblas_get_corename().decode())


def _warn(text: str) -> None:
    print(f"specmill: {text}", file=sys.stderr, flush=True)
