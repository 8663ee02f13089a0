"""Small Ray clusters on this machine, for tests of whole runs on one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedarena.core.signs import Sign


@contextmanager
def small_cluster(trigger: Path) -> Iterator[Path]:
    """One whose methods of tests know the file or folder that makes them kill their process; gives it."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDARENA_TEST_TRIGGER", str(trigger))
        patch.setenv("RAY_worker_niceness", "0")
        ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20)
        yield trigger
        ray.shutdown()


def pretend_folders_are_not_shared(patch: pytest.MonkeyPatch) -> None:
    """Lets machines of a cluster believe that they do not see this one's folders."""
    patch.setattr(Sign, "offer", lambda self: {"folder": str(self.folder), "sign": "of another folder"})
