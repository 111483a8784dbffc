"""An S3 server in this process (moto's), with one bucket, and what tests do to it themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from moto.server import ThreadedMotoServer
from pyarrow.fs import FileSelector, FileType, S3FileSystem

from stratalog.pipeline.object_store import ObjectStore
from tests.spark.stand_in import StandInContext, StandInSession

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKET = "logs-of-tests"


@dataclass(frozen=True)
class ObjectServer:
    """`store` is how the product reaches it; `client` can write, too."""

    store: ObjectStore
    client: S3FileSystem

    @property
    def options(self) -> dict[str, str]:
        """Of the source, for `store`."""
        return {
            "s3.endpoint": str(self.store.endpoint),
            "s3.region": str(self.store.region),
            "s3.access-key-id": str(self.store.access_key_id),
            "s3.secret-access-key": str(self.store.secret_access_key),
        }

    def uri(self, *parts: str) -> str:
        return "/".join([f"s3://{BUCKET}", *parts])

    def put(self, directory: Path, *parts: str) -> str:
        """Copy a directory; where it is then."""
        root = "/".join([BUCKET, *parts])
        for path in sorted(directory.rglob("*")):
            if path.is_file() and path.name != ".lock":
                with self.client.open_output_stream(f"{root}/{path.relative_to(directory)}") as out:
                    out.write(path.read_bytes())
        return self.uri(*parts)

    def contents(self, *parts: str) -> dict[str, bytes]:
        """Every object below a path, by its name from there."""
        root = "/".join([BUCKET, *parts])
        selector = FileSelector(root, allow_not_found=True, recursive=True)
        return {
            info.path.removeprefix(f"{root}/"): self.client.open_input_file(info.path).read()
            for info in self.client.get_file_info(selector)
            if info.type == FileType.File
        }


def stand_in_session(seed: int = 0) -> SparkSession:
    """Spark for `compact_to`, whose tasks run in this process, some of them twice."""
    context = StandInContext(seed)
    context.master = "local[2]"  # type: ignore[attr-defined]
    return cast("SparkSession", StandInSession(context))


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    """A server on a free port of the loopback address."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        keys = {"access_key": "tester", "secret_key": "very-secret"}
        client = S3FileSystem(
            **keys,
            endpoint_override=endpoint,
            region="us-east-1",
            allow_bucket_creation=True,
        )
        client.create_dir(BUCKET)
        store = ObjectStore(endpoint, "us-east-1", keys["access_key"], keys["secret_key"])
        yield ObjectServer(store, client)
    finally:
        server.stop()
