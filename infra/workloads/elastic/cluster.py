"""The cell of a training cluster and of the inference cluster that lends to it (thesis, section 3.7.1)."""

from dataclasses import dataclass

from infra.workloads.timed import WorkloadError
from schemas.base import HOURS_PER_DAY
from schemas.cells import Borrower, CellConfigured, GpuType, Lending, Node, Tariff, Zone
from schemas.elastic.settings import ElasticPolicy
from schemas.kind import PolicySettings

SERVER_GPUS = 8

TRAINING_GPU = GpuType(name="V100", samples_per_s=2_400.0, memory_gib=256.0, power_kw=2.4, gpus=SERVER_GPUS)
"""The GPU type of the jobs' profiles: 300 samples/s per GPU, as `SAMPLES_PER_GPU_S`."""

INFERENCE_GPU = GpuType(name="T4", samples_per_s=800.0, memory_gib=128.0, power_kw=0.6, gpus=SERVER_GPUS)
"""A third as fast, so that three loaned servers make a training server (erratum L4)."""

TARIFF = Tariff(name="site", micros_per_kwh=(100_000,) * HOURS_PER_DAY)
"""Tariff of every node; neither policy uses it."""

NODE_TIMEOUT_S = 86_400.0
"""Longer than any gap between reports: no server of a simulated cluster fails."""

LEAST_MODEL_GIB = 1e-3
"""Size of the base model that a zone must have; its jobs have models of their own."""


@dataclass(frozen=True)
class ElasticCluster:
    """Numbers of servers, and names. The defaults are the thesis' clusters."""

    training_servers: int = 443
    inference_servers: int = 520
    cell: str = "lyra"
    training_zone: str = "training"
    inference_zone: str = "inference"

    @property
    def training_gpus(self) -> int:
        """GPUs of the training cluster, 3,544 by default."""
        return self.training_servers * SERVER_GPUS

    @property
    def inference_gpus(self) -> int:
        """GPUs of the inference cluster, 4,160 by default."""
        return self.inference_servers * SERVER_GPUS

    def scaled(self, factor: float) -> "ElasticCluster":
        """Return the cluster with `factor` times as many servers, one of each kind at least.

        Raises:
            WorkloadError: the factor is not above 0.
        """
        if not 0 < factor < float("inf"):
            raise WorkloadError(f"clusters scaled by {factor}: expected more than 0")
        return ElasticCluster(
            max(round(self.training_servers * factor), 1),
            max(round(self.inference_servers * factor), 1),
            self.cell,
            self.training_zone,
            self.inference_zone,
        )


def cluster_configuration(
    cluster: ElasticCluster,
    inference: PolicySettings,
    start_s: float,
    policy: ElasticPolicy | None = None,
    lending: Lending | None = None,
    slot_s: float = 60.0,
) -> CellConfigured:
    """Return the cell: a training zone under the elastic policy, and an inference zone that lends to it.

    Args:
        cluster: Servers and names.
        inference: Settings of the inference zone's policy.
        start_s: Start of the cell's slot 0.
        policy: Policy of the training zone; by default, Lyra's on the training GPU.
        lending: Conditions of loans; by default, to the training zone at the usual conditions.
        slot_s: Length of a slot of the cell.

    Raises:
        ValueError: the configuration contradicts itself.
    """
    policy = policy or ElasticPolicy(reference_gpu_type=TRAINING_GPU.name)
    lending = lending or Lending(borrowers=(Borrower(zone=cluster.training_zone),))
    return CellConfigured(
        cell=cluster.cell,
        epoch_s=start_s,
        slot_s=slot_s,
        node_timeout_s=NODE_TIMEOUT_S,
        tariffs=(TARIFF,),
        zones=(
            _zone(
                cluster.training_zone,
                _nodes("train", cluster.training_servers, TRAINING_GPU),
                # The type of lent servers must be in the training zone's settings.
                (TRAINING_GPU, INFERENCE_GPU),
                policy,
                None,
            ),
            _zone(
                cluster.inference_zone,
                _nodes("infer", cluster.inference_servers, INFERENCE_GPU),
                (INFERENCE_GPU,),
                inference,
                lending,
            ),
        ),
    )


def _zone(
    name: str,
    nodes: tuple[Node, ...],
    gpu_types: tuple[GpuType, ...],
    policy: PolicySettings,
    lending: Lending | None,
) -> Zone:
    return Zone(
        id=name,
        base_model="none",
        base_model_memory_gib=LEAST_MODEL_GIB,
        horizon_slots=1,
        gpu_types=gpu_types,
        nodes=nodes,
        policy=policy,
        lending=lending,
    )


def _nodes(prefix: str, count: int, gpu: GpuType) -> tuple[Node, ...]:
    return tuple(
        Node(id=f"{prefix}-{number:03d}", gpu_type=gpu.name, tariff=TARIFF.name)
        for number in range(1, count + 1)
    )
