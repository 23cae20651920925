"""Sentences for the reasons of the experts policy."""

from types import MappingProxyType

SENTENCES = MappingProxyType(
    {
        "breaks_a_promise/gpus_in_use": (
            "zone {zone}: node {node} would have {gpus} GPUs, and jobs have {held_gpus} there"
        ),
        "breaks_a_promise/jobs_never_run": (
            "zone {zone}: {jobs} jobs were admitted, such as {job_id}, that need {ranks} GPUs, and the "
            "zone's own nodes would have {own_gpus}"
        ),
        "gave_way": "job {job_id} of user {user} has waited for {waited_s:.0f} s",
        "larger_than_the_zone": ("{ranks} ranks need a GPU each, and the zone's own nodes have {own_gpus}"),
        "preempted": "node {node} is to leave",
        "time_over": "its time was over before there were GPUs for it",
        "unusable_report/job_trains": "job {job_id}: a job that trains has no profile stage",
        "unusable_report/live_jobs": (
            "job {job_id}: the live jobs of the cell hold {held_bytes} of {limit_bytes} bytes, and "
            "{more_bytes} more find no room until some are over"
        ),
        "unusable_report/not_the_leader": "node {node} is not the leader of run {run_id} of job {job_id}",
        "unusable_report/other_shape": (
            "job {job_id}: the report is about {layers} layers of {experts} experts, and reports before were "
            "about {known_layers} of {known_experts}"
        ),
        "unusable_report/profiled_before": (
            "job {job_id}: generation {generation} has reported its profile stage before"
        ),
        "unusable_report/too_many_experts": (
            "job {job_id}: {experts} experts of a layer do not fit on {devices} devices with at most "
            "{most_experts_per_device} each: submit the job with more ranks, or more experts per device"
        ),
        "unusable_report/too_many_slots": (
            "job {job_id}: {layers} layers on {devices} devices with {most_experts_per_device} experts each "
            "are {slots} slots, and a cell places {most_slots} at most: submit the job with fewer experts "
            "per device"
        ),
        "unusable_report/unknown_revision": (
            "job {job_id}: it was served with placement {revision}, and the newest is {newest_revision}"
        ),
    }
)
