"""What the ranks of a pipeline do in tests."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
from safetensors.torch import save_file
from torch.distributed import PrefixStore

from executors.lora.checkpoint import decode_state, encode_state
from executors.lora.dataset import DatasetRoot
from executors.lora.task import LoraTask, TaskState
from executors.tuner.data import TokenizedFile
from executors.tuner.pipeline.group import StageLostError
from executors.tuner.pipeline.pool import PipelineRank, join_pipeline
from executors.tuner.pipeline.preparation import (
    PipelinePlan,
    PreparedTask,
    prepare_from_leader,
    prepare_task,
)
from executors.tuner.pipeline.switch import switch
from executors.tuner.pipeline.task import PipelineTask, StepResult, load_task
from executors.tuner.pipeline.trace import Kind, Trace
from tests.support.pipeline_ranks import Rank


def join(rank: Rank, **options: Any) -> PipelineRank:
    options = {"join_timeout_s": 20.0, "peer_timeout_s": 20.0} | options
    if options.get("device") == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = str(rank.rank)
    return join_pipeline(rank.store(), rank.rank, rank.world, rank.directory, **options)


def plan_of(fields: dict[str, Any]) -> PipelinePlan:
    return PipelinePlan(
        LoraTask.model_validate_json(fields["task"]),
        fields.get("micro_batches", 1),
        fields.get("direction", "forward"),
        checkpoints_activations=fields.get("checkpoints_activations", False),
    )


def prepared(rank: Rank, pipeline: PipelineRank, fields: dict[str, Any]) -> PreparedTask:
    plan = plan_of(fields)
    data = opened(rank, pipeline, plan.task.dataset, plan.task.sequence_length)
    state = None
    if "checkpoint" in fields:
        folder = rank.scratch / fields["checkpoint"]
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        state = decode_state(files, pipeline.structure.base)
        if fields.get("leader_only"):
            state = state if rank.rank == 0 else None
            return prepare_from_leader(pipeline, plan, data, state, pipeline.group.control)
    return prepare_task(pipeline, plan, data, state)


def opened(rank: Rank, pipeline: PipelineRank, name: str, sequence_length: int) -> TokenizedFile:
    dataset = DatasetRoot(rank.dataset_root).open(name)
    return TokenizedFile(dataset, pipeline.structure.base.tokenizer, sequence_length, kept_tokens=10**6)


def keep(rank: Rank, pipeline: PipelineRank, name: str, state: TaskState | None) -> None:
    """Write a checkpoint's files; only the leader has a state."""
    assert (state is None) == (rank.rank != 0)
    if state is None:
        return
    folder = rank.scratch / name
    folder.mkdir(parents=True)
    for file, content in encode_state(state, pipeline.structure.base).items():
        (folder / file).write_bytes(content)


def told(results: list[StepResult]) -> dict[str, Any]:
    return {"losses": [r.loss for r in results], "norms": [r.gradient_norm for r in results]}


def train(rank: Rank) -> dict[str, Any]:
    """Some steps of one job; its state is kept as `name`."""
    arguments = rank.arguments
    with join(rank, **arguments.get("options", {})) as pipeline:
        task = load_task(pipeline, prepared(rank, pipeline, arguments))
        results, next_is_last = [], []
        for _ in range(arguments["steps"]):
            next_is_last.append(task.next_is_last)
            results.append(task.step())
        next_is_last.append(task.next_is_last)
        keep(rank, pipeline, arguments["name"], task.state())
        held_back = opened(rank, pipeline, "ragged.jsonl", task.plan.task.sequence_length)
        sequences = [held_back[index] for index in range(5)]
        evaluations = [task.evaluate(sequences), task.evaluate(sequences)]
        keep(rank, pipeline, f"{arguments['name']}-after", task.state())
        save_file({"gradient": task.part.adapter.gradient}, rank.scratch / f"{arguments['name']}-{rank.rank}")
        parameters = pipeline.structure.base.model.parameters()
        here = {p.data_ptr(): p.numel() for p in parameters if p.device.type != "meta"}
        return told(results) | {
            "evaluated": [each.loss for each in evaluations],
            "right": [each.right for each in evaluations],
            "samples_done": task.samples_done,
            "finished": task.finished,
            "next_is_last": next_is_last,
            "held": sum(here.values()),
            "partition": [[layers.start, layers.stop] for layers in pipeline.partition],
        }


def train_and_switch(rank: Rank) -> dict[str, Any]:
    """Some steps of the first of several jobs, then a switch to the next, and so on; all states are kept."""
    arguments = rank.arguments
    with join(rank, **arguments.get("options", {})) as pipeline:
        jobs = arguments["jobs"]
        task = load_task(pipeline, prepared(rank, pipeline, jobs[0]))
        steps: list[list[StepResult]] = []
        for following in jobs[1:]:
            results = [task.step() for _ in range(arguments["steps"] - 1)]
            ahead = prepared(rank, pipeline, following)
            old = task
            task, stored = switch(old, ahead, overlap=arguments["overlap"])
            first = task.step()
            end = stored.result(30.0)
            keep(rank, pipeline, f"{arguments['name']}-{old.job_id}", end.state)
            steps.append([*results, end.step])
            steps.append([first])
        steps.append([task.step() for _ in range(arguments["steps"] - 1)])
        keep(rank, pipeline, f"{arguments['name']}-{task.job_id}", task.state())
        return {
            "steps": [told(results) for results in steps],
            "spans": [asdict(span) for span in pipeline.trace.spans],
            "held": sorted(s for s in range(rank.world) if pipeline.weights.holds(s)),
        }


class HeldBack(Trace):
    """On rank 0, the last backward of job a begins when the first forward of job b has ended elsewhere."""

    def __init__(self, rank: Rank, last_step: int) -> None:
        super().__init__(rank.rank, torch.device("cpu"))
        self._rank = rank.rank
        self._store = rank.store()
        self._last_step = last_step

    @contextmanager
    def span(self, kind: Kind, job_id: str, step: int) -> Iterator[None]:
        if self._rank == 0 and (kind, job_id, step) == ("backward", "a", self._last_step):
            self._store.wait(["b has begun"], timedelta(seconds=10))
        with super().span(kind, job_id, step):
            yield
        if (kind, job_id) == ("forward", "b"):
            self._store.set("b has begun", "")


def hold_back_the_first_rank(rank: Rank) -> dict[str, Any]:
    """A switch that can only end if the next job does not wait for the last backward of the old one."""
    with join(rank) as pipeline:
        pipeline.trace = HeldBack(rank, last_step=1)
        task = load_task(pipeline, prepared(rank, pipeline, rank.arguments["jobs"][0]))
        task.step()
        task, stored = switch(task, prepared(rank, pipeline, rank.arguments["jobs"][1]))
        task.step()
        stored.result(20.0)
        return {"spans": [asdict(span) for span in pipeline.trace.spans]}


def lose_a_rank(rank: Rank) -> dict[str, Any]:
    """One rank stops, by the signal `signal`, after a step; the others train on until they notice."""
    arguments = rank.arguments
    with join(rank, peer_timeout_s=arguments["peer_timeout_s"]) as pipeline:
        task = load_task(pipeline, prepared(rank, pipeline, arguments))
        task.step()
        if rank.rank == arguments["lost"]:
            os.kill(os.getpid(), signal.Signals[arguments["signal"]])
        started_s = time.monotonic()
        try:
            while True:
                task.step()
        except Exception as error:
            return {"type": type(error).__name__, "text": str(error), "after_s": time.monotonic() - started_s}


def go_on_with_fewer(rank: Rank) -> dict[str, Any]:
    """The last rank is killed; the others meet again as a pipeline of their own, in the same processes."""
    if rank.rank == rank.world - 1:
        with join(rank) as pipeline:
            load_task(pipeline, prepared(rank, pipeline, rank.arguments)).step()
            os.kill(os.getpid(), signal.SIGKILL)
    # Nobody waits so long: a rank that is told leaves, and so tells the next.
    with suppress(StageLostError), join(rank, peer_timeout_s=60.0) as pipeline:
        task = load_task(pipeline, prepared(rank, pipeline, rank.arguments))
        while True:
            task.step()
    store = PrefixStore("again", rank.store())
    with join_pipeline(store, rank.rank, rank.world - 1, rank.directory, peer_timeout_s=20.0) as pipeline:
        task = load_task(pipeline, prepared(rank, pipeline, rank.arguments))
        return told([task.step() for _ in range(2)])


def lose_a_rank_in_a_switch(rank: Rank) -> dict[str, Any]:
    """One rank is killed before its part of a switch; the others' switch, or what they wait for, fails."""
    arguments = rank.arguments
    with join(rank, peer_timeout_s=arguments["peer_timeout_s"]) as pipeline:
        task = load_task(pipeline, prepared(rank, pipeline, arguments["jobs"][0]))
        task.step()
        ahead = prepared(rank, pipeline, arguments["jobs"][1])
        if rank.rank == arguments["lost"]:
            os.kill(os.getpid(), signal.SIGKILL)
        started_s = time.monotonic()
        try:
            _, stored = switch(task, ahead)
            stored.result(30.0)
        except Exception as error:
            return {"type": type(error).__name__, "text": str(error), "after_s": time.monotonic() - started_s}
    return {}


def refuse(rank: Rank) -> dict[str, Any]:
    """Whatever goes wrong with joining or opening, in words."""
    arguments = rank.arguments
    try:
        with join(rank, **arguments.get("options", {})) as pipeline:
            fields = dict(arguments)
            if rank.rank == rank.world - 1:
                fields |= arguments.get("last_rank", {})
            load_task(pipeline, prepared(rank, pipeline, fields)).step()
    except Exception as error:
        return {"type": type(error).__name__, "text": str(error)}
    return {}


def spoil(rank: Rank) -> dict[str, Any]:
    """A step with a weight that is not a number, on the stage of one rank."""
    with join(rank) as pipeline:
        task: PipelineTask = load_task(pipeline, prepared(rank, pipeline, rank.arguments))
        task.step()
        before = [tensor.clone() for tensor in task.part.adapter.tensors[:3]]
        if rank.rank == 1:
            weights = next(iter(pipeline.weights.tensors(pipeline.stage("forward"))))
            weights.fill_(float("nan"))
        result = task.step()
        same = all(torch.equal(x, y) for x, y in zip(before, task.part.adapter.tensors[:3], strict=True))
        state = task.state()
        steps = None if state is None else [state.optimizer_steps, state.micro_batches]
        return {"loss": str(result.loss), "norm": str(result.gradient_norm), "same": same, "steps": steps}
