"""Reads the text of a manifest: from a file, plain or gzipped, or what is piped in."""

import gzip
import io
import sys
import zlib
from pathlib import Path as FilePath
from typing import Final

from tune_policies.files.reading import decode, read_bytes
from tune_policies.files.yaml_documents import MAX_CHARACTERS, DocumentError
from tune_policies.values.errors import InvalidResourcesError

GZIP: Final = b"\x1f\x8b"
"""How a gzipped file begins."""

_MAX_BYTES: Final = MAX_CHARACTERS  # UTF-8 has no fewer bytes than characters


def read_text(path: str | FilePath, times: int = 1) -> str:
    """Return the text of a file, unpacked if it is gzipped.

    Args:
        path: The file; ``-`` is what is piped in.
        times: How many times as large as a manifest it may be.

    Raises:
        DocumentError: It is too long unpacked, is no text in UTF-8, or does not unpack.
        InvalidResourcesError: It cannot be read, or is too long.
    """
    source, max_bytes = str(path), _MAX_BYTES * times
    data = _piped_in(max_bytes) if source == "-" else read_bytes(path, max_bytes=max_bytes)
    if data.startswith(GZIP) and len(data) <= max_bytes:
        data = _unpacked(data, source, max_bytes)
    if len(data) > max_bytes:
        raise DocumentError(source, 1, f"more than {max_bytes:,} bytes: give what is needed alone")
    return decode(data, source)


def _piped_in(max_bytes: int) -> bytes:
    try:
        return sys.stdin.buffer.read(max_bytes + 1)
    except (AttributeError, OSError, ValueError) as error:  # it was closed, before this program began or since
        raise InvalidResourcesError("cannot read what is piped in: there is nothing") from error


def _unpacked(data: bytes, source: str, max_bytes: int) -> bytes:
    try:
        with gzip.open(io.BytesIO(data)) as file:  # which takes a limit, as gzip.decompress does not
            return file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:  # no gzip, cut off, or spoilt
        raise DocumentError(source, 1, f"does not unpack as gzip: {error}") from error
