"""Sentences for the reasons of the auction and its baselines."""

from types import MappingProxyType

SENTENCES = MappingProxyType(
    {
        "breaks_a_promise/beyond_the_horizon": (
            "zone {zone}: job {job_id} is planned in slot {slot}, beyond {horizon_slots} slots ahead"
        ),
        "breaks_a_promise/node_too_small": (
            "zone {zone}: on node {node} {taken_samples:.0f} samples per slot and {taken_gib} GiB are taken, "
            "and it would have {capacity_samples:.0f} samples and {capacity_gib} GiB"
        ),
        "breaks_a_promise/other_gpu_type": (
            "zone {zone}: job {job_id} is planned on node {node}, which would be no {gpu_type} any more"
        ),
        "breaks_a_promise/quota_too_large": (
            "zone {zone}: job {job_id} is to train {quota_samples} samples in slot {slot} on node {node}, "
            "which would train {samples}"
        ),
        "breaks_a_promise/too_many_runs": (
            "zone {zone}: node {node} could get more than {most_runs} runs in a slot: its jobs end first"
        ),
        "breaks_a_promise/unjudgeable": "zone {zone}: job {job_id} could not be planned again: {because}",
        "invalid_configuration/given_twice": "zone {zone}: the opening prices of {gpu_type} are given twice",
        "invalid_configuration/too_many_node_classes": (
            "zone {zone}: nodes of {classes} pairs of GPU type and tariff, and {most_classes} are the most"
        ),
        "invalid_configuration/too_many_node_slots_to_solve": (
            "zone {zone}: {node_slots} node-slots, and a solver is asked about {most_node_slots} at most"
        ),
        "data_differ": "node {node} holds other data than were delivered, or data that are not the job's",
        "data_missing": "there is no file {path}",
        "data_unreadable": "{path} has no line that is a JSON object",
        "too_little_left": "too little of {path} is left without duplicates and unfit records",
        "more_data_than_ordered": "{path} has more samples than the declared {declared_samples}",
        "vendor_unable": "the vendor cannot prepare {path}",
        "wrong_path": "{path} was delivered, and only {ordered_path} is accepted",
        "wrong_size": (
            "{samples} samples were delivered, and {least_samples} to {most_samples} are accepted"
        ),
        "dataset_size_misstated/by_vendor": (
            "{vendor} counts more samples in {path} than the declared {declared_samples}"
        ),
        **{
            f"dataset_unfit/{case}": f"{{vendor}} cannot prepare {{path}}: {text}"
            for case, text in {
                "data_missing": "there is no such file",
                "data_unreadable": "it has no line that is a JSON object",
                "too_little_left": "too little is left without duplicates and unfit records",
            }.items()
        },
        **{
            f"delivery_failed/{case}": f"{{vendor}} {text} {{path}}, and no other vendor can do it"
            for case, text in {
                "vendor_unable": "cannot prepare",
                "wrong_path": "delivered another file than ordered, for",
                "wrong_size": "delivered too few or too many samples of",
                "data_differ": "delivered other data than it stated, for",
            }.items()
        },
        "order_is_over": "order {order_id} of job {job_id} by {vendor} is over",
        "unknown_order": "there is no order {order_id} for job {job_id} by {vendor}",
        "dataset_size_misstated": (
            "{path} holds {counted_samples} samples, its vendor was paid to prepare {declared_samples}"
        ),
        "deadline_too_soon": (
            "even with every node free, the work does not fit before the deadline, within the zone's horizon"
        ),
        "job_already_started": "job {job_id} has started",
        "larger_than_a_node": (
            "no node holds {memory_gib} GiB and at least one but at most a node's capacity of samples per "
            "slot, at {fastest_samples_per_s} samples/s on the fastest of {gpu_types}"
        ),
        "memory_understated": (
            "slot {slot}: a step took {memory_gib} GiB of node {node}, and {reserved_gib} GiB are reserved, "
            "as declared"
        ),
        "memory_understated/below_least": (
            "{declared_gib} GiB are declared, but rank {rank} and {batch_size} sequences of "
            "{sequence_length} tokens take at least {least_gib} GiB on {base_model}"
        ),
        "no_room_before_deadline": (
            "of {node_slots} node-slots before the deadline {with_room} have room: {node_closed} are on "
            "nodes that are down, cordoned or leaving, {without_compute} lack compute, {without_memory} lack "
            "memory"
        ),
        "no_throughput_known": (
            "the zone has no throughput row for batch size {batch_size} that covers rank {rank} and sequence "
            "length {sequence_length}: give speed and memory in the bid"
        ),
        "no_vendor": "the task needs pre-processing and no vendor quotes",
        "not_in_schedule": "the best schedule found for the slot's bids leaves it out",
        "plan_found": "this is what a bid would meet now",
        "plan_found/decided_together": (
            "this is what a bid alone would meet now: the bids of a slot are decided together"
        ),
        "plan_not_feasible/costs_too_much": (
            "the solver's plan costs {price_micros}, which the bid of {bid_micros} is not above"
        ),
        "plan_not_feasible/node_does_not_fit": "the task cannot run on every node of the solver's plan",
        "plan_not_feasible/planned_twice": "the solver has planned it more than once",
        "plan_not_feasible/room_gone": "the node-slots of the solver's plan have not the room any more",
        "plan_not_feasible/slots_do_not_ascend": "the slots of the solver's plan do not ascend",
        "plan_not_feasible/slots_out_of_range": (
            "the solver's plan uses slots {plan_first_slot} to {plan_last_slot}, not within {ready_slot} to "
            "{last_slot}"
        ),
        "plan_not_feasible/too_few_samples": "the solver's plan trains {samples} of {work_samples} samples",
        "plan_not_feasible/unknown_nodes": "the solver's plan names nodes that the zone lacks: {nodes}",
        "price_not_below_bid": (
            "the bid of {bid_micros} is not above the price: {lowest_winning_bid_micros} wins"
        ),
        "slower_than_declared/plan_short": (
            "the plan is short of {short_samples} samples, and its runs trained {lacking_samples} less than "
            "the declared speed promises for the time that they had"
        ),
        "slower_than_declared/run_short": (
            "slot {slot}: {node_s:.1f} s of node {node} trained {lacking_samples} samples less than the "
            "declared speed promises, and the other node-slots do not make up for that"
        ),
        "solver_found_nothing": "the solver found no plan in {solve_s:.1f} s",
        "stale_report/no_adapter": "job {job_id} is not finished without an adapter",
        "stale_report/no_verdict_yet": "job {job_id} waits for its verdict and has no runs",
        "stale_report/not_assigned": "job {job_id} was not assigned to node {node} in slot {slot}",
        "stale_report/not_finished": (
            "job {job_id} is not finished at {samples_done} of {work_samples} samples"
        ),
        "stale_report/overtaken": "job {job_id} runs in slot {run_slot}, the report is of slot {slot}",
        "unknown_gpu_type": "the zone has no GPU type {gpu_types}",
        "unknown_job/bids_gone": "request {request_id} has no such bids any more: {job_ids}",
        "unknown_vendor": "the cell has no vendor {vendor}: its vendors are {vendors}",
        **{
            f"{reason}/{case}": f"{{missing_samples}} samples are left and {text} ({{setback}})"
            for reason in (
                *("deadline_passed", "behind_plan", "node_lost", "node_leaving", "run_failed"),
                *("delivery_late", "delivery_failed"),
            )
            for case, text in {
                "no_plan": "no plan trains them by slot {last_slot}",
                "plan_too_long": (
                    "their plan is too long to keep: live jobs hold {held_bytes} of {limit_bytes} bytes, and "
                    "it takes {more_bytes} more"
                ),
                "unjudgeable": "the zone is not what it was: {because}",
            }.items()
        },
    }
)
