"""Which partitions a directory holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.admin.directories import find_partitions
from stratalog.base.errors import UsageError
from stratalog.base.filesystem import LocalFileSystem

LOG = f"{0:020d}.log"


def _lay(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def _found(*targets: Path) -> list[str]:
    places = find_partitions([str(target) for target in targets], LocalFileSystem())
    return [f"{Path(place.log_dir).name}/{place.name}" for place in places]


def test_partitions_of_a_log_directory_in_order(tmp_path: Path) -> None:
    data = _lay(
        tmp_path / "data",
        f"b-10/{LOG}",
        f"b-2/{LOG}",
        f"a-b-0/{LOG}",
        f"empty-0/{LOG[:-4]}.index",
        f"gone-0.0af1-delete/{LOG}",
        f"__cluster_metadata-0/{LOG}",
        "file-0",
        "cleaner-offset-checkpoint",
        f"half-0/{LOG}.swap",
    )
    assert _found(data) == ["data/a-b-0", "data/b-2", "data/b-10", "data/half-0"]
    assert _found(data / "b-2") == ["data/b-2"]
    assert _found(data, data / "b-2", tmp_path / "data" / ".." / "data") == _found(data)


def test_a_log_directory_may_look_like_a_partition(tmp_path: Path) -> None:
    assert _found(_lay(tmp_path / "disk-1", f"a-0/{LOG}")) == ["disk-1/a-0"]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("nothing", "no such directory"),
        ("empty", "no partition here"),
        ("backup", "not named <topic>-<partition>"),
        ("__cluster_metadata-0", "Kafka's metadata log"),
        ("file", "Not a directory"),
    ],
)
def test_targets_without_a_partition_are_refused(tmp_path: Path, target: str, reason: str) -> None:
    _lay(tmp_path, "empty/x", f"backup/{LOG}", f"__cluster_metadata-0/{LOG}", "file")
    with pytest.raises(UsageError, match=reason) as refused:
        _found(tmp_path / target)
    assert str(tmp_path / target) in str(refused.value)
