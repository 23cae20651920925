"""A process that serves a node with elastic workers, to be killed. Run as a module, it is that process."""

import os
import subprocess
import sys
from pathlib import Path

from executors.elastic.processes import warm_up
from executors.elastic.settings import ElasticSettings
from tests.support.elastic_nodes import Fleet, workload


class DoomedNode:
    """The process, seen from outside. It imports at once, and trains when it is told to."""

    def __init__(self, root: Path, settings: ElasticSettings) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.doomed_node", str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "MILLRACE_MODEL_ROOT": str(settings.model_root),
                "MILLRACE_DATASET_ROOT": str(settings.dataset_root),
            },
        )

    def begin(self) -> list[int]:
        """Have it train on two workers, and return their process ids."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("begin\n")
        self.process.stdin.flush()
        return [int(word) for word in self.process.stdout.readline().split()]

    def close(self) -> None:
        """Make sure that it is gone."""
        self.process.kill()
        self.process.communicate()


def _serve(root: Path) -> None:
    warm_up()
    fleet = Fleet(root, ElasticSettings(progress_s=0.05))
    fleet.add("n9")
    sys.stdin.readline()
    fleet.assign("j", 1, [("n9", 2)], workload(10**6, keeps=False))
    fleet.until(fleet.has_trained("j"))
    sys.stdout.write(" ".join(map(str, fleet.pids("n9"))) + "\n")
    sys.stdout.flush()
    fleet.until(lambda: False)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
