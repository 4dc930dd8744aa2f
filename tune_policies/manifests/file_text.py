"""Reads the text of a file: plain or gzipped, or what is piped in."""

import sys
import zlib
from pathlib import Path as FilePath
from typing import BinaryIO, Final

from tune_policies.errors import InvalidResourcesError
from tune_policies.manifests.documents import MAX_CHARACTERS, DocumentError

_GZIP: Final = b"\x1f\x8b"
_MAX_BYTES: Final = MAX_CHARACTERS  # UTF-8 has no fewer bytes than characters


def read_text(path: str | FilePath) -> str:
    """Return the text of a file, unpacked if it is gzipped; ``-`` is what is piped in.

    Raises:
        DocumentError: It is too long, is no text in UTF-8, or does not unpack.
        InvalidResourcesError: There is no such file, or it may not be read.
    """
    source = str(path)
    try:
        if source == "-":
            return _decoded(sys.stdin.buffer, source)
        with FilePath(path).open("rb") as file:
            return _decoded(file, source)
    except DocumentError:
        raise
    except (OSError, ValueError) as error:  # not there, a folder, or a name that no file can have
        raise InvalidResourcesError(f"cannot read {source}: {error}") from error


def _decoded(file: BinaryIO, source: str) -> str:
    data = file.read(_MAX_BYTES + 1)
    if data.startswith(_GZIP) and len(data) <= _MAX_BYTES:
        data = _unpacked(data, source)
    if len(data) > _MAX_BYTES:
        raise DocumentError(source, 1, f"more than {_MAX_BYTES:,} bytes: give the manifest alone")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DocumentError(source, line, f"the byte 0x{data[error.start]:02x} is no text in UTF-8") from error


def _unpacked(data: bytes, source: str) -> bytes:
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # which takes a limit, as gzip.decompress does not
    try:
        return unpacker.decompress(data, _MAX_BYTES + 1)
    except zlib.error as error:
        raise DocumentError(source, 1, f"does not unpack as gzip: {error}") from error
