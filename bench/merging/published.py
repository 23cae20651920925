"""The schemes in the fluid simulator, beside what the measurements' own simulator reaches with them.

Ours told the true remaining times (8 nodes of 4 V100, FM-1, average completion in seconds):

| model | | Titan | Optimus | SRTF | Tiresias | Themis | Pollux |
|---|---|---|---|---|---|---|---|
| roberta-base | published | 688 | 851 | 1053 | 1078 | 1308 | - |
| roberta-base | here | 715 | 603 | 1035 | 1060 | 1062 | 526 |
| vit | published | - | 1603 | 2475 | 3956 | 3070 | - |
| vit | here | 1386 | 1444 | 2271 | 3364 | 1745 | 1522 |

On roberta-base, SRTF, Tiresias and Titan agree within 4 %, so jobs, step times and switches do. What differs,
with times of roberta-base and of vit in seconds:

- Optimus there gives any number of GPUs, so that sizes change nearly every round, for a switch each. With its
  rules instead of ours it takes 805 and 1497 here.
- Themis there gives each job the size that it asks for or none, in the order of rho, without an auction. Ours
  with that size alone and with leases of 300 s, the default there, takes 1158 and 2578.
- A batch there can be split over any number of GPUs, and a job waits rather than lie on more nodes than it
  needs. With both, Tiresias takes 3837 on vit here, and SRTF 2327.
- SRTF there does not preempt. That makes it 1033 and 2134 here: no slower.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bench.merging.fluid import Cluster, Outcome, Timing, simulate
from bench.merging.fluid_data import read_jobs, read_switch_s
from solvers.merging.schemes import RIVALS

CLUSTER = Cluster(nodes=8, gpus_per_node=4)
STORING_S = 30.0
"""What a switch costs there besides the cold start: its checkpoint."""
INTERVAL_S = 60.0
TITAN_INTERVAL_S = 120.0

PUBLISHED_S: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "roberta-base": {
            "titan": 688.0,
            "optimus": 851.0,
            "srtf": 1_053.0,
            "tiresias": 1_078.0,
            "themis": 1_308.0,
        },
        "vit": {"optimus": 1_603.0, "srtf": 2_475.0, "tiresias": 3_956.0, "themis": 3_070.0},
    }
)
"""Average completion times of workload FM-1, as the README of the measurements has them."""


def as_published(folder: Path, model: str, workload: str = "FM-1") -> dict[str, Outcome]:
    """By scheme, what it makes of a workload with the intervals and costs of that simulator."""
    jobs = read_jobs(folder, workload, model, CLUSTER)
    switch_s = STORING_S + read_switch_s(folder, model)
    outcomes = {}
    for name, rival in RIVALS.items():
        interval_s = TITAN_INTERVAL_S if name == "titan" else INTERVAL_S
        timing = Timing(interval_s=interval_s, switch_s=switch_s)
        outcomes[name] = simulate(jobs, rival.make(interval_s), CLUSTER, timing)
    return outcomes
