"""Reads the text of a file: plain or gzipped, or what is piped in."""

import gzip
import io
import sys
import zlib
from pathlib import Path as FilePath
from typing import BinaryIO, Final

from tune_policies.errors import InvalidResourcesError
from tune_policies.manifests.documents import MAX_CHARACTERS, DocumentError

GZIP: Final = b"\x1f\x8b"
"""How a gzipped file begins."""

_MAX_BYTES: Final = MAX_CHARACTERS  # UTF-8 has no fewer bytes than characters


def read_text(path: str | FilePath, room: int = 1) -> str:
    """Return the text of a file, unpacked if it is gzipped.

    Args:
        path: The file; ``-`` is what is piped in.
        room: How many times as large as a manifest it may be.

    Raises:
        DocumentError: It is too long, is no text in UTF-8, or does not unpack.
        InvalidResourcesError: There is no such file, or it may not be read.
    """
    source = str(path)
    try:
        if source == "-":
            return _decoded(sys.stdin.buffer, source, _MAX_BYTES * room)
        with FilePath(path).open("rb") as file:
            return _decoded(file, source, _MAX_BYTES * room)
    except DocumentError:
        raise
    except (OSError, ValueError) as error:  # not there, a folder, or a name that no file can have
        raise InvalidResourcesError(f"cannot read {source}: {error}") from error


def _decoded(file: BinaryIO, source: str, max_bytes: int) -> str:
    data = file.read(max_bytes + 1)
    if data.startswith(GZIP) and len(data) <= max_bytes:
        data = _unpacked(data, source, max_bytes)
    if len(data) > max_bytes:
        raise DocumentError(source, 1, f"more than {max_bytes:,} bytes: give what is needed alone")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DocumentError(source, line, f"the byte 0x{data[error.start]:02x} is no text in UTF-8") from error


def _unpacked(data: bytes, source: str, max_bytes: int) -> bytes:
    try:
        with gzip.open(io.BytesIO(data)) as file:  # which takes a limit, as gzip.decompress does not
            return file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:  # no gzip, cut off, or spoilt
        raise DocumentError(source, 1, f"does not unpack as gzip: {error}") from error
