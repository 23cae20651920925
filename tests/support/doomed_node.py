"""A process that serves a node with elastic workers, to be killed. Run as a module, it is that process."""

import os
import subprocess
import sys
from pathlib import Path

from executors.elastic.settings import ElasticSettings
from tests.support.elastic_nodes import Fleet, workload
from tests.support.fork_server import attached_to_shared, start_fork_server


class DoomedNode:
    """The process, seen from outside."""

    def __init__(self, root: Path, settings: ElasticSettings) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.doomed_node", str(root)],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "MILLRACE_MODEL_ROOT": str(settings.model_root),
                "MILLRACE_DATASET_ROOT": str(settings.dataset_root),
            },
        )

    def workers(self) -> list[int]:
        """Return the process ids of the two workers that it trains on, once it does."""
        assert self.process.stdout is not None
        return [int(word) for word in self.process.stdout.readline().split()]

    def close(self) -> None:
        """Make sure that it is gone."""
        self.process.kill()
        self.process.communicate()


def _serve(root: Path) -> None:
    start_fork_server()
    fleet = Fleet(root, ElasticSettings(progress_s=0.05))
    fleet.add("n9")
    fleet.assign("j", 1, [("n9", 2)], workload(10**6, keeps=False))
    fleet.until(fleet.has_trained("j"))
    sys.stdout.write(" ".join(map(str, fleet.pids("n9"))) + "\n")
    sys.stdout.flush()
    fleet.until(lambda: False)


if __name__ == "__main__":
    with attached_to_shared():
        _serve(Path(sys.argv[1]))
