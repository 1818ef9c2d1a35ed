"""A file's bytes in blocks: the same as the standard library unpacks, and of a damaged file all that it still holds."""

from __future__ import annotations

import gzip
import os
import threading
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab.errors import BadInput
from bucketlab.trace import source
from bucketlab.trace.source import Damaged, blocks

TEXT = b"".join(b'{"ts": %d, "name": "%x"}, ' % (number * 7919, number**5) for number in range(300))


def content(path):
    """All that is handed out, and why it ends early."""
    found = []
    try:
        for block in blocks(path):
            assert 0 < len(block) <= source.BLOCK_BYTES
            found.append(block)
    except Damaged as damage:
        return b"".join(found), str(damage)
    return b"".join(found), None


def written(folder, data):
    path = folder / "file"
    path.write_bytes(data)
    return path


def still_in(packed):
    """What zlib gets out of it byte by byte, up to the damage."""
    unpacker, found = zlib.decompressobj(31), b""
    for i in range(len(packed)):
        try:
            found += unpacker.decompress(packed[i : i + 1])
        except zlib.error:
            break
    return found


@pytest.fixture(params=[7, 1000, None], ids="blocks of {} bytes".format)
def block_sizes(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(source, "BLOCK_BYTES", request.param)
        monkeypatch.setattr(source, "_PACKED_BYTES", request.param)


def test_plain_and_packed_files_are_read_whole(tmp_path, block_sizes):
    for data in (TEXT, gzip.compress(TEXT), gzip.compress(TEXT, 0)):
        assert content(written(tmp_path, data)) == (TEXT, None)


def test_gzip_members_follow_one_another_even_with_zeros_between(tmp_path, block_sizes):
    one, other = gzip.compress(TEXT), gzip.compress(b"and more")
    for between in (b"", b"\0" * 5000):
        assert content(written(tmp_path, one + between + other + between)) == (TEXT + b"and more", None)


def test_what_is_no_gzip_behind_a_member_is_damage_and_costs_nothing_before(tmp_path, block_sizes):
    found, why = content(written(tmp_path, gzip.compress(TEXT) + b"something else"))
    assert found == TEXT
    assert why


def test_a_gz_cut_off_anywhere_gives_what_zlib_gets_out_of_it(tmp_path, block_sizes):
    packed = gzip.compress(TEXT)
    for size in range(2, len(packed), 61):
        found, why = content(written(tmp_path, packed[:size]))
        left = still_in(packed[:size])
        assert left.startswith(found)
        assert len(found) >= len(left) - 2  # isal keeps the last symbols to itself
        assert why


@settings(deadline=None)
@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_a_gz_with_a_wrong_byte_gives_at_least_what_zlib_gets_out_of_it(tmp_path_factory, where, change):
    packed = bytearray(gzip.compress(TEXT))
    at = 10 + int(where * (len(packed) - 10))
    packed[at] ^= change
    found, why = content(written(tmp_path_factory.getbasetemp(), bytes(packed)))
    left = still_in(bytes(packed))
    sure = max(0, len(left) - 2)
    assert found[:sure] == left[:sure]
    assert why or found == TEXT


def test_a_wrong_checksum_is_told_though_everything_was_read(tmp_path):
    packed = bytearray(gzip.compress(TEXT))
    packed[-6] ^= 1
    found, why = content(written(tmp_path, bytes(packed)))
    assert found == TEXT
    assert why


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"PK\x03\x04....", "zip"),
        (b"\x28\xb5\x2f\xfd....", "zstd"),
        (b"\xfd7zXZ\0...", "xz"),
        (b"BZh91AY...", "bzip2"),
    ],
)
def test_files_that_cannot_be_unpacked_are_refused_with_the_remedy(tmp_path, data, says):
    with pytest.raises(BadInput, match=says):
        list(blocks(written(tmp_path, data)))


def test_a_folder_or_a_missing_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(BadInput, match="directory"):
            list(blocks(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of Unix")
def test_a_pipe_is_read_like_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(TEXT),))
    writer.start()
    assert content(pipe) == (TEXT, None)
    writer.join()


def test_a_pipe_is_waited_for_as_long_as_somebody_writes_to_it(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    opened, go = threading.Event(), threading.Event()

    def write():
        with pipe.open("wb") as file:
            opened.set()
            go.wait(20)
            file.write(gzip.compress(TEXT))

    writer = threading.Thread(target=write)
    writer.start()
    reader = threading.Timer(0.2, go.set)
    reader.start()
    assert content(pipe) == (TEXT, None)
    assert opened.is_set()
    writer.join()


def test_a_pipe_that_nobody_writes_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "_WAIT_FOR_WRITER_MS", 20)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(BadInput, match="nobody writes to"):
        content(pipe)
