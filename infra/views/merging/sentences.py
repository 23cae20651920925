"""Sentences for the reasons of the merging policy."""

from types import MappingProxyType

from infra.views.sentences import failed_run_sentences

_AFTER_EPOCHS = "after {epochs:g} epochs the accuracy of job {job_id} is {best_accuracy:g} at best"

SENTENCES = MappingProxyType(
    {
        "breaks_a_promise/gpus_in_use": (
            "zone {zone}: node {node} would have {gpus} GPUs, and jobs have {held_gpus} there"
        ),
        "breaks_a_promise/jobs_of_base_model": (
            "zone {zone}: {jobs} jobs were admitted for base model {base_model}"
        ),
        "breaks_a_promise/no_node_for_pipelines": (
            "zone {zone}: {jobs} pipeline-parallel jobs were admitted, and no node would have the "
            "{needed_gpus} GPUs that one is profiled on"
        ),
        "invalid_configuration/several_gpu_types": (
            "zone {zone}: one GPU type is used, and these are several: {gpu_types}"
        ),
        "larger_than_the_zone": (
            "a pipeline-parallel job is profiled on {needed_gpus} GPUs of one node, and nodes have "
            "{most_node_gpus} at most"
        ),
        "other_base_model": "the zone's base model is {base_model}",
        "preempted/leaving": "node {node} is to leave",
        "preempted/profile_run": "job {job_id} is profiled on node {node}",
        **failed_run_sentences("profile_failed"),
        "undone/not_above_alone": (
            _AFTER_EPOCHS + ", and jobs of its kind reach {accuracy_alone:g} in as many alone"
        ),
        "undone/not_above_before": _AFTER_EPOCHS + ", and it was {accuracy_before:g} before",
        "undone/target_missed": (
            "after all {iterations} iterations the accuracy of job {job_id} is {best_accuracy:g} at best, "
            "and its target is {target_accuracy:g}"
        ),
        "unusable_profile/all_zero": "all values of {field} are 0",
        "unusable_profile/flat_loss_curve": "losses: the curve that fits them best is flat",
        "unusable_profile/loss_negative": "losses: some are below zero",
        "unusable_profile/loss_not_finite": "losses: some are not finite",
        "unusable_profile/losses_all_zero": "losses: all are 0: there is nothing to learn",
        "unusable_profile/losses_do_not_fall": (
            "losses: the mean of the last third, {last_loss:g}, is not below that of the first, "
            "{first_loss:g}"
        ),
        "unusable_profile/losses_scatter": (
            "losses: no fall beyond their scatter, which more profile_iterations may show"
        ),
        "unusable_profile/missing": "{field} is missing; similarity is computed from it",
        "unusable_profile/other_length": (
            "{field}: has {values} values, those of other jobs have {known_values}"
        ),
        "unusable_profile/few_losses": "losses: has {losses} values, a curve needs {least_losses}",
        "unusable_profile/too_few_losses": "losses: has too few values for a curve",
    }
)
