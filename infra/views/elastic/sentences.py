"""Sentences for the reasons of the elastic policy."""

from types import MappingProxyType

from infra.views.sentences import failed_run_sentences

SENTENCES = MappingProxyType(
    {
        "breaks_a_promise/job_never_runs": (
            "zone {zone}: a job that was admitted would never run: it takes {min_workers} workers of "
            "{gpus_per_worker} GPUs each, and the zone's training servers (own, at least as fast as the "
            "reference) have room for {room_workers}"
        ),
        "breaks_a_promise/server_in_use": (
            "zone {zone}: server {server} has workers, and would have other GPUs or another speed"
        ),
        "gave_way": (
            "{job_id} precedes it, since it trains {samples_per_s:g} samples/s with one worker, fewer than "
            "declared"
        ),
        "invalid_configuration/gpu_type_too_slow": (
            "zone {zone}: a GPU of type {gpu_type} trains {samples_per_s} samples/s, far fewer than the "
            "{reference_samples_per_s} of the reference type"
        ),
        "invalid_configuration/unknown_reference_gpu_type": (
            "zone {zone}: the reference type {gpu_type} is no GPU type of the zone"
        ),
        "larger_than_the_zone": (
            "{min_workers} workers of {gpus_per_worker} GPUs each, and the zone's training servers (own, at "
            "least as fast as the reference) have room for {room_workers}"
        ),
        "preempted": "gives back {servers}",
        "resumed/waited_too_long": "it had waited for too long, and came first",
        "scaled_in/jobs_gain_more": "jobs that gain more",
        "scaled_in/jobs_waited": "jobs that waited: {jobs}",
        "servers_reclaimed": "gives back {servers}",
        "started/waited_too_long": "it had waited for too long, and came first",
        **failed_run_sentences("stopped"),
        "stopped/withdrawn": "its user withdraws it",
        "stopped/work_done": "its work is done",
    }
)
