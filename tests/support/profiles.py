"""A small folder of measured profiles: three tasks of the made-up backbone `tiny` on the GPU `X1`."""

import gzip
import json
from pathlib import Path
from typing import Any

from bench.merging.merging_trial import MergingSetting

SHARED = Path(__file__).parents[2] / "../shared/profiles"
"""The real ones."""

FILES = {
    "tiny_X1_placements.csv": (
        "placement,local_bsz,step_time,sync_time\n1,2,0.1,0\n1,4,0.2,0\n13,2,0.15,0.05\n"
    ),
    "tiny_X1_scalability.csv": "num_nodes,num_replicas,local_bsz,step_time,sync_time\n6,8,2,0.3,0.2\n",
    "tiny_X1_memory.csv": "local_bsz,gpu_memory\n4,2.0\n2,1.0\n8,6.0\n",
    "tiny_X1_context_switch.csv": "app,time_cost\nred,3.5\n",
    "samples.csv": "task,samples\nred,100\nblue,200\n",
    "workload.csv": (
        "name,submission_time,application,num_gpus,target_batch_size,target_lr,target_gradient_steps,target_metric\n"
        "tiny@red-0,45,tiny@red,1,8,1e-4,2,0.8000004\n"
        "tiny@blue-1,60.5,tiny@blue,2,16,1e-3,1,0.7\n"
    ),
}


def curve(*values: float, metric: str = "eval_accuracy", task: str = "") -> dict[str, Any]:
    """As it is written: a value per epoch."""
    key = f"{task}_{metric}" if task else metric
    return {key: list(values), f"{key}_epoch": [float(n) for n in range(1, len(values) + 1)]}


def learning() -> dict[str, Any]:
    twice = curve(0.6, 0.8, 0.5, 0.7)
    twice["eval_accuracy_epoch"] = [1.0, 2.0, 1.0, 2.0]
    return {
        "single": {
            "red": {"1e-4": {"2": curve(0.5, 0.7, 0.8), "1": curve()}},
            "blue": {"1e-3": {"1": twice}},
            "grey": {"1e-3": {"1": curve(-2.0, -1.5, metric="eval_loss")}},
        },
        "temporal": {"red,blue": curve(0.75, 0.85), "blue,red": curve(0.6, 0.7, 0.7), "grey,red": curve()},
        "spatial": {
            "red,blue": curve(0.55, 0.8, task="red") | curve(0.7, 0.72, metric="eval_f1", task="blue")
        },
    }


def write_profiles(folder: Path, curves: dict[str, Any] | None = None) -> Path:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    with gzip.open(folder / "learning_tiny.json.gz", "wt") as file:
        json.dump(learning() if curves is None else curves, file)
    return folder


def settings_of(*models: str, seed: int = 0, first: int | None = None) -> tuple[MergingSetting, ...]:
    """The workloads FM-1 of the real ones."""
    return tuple(
        MergingSetting(
            str(SHARED), model, str(SHARED / "workloads" / f"FM-1-{model}.csv"), first=first, seed=seed
        )
        for model in models or ("roberta-base", "vit")
    )
