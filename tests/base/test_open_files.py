"""The limit of open files: raised at the start, and asked before something is begun."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from stratalog.base.errors import TooManyFilesError
from stratalog.base.open_files import check_open_files
from tests.sim.disk import SimDisk
from tests.sim.faults import Faults

RAISED = """
import resource
from stratalog.base.open_files import raise_open_files_limit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
hard = 300 if hard == resource.RLIM_INFINITY else min(hard, 300)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
limit = raise_open_files_limit()
assert (limit, limit) == resource.getrlimit(resource.RLIMIT_NOFILE), limit
assert limit == hard == raise_open_files_limit(), limit
print(limit)
"""


@pytest.mark.requirement("LOG-7")
def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RAISED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert int(done.stdout) == (300 if hard == resource.RLIM_INFINITY else min(hard, 300))


@pytest.mark.requirement("LOG-7")
def test_files_are_opened_to_find_out_and_closed_again() -> None:
    disk = SimDisk()
    disk.open("/a", "create").close()
    disk.hook = Faults("EMFILE", 3)
    with pytest.raises(TooManyFilesError, match="Too many open files"):
        check_open_files(disk, "/a", 4)
    disk.hook = faults = Faults("EMFILE", 4)
    check_open_files(disk, "/a", 4)
    assert faults.seen == 4
