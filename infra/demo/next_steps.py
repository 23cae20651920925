"""Bids for the cell that `millrace up` runs by default, and their data, for users to try after the demo."""

import shutil
from pathlib import Path

from infra.deployment.folders import Folders
from infra.errors import disk_faults
from schemas.lora import Dataset

_BIDS = """\
# For the cell that `millrace up` runs by default: the first is worth its price, the second is not.
- cell: home
  job_id: my-first-adapter    # leave it out, and each submission is a job of its own
  user: me
  zone: tiny
  workload:
    kind: lora
    work_samples: 240
    dataset: {{path: {path}, samples: {samples}}}    # in {folder}
    hyperparameters: {{rank: 8, batch_size: 4, sequence_length: 64, learning_rate: 0.005}}
  terms: {{kind: bid, bid: 100, deadline_in_s: 900}}
- cell: home
  job_id: too-cheap
  user: me
  zone: tiny
  workload:
    kind: lora
    work_samples: 240
    dataset: {{path: {path}, samples: {samples}}}
    hyperparameters: {{rank: 8, batch_size: 4, sequence_length: 64}}
  terms: {{kind: bid, bid: 0.001, deadline_in_s: 900}}
"""


def write_next_steps(demo: Folders, dataset: Dataset, home: Folders) -> Path:
    """Write a file of bids into the folder of the demo, and return its path.

    Args:
        demo: Folders of the demo, which have the dataset.
        dataset: Data that the bids train on; it is copied to the datasets of `millrace up`.
        home: Folders of `millrace up`.

    Raises:
        CommandError: a file cannot be written.
    """
    with disk_faults(home.root):
        home.datasets.mkdir(parents=True, exist_ok=True)
        shutil.copy(demo.datasets / dataset.path, home.datasets / dataset.path)
        bids = demo.root / "bids.yaml"
        bids.write_text(
            _BIDS.format(path=dataset.path, samples=dataset.samples, folder=home.datasets), encoding="utf-8"
        )
    return bids
