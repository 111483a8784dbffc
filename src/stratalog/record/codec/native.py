"""Where the C functions of lz4 and zstd lie in this process, for kernels to call by address.

The wheels of lz4 and zstandard carry the libraries inside extension modules. Where these export
the libraries' own functions, their addresses are taken; where they do not (another platform, a
build against hidden symbols), the address is 0, and `bulk.py` works row by row through Python.
zstandard's default extension hides its symbols, the one beside it for cffi does not: it is loaded
as a plain shared library, never imported.

Invariants
- I1  A function is used only if its library says the version that the Python package says, so
      that both compress to the same bytes.
- I2  A zstd context belongs to one thread, and is freed when that thread ends.

Kernels that are not compiled call no addresses. `STRATALOG_NATIVE_CODECS=0` in the environment
turns this off as well.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Final

import lz4
import zstandard

from stratalog.record.codec import zstd
from stratalog.record.kernel.compile import is_plain

_SWITCH: Final = "STRATALOG_NATIVE_CODECS"

# Numbers of zstd.h, fixed since 1.4: enum ZSTD_cParameter.
_COMPRESSION_LEVEL: Final = 100
_CONTENT_SIZE_FLAG: Final = 200
_CHECKSUM_FLAG: Final = 201


@dataclass(frozen=True, slots=True)
class Lz4Functions:
    """Addresses; 0 is none."""

    decompress_safe: int = 0
    compress_default: int = 0


@dataclass(frozen=True, slots=True)
class ZstdFunctions:
    """Addresses; 0 is none. `library` makes and frees contexts."""

    decompress_dctx: int = 0
    compress2: int = 0
    library: ctypes.CDLL | None = None


def is_enabled() -> bool:
    """Whether C functions are to be called at all. A switch for tests and for doubt."""
    return not is_plain() and os.environ.get(_SWITCH, "1") != "0"


@functools.cache
def find_lz4() -> Lz4Functions:
    """The functions of the library inside the lz4 package, if it shows them."""
    try:
        library = _load("lz4.block._block")
        if library.LZ4_versionNumber() != lz4.library_version_number():
            return Lz4Functions()
        return Lz4Functions(
            _address(library.LZ4_decompress_safe), _address(library.LZ4_compress_default)
        )
    except (AttributeError, ImportError, OSError):
        return Lz4Functions()


@functools.cache
def find_zstd() -> ZstdFunctions:
    """The functions of the library inside the zstandard package, if it shows them."""
    try:
        library = _load("zstandard._cffi")
        major, minor, patch = zstandard.ZSTD_VERSION
        if library.ZSTD_versionNumber() != (major * 100 + minor) * 100 + patch:
            return ZstdFunctions()
        for name in ("ZSTD_createDCtx", "ZSTD_createCCtx"):
            getattr(library, name).restype = ctypes.c_void_p
        for name in ("ZSTD_freeDCtx", "ZSTD_freeCCtx"):
            getattr(library, name).argtypes = [ctypes.c_void_p]
        set_parameter = library.ZSTD_CCtx_setParameter
        set_parameter.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
        set_parameter.restype = ctypes.c_ssize_t
        return ZstdFunctions(
            _address(library.ZSTD_decompressDCtx), _address(library.ZSTD_compress2), library
        )
    except (AttributeError, ImportError, OSError):
        return ZstdFunctions()


def zstd_decompressor() -> int:
    """The address of this thread's decompression context; 0 if there is none."""
    library = find_zstd().library
    if library is None:
        return 0
    if _contexts.decompressor is None:
        address = library.ZSTD_createDCtx() or 0
        _contexts.decompressor = _Context(address, library.ZSTD_freeDCtx)
    return _contexts.decompressor.address


def zstd_compressor() -> int:
    """The address of this thread's compression context, set as `zstd.compress` is; 0 if none."""
    library = find_zstd().library
    if library is None:
        return 0
    if _contexts.compressor is None:
        address = library.ZSTD_createCCtx() or 0
        context = _Context(address, library.ZSTD_freeCCtx)
        settings = (
            (_COMPRESSION_LEVEL, zstd.DEFAULT_LEVEL),
            (_CONTENT_SIZE_FLAG, 0),
            (_CHECKSUM_FLAG, 0),
        )
        if address and any(
            library.ZSTD_CCtx_setParameter(address, name, value) < 0 for name, value in settings
        ):
            context = _Context(0, library.ZSTD_freeCCtx)
        _contexts.compressor = context
    return _contexts.compressor.address


class _Context:
    """A context of the C library: freed when nothing refers to this object any more."""

    def __init__(self, address: int, free: ctypes._NamedFuncPointer):
        self.address = address
        # The process's end frees all memory; by then the library may be gone.
        weakref.finalize(self, free, address).atexit = False


class _Contexts(threading.local):
    decompressor: _Context | None = None
    compressor: _Context | None = None


_contexts = _Contexts()


def _load(module: str) -> ctypes.CDLL:
    """The shared library that is the extension `module`, found but not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(module)
    return ctypes.CDLL(spec.origin)


def _address(function: ctypes._NamedFuncPointer) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
