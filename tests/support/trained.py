"""Result of a data-parallel job, to compare with another's."""

import math
from dataclasses import dataclass

import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.support.elastic_nodes import Fleet


@dataclass(frozen=True)
class Trained:
    """A job's parameters when it was finished, and its losses by samples."""

    parameters: dict[str, Tensor]
    losses: dict[int, float]

    @classmethod
    def of(cls, fleet: Fleet, job_id: str) -> "Trained":
        """Read what a job that trained all weights has published, and what it has reported."""
        return cls(load_file(fleet.result(job_id) / "model.safetensors"), fleet.losses(job_id))

    def assert_like(self, other: "Trained") -> None:
        """Assert that the results are equal but for rounding: lost, repeated or differently weighted samples
        would show."""
        self.assert_same_parameters(other)
        for samples, loss in self.losses.items():
            assert math.isclose(loss, other.losses[samples], rel_tol=1e-5), samples

    def assert_same_parameters(self, other: "Trained") -> None:
        """Assert equal parameters, for jobs that report no single steps."""
        torch.testing.assert_close(self.parameters, other.parameters, rtol=1e-4, atol=1e-5)
