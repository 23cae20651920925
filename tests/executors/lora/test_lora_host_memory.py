"""Freed memory stays with the process."""

import resource

import torch

from executors.lora.engine import keep_freed_memory


def test_large_tensors_reuse_memory_instead_of_faulting_it_in_again() -> None:
    def faults_of_five_tensors() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(5):
            torch.ones(16 << 20)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    keep_freed_memory()
    faults_of_five_tensors()
    # A tensor has 16,384 pages.
    assert faults_of_five_tensors() < 1_000
