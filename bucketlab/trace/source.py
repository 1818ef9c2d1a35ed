"""Bytes of a trace file, plain or gzip, in pieces. Damage ends the stream early and is told, not raised."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from isal import isal_zlib

from bucketlab.errors import BadInput

_GZIP_MAGIC = b"\x1f\x8b"
_READ_BYTES = 2**20
_GZIP_WINDOW = 31  # zlib's "wbits" for a gzip header


class Source:
    """An iterator over the content; afterwards `damage` says where and why it ended early, if it did."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                packed = file.read(2) == _GZIP_MAGIC
                file.seek(0)
                yield from self._unpacked(file) if packed else iter(lambda: file.read(_READ_BYTES), b"")
        except OSError as error:
            raise BadInput(f"{self.path}: {error.strerror or error}") from None

    def _unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        stream = isal_zlib.decompressobj(_GZIP_WINDOW)
        while block := file.read(_READ_BYTES):
            if stream.eof:  # several gzip files may follow one another, with zeros between them
                block = block.lstrip(b"\0")
                stream = isal_zlib.decompressobj(_GZIP_WINDOW)
            while block:
                try:
                    # Bounded, so that a small file of zeros cannot fill the memory.
                    piece = stream.decompress(block, _READ_BYTES * 8)
                except (zlib.error, isal_zlib.error) as error:
                    self.damage = f"its gzip data is damaged near byte {file.tell()} ({error})"
                    return
                yield piece
                block = stream.unconsumed_tail
                if stream.eof:
                    block = stream.unused_data.lstrip(b"\0")
                    if block:
                        stream = isal_zlib.decompressobj(_GZIP_WINDOW)
        if not stream.eof:
            yield stream.flush()
            self.damage = "its gzip data ends too soon"
