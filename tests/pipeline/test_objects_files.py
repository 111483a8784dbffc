"""The file system over objects, without a server: pyarrow's own local files stand for the store."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem as ArrowLocal
from pyarrow.fs import SubTreeFileSystem

from stratalog.base.errors import StorageIOError, UsageError
from stratalog.base.limits import CHUNK_BYTES
from stratalog.pipeline import object_store
from stratalog.pipeline.object_store import (
    ObjectFile,
    ObjectFileSystem,
    ObjectStore,
    is_uri,
    object_path,
    translated,
)

pytestmark = pytest.mark.requirement("SPK-9")
Count = Callable[[str, int], None]


class CountingClient:
    """A store below a directory that says which ranges were asked for."""

    def __init__(self, root: Path):
        self._client = SubTreeFileSystem(str(root), ArrowLocal())
        self.listings = 0
        self.reads: list[tuple[int, int]] = []

    def get_file_info(self, selector: Any) -> Any:
        self.listings += 1
        return self._client.get_file_info(selector)

    def open_input_file(self, path: str) -> CountingInput:
        return CountingInput(self._client.open_input_file(path), self.reads)


class CountingInput:
    def __init__(self, source: Any, reads: list[tuple[int, int]]):
        self._source, self._reads = source, reads

    def read_at(self, size: int, position: int) -> bytes:
        self._reads.append((position, size))
        found: bytes = self._source.read_at(size, position)
        return found


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    (tmp_path / "bucket" / "dir").mkdir(parents=True)
    return tmp_path / "bucket"


def opened(root: Path, name: str) -> tuple[ObjectFile, CountingClient, ObjectFileSystem]:
    client = CountingClient(root)
    filesystem = ObjectFileSystem(client)
    file = filesystem.open(f"s3://bucket/{name}", "read")
    assert isinstance(file, ObjectFile)
    return file, client, filesystem


def read(file: ObjectFile, position: int, size: int) -> bytes:
    buffer = bytearray(size)
    return bytes(buffer[: file.pread_into(buffer, position)])


def test_reads_here_and_there_are_right(bucket: Path, count_cases: Count) -> None:
    random = Random(1)
    content = random.randbytes(3 * CHUNK_BYTES + 12_345)
    (bucket / "dir" / "a").write_bytes(content)
    file, _, filesystem = opened(bucket.parent, "bucket/dir/a".removeprefix("bucket/"))
    others = [filesystem.open("s3://bucket/dir/a", "read") for _ in range(20)]
    position, tries = 0, 400
    for _ in range(tries):
        if random.random() < 0.3:
            position = random.choice([0, len(content), random.randrange(len(content) + 10)])
        size = random.choice([0, 1, 17, 61, 16 << 10, 100_000, CHUNK_BYTES, 2 * CHUNK_BYTES])
        chosen = random.choice([file, file, *others])
        assert read(chosen, position, size) == content[position : position + size]
        position += random.choice([size, size, size + 50, max(0, size - 30)])
    count_cases("random reads of objects", tries)


def test_what_is_read_in_order_is_read_ahead_in_chunks(bucket: Path) -> None:
    content = os.urandom(10 * CHUNK_BYTES)
    (bucket / "dir" / "a").write_bytes(content)
    file, client, _ = opened(bucket.parent, "dir/a")
    assert (client.reads, client.listings) == ([], 1)  # opening asks for nothing more
    position = 0
    while position < len(content):
        got = read(file, position, CHUNK_BYTES)
        assert got == content[position : position + CHUNK_BYTES]
        position += len(got) - 300 if position + len(got) < len(content) else len(got)
    sizes = sorted(size for _, size in client.reads)
    assert sum(sizes) == len(content)  # no byte twice
    assert len(sizes) <= 12
    # Headers, step by step: requests grow to chunks.
    file, client, _ = opened(bucket.parent, "dir/a")
    for position in range(0, len(content), 16 << 10):
        assert read(file, position, 16 << 10) == content[position : position + (16 << 10)]
    assert len(client.reads) < 20
    # Here and there: little is read.
    file, client, _ = opened(bucket.parent, "dir/a")
    for position in (5 << 20, 1 << 20, 30 << 20, 17):
        assert read(file, position, 61) == content[position : position + 61]
    assert sum(size for _, size in client.reads) <= 4 * (64 << 10)


def test_only_some_files_keep_what_they_read(bucket: Path) -> None:
    for number in range(40):
        (bucket / "dir" / f"{number}").write_bytes(os.urandom(200_000))
    filesystem = ObjectFileSystem(CountingClient(bucket.parent))
    files = [filesystem.open(f"s3://bucket/dir/{number}", "read") for number in range(40)]
    for file in files:
        assert isinstance(file, ObjectFile)
        read(file, 0, 10)
    held = [len(file._window) for file in files if isinstance(file, ObjectFile)]
    assert sum(size > 0 for size in held) == object_store._WINDOWS
    assert held[-1] > 0
    last = files[-1]
    assert isinstance(last, ObjectFile)
    read(last, 100_000, 100_000)  # to its end
    assert len(last._window) == 0


def test_an_object_that_is_replaced_is_told(bucket: Path) -> None:
    path = bucket / "dir" / "a"
    path.write_bytes(b"x" * 500_000)
    file, _, filesystem = opened(bucket.parent, "dir/a")
    identity = file.file_id()
    assert filesystem.stat("s3://bucket/dir/a").file_id == identity
    assert file.size_bytes() == 500_000
    path.write_bytes(b"y" * 100)
    # This one sees one moment; a new one looks again.
    assert filesystem.stat("s3://bucket/dir/a").file_id == identity
    with pytest.raises(StorageIOError, match="shorter than it was"):
        read(file, 400_000, 10)
    assert opened(bucket.parent, "dir/a")[0].file_id() != identity
    path.unlink()
    with pytest.raises(FileNotFoundError):
        opened(bucket.parent, "dir/a")
    file, _, _ = opened_and_gone(path, bucket)
    with pytest.raises(FileNotFoundError, match="no such object"):
        read(file, 0, 1)


def opened_and_gone(path: Path, bucket: Path) -> tuple[ObjectFile, CountingClient, Any]:
    path.write_bytes(b"z")
    found = opened(bucket.parent, "dir/a")
    path.unlink()
    return found


def test_directories_are_told_from_objects(bucket: Path) -> None:
    (bucket / "dir" / "a").write_bytes(b"1")
    (bucket / "dir" / "sub").mkdir()
    (bucket / "dir" / "sub" / "b").write_bytes(b"22")
    client = CountingClient(bucket.parent)
    filesystem = ObjectFileSystem(client)
    assert filesystem.list_directory("s3://bucket/dir") == ["a", "sub"]
    for path, exists, is_directory in (
        ("s3://bucket/dir", True, True),
        ("s3://bucket/dir/a", True, False),
        ("s3://bucket/dir/sub", True, True),
        ("s3://bucket/dir/none", False, False),
        ("s3://bucket/none/none", False, False),
        ("s3://bucket", True, True),
    ):
        assert filesystem.exists(path) == exists, path
        assert filesystem.is_directory(path) == is_directory, path
    assert filesystem.stat("s3://bucket/dir/sub/b").size_bytes == 2
    for path in ("s3://bucket/dir/none", "s3://bucket/dir/sub", "s3://bucket/none/x"):
        with pytest.raises(FileNotFoundError):
            filesystem.open(path, "read")
        with pytest.raises(FileNotFoundError):
            filesystem.stat(path)
    with pytest.raises(FileNotFoundError):
        filesystem.list_directory("s3://bucket/none")
    before = client.listings
    filesystem.stat("s3://bucket/dir/a")
    filesystem.list_directory("s3://bucket/dir/sub")
    assert client.listings == before  # each directory is listed once


def test_names_that_no_file_has_are_passed_over() -> None:
    class Info:
        def __init__(self, name: str):
            self.base_name = name

    class Hostile:
        def get_file_info(self, _: Any) -> list[Info]:
            names = ("", ".", "..", "a/b", "../../etc/passwd", "nul\0", "good")
            return [Info(name) for name in names]

    assert ObjectFileSystem(Hostile()).list_directory("s3://bucket/dir") == ["good"]


def test_nothing_is_written(bucket: Path) -> None:
    (bucket / "dir" / "a").write_bytes(b"1")
    file, _, filesystem = opened(bucket.parent, "dir/a")
    path = "s3://bucket/dir/a"
    for change in (
        lambda: filesystem.open(path, "update"),
        lambda: filesystem.open(path, "create"),
        lambda: filesystem.make_directory(path),
        lambda: filesystem.remove_directory(path),
        lambda: filesystem.rename(path, path + "b"),
        lambda: filesystem.unlink(path),
        lambda: filesystem.set_modified(path, 0),
        lambda: filesystem.fsync_directory(path),
        lambda: filesystem.lock(path, exclusive=True),
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(0),
        file.fsync,
    ):
        with pytest.raises(StorageIOError, match="object storage is only read here"):
            change()
    with pytest.raises(FileNotFoundError):  # as of a directory that never had a lock
        filesystem.lock(path, exclusive=False)
    assert (bucket / "dir" / "a").read_bytes() == b"1"


def test_paths_have_one_spelling() -> None:
    for given in ("s3://bucket/a/b", "S3A://bucket/a/b/", "s3n://bucket/a/b//"):
        assert object_path(given) == "s3://bucket/a/b"
    assert object_path("s3://bucket/") == "s3://bucket"
    for wrong in (
        *("gs://bucket/a", "s3:bucket", "s3://", "s3:///a", "s3://b/a", "s3://buc ket/a"),
        *("s3://user@bucket/a", "s3://bucket/a//b", "s3://bucket/./a", "s3://bucket/a/.."),
        *("s3://bucket/a\nb", "s3://bucket/a\0", "hdfs://namenode/logs"),
    ):
        with pytest.raises(UsageError) as caught:
            object_path(wrong)
        assert "\n" not in str(caught.value).removeprefix(wrong)
    assert [is_uri(path) for path in ("s3://b", "/a/b", "C:/a", "a://", "a/s3://b")] == [
        *(True, False, False, False, False)
    ]


def test_what_the_client_raises_is_one_line() -> None:
    head = "When listing objects under key 'x/' in bucket 'b': AWS Error "
    for text, reason in (
        ("NO_SUCH_BUCKET during ListObjectsV2 operation: ...", "there is no such bucket"),
        ("ACCESS_DENIED during GetObject operation: Denied", "access is refused"),
        ("UNKNOWN (HTTP status 403) during HeadObject operation", "access is refused"),
        ("UNKNOWN (HTTP status 301) during ListObjectsV2", "another region: give s3.region"),
        ("NETWORK_CONNECTION during X: curlCode: 7; Details: no route", "answer (no route)"),
        ("SLOW_DOWN during GetObject: wait\nplease (Request ID: abc)", "wait please"),
    ):
        with pytest.raises(StorageIOError) as caught, translated("s3://b/x"):
            raise OSError(head + text)
        assert reason in str(caught.value)
        assert str(caught.value).startswith("s3://b/x: ")
        assert "\n" not in str(caught.value)
        assert "Request ID" not in str(caught.value)


def test_a_pyarrow_without_s3_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.fs

    monkeypatch.delattr(pyarrow.fs, "S3FileSystem")
    with pytest.raises(UsageError, match=r"needs pyarrow with S3 .*pip install") as caught:
        ObjectStore(endpoint="http://nowhere").client()
    assert "\n" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    store = ObjectStore("http://e", "r", "the-id", "the-secret", "the-token")
    assert repr(store) == "ObjectStore(endpoint='http://e', region='r', is_anonymous=False)"
