"""Work of the ranks of a pipeline in tests."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
from safetensors.torch import save_file
from torch.distributed import PrefixStore, Store

from executors.gang.network import use_interface
from executors.lora.base_model import load_unproven
from executors.lora.dataset import DatasetRoot
from executors.lora.lora_task import LoraTask, TaskState
from executors.lora.model_kind import read_config
from executors.lora.resident import new_state
from executors.lora.task_files import decode_state, encode_state
from executors.tuner.data import TokenizedFile
from executors.tuner.pipeline.group import StageGroup, StageLostError
from executors.tuner.pipeline.pipeline_rank import PipelineRank
from executors.tuner.pipeline.pipeline_task import PipelineTask, StepResult, load_task
from executors.tuner.pipeline.preparation import PipelinePlan, PreparedTask, prepare_task
from executors.tuner.pipeline.structure import partition_by_parameters, structure_of
from executors.tuner.pipeline.succession import StoredTask, switch
from tests.support.pipeline_ranks import Rank
from tests.support.pipeline_spans import recorded


@contextmanager
def join(
    rank: Rank,
    *,
    device: str = "cpu",
    stages: int | None = None,
    join_timeout_s: float = 20.0,
    peer_timeout_s: float = 20.0,
    store: Store | None = None,
    world: int | None = None,
) -> Iterator[PipelineRank]:
    """Load the base model and connect, within the block, with as many stages as ranks by default."""
    if device == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = str(rank.rank)
    world = world or rank.world
    stages = stages or world
    base = load_unproven(rank.directory, read_config(rank.directory), torch.device(device))
    structure = structure_of(base)
    partition = partition_by_parameters(structure, stages)
    use_interface("127.0.0.1")
    group = StageGroup(
        store or rank.store(), rank.rank, world, stages, base.model.device, join_timeout_s, peer_timeout_s
    )
    with closing(PipelineRank(structure, partition, group, base.model.device)) as pipeline:
        yield pipeline


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
    base, state = pipeline.structure.base, None
    if rank.rank == 0 and "checkpoint" in fields:
        folder = rank.scratch / fields["checkpoint"]
        state = decode_state({path.name: path.read_bytes() for path in folder.iterdir()}, base)
    elif rank.rank == 0:
        state = new_state(plan.task, base.layout(plan.task), data.dataset.digest)
    return prepare_task(pipeline, plan, data, state, pipeline.group.control)


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


def numbers_of(results: list[StepResult]) -> dict[str, Any]:
    return {"losses": [r.loss for r in results], "norms": [r.gradient_norm for r in results]}


def train(rank: Rank) -> dict[str, Any]:
    """Some steps of one job; its state is kept as `name`."""
    arguments = rank.arguments
    with join(rank, **arguments.get("options", {})) as pipeline:
        task = load_task(pipeline, prepared(rank, pipeline, arguments))
        results = [task.step() for _ in range(arguments["steps"])]
        keep(rank, pipeline, arguments["name"], task.state())
        held_back = opened(rank, pipeline, "ragged.jsonl", task.plan.task.sequence_length)
        sequences = [held_back[index] for index in range(5)]
        evaluations = [task.evaluate(sequences), task.evaluate(sequences)]
        keep(rank, pipeline, f"{arguments['name']}-after", task.state())
        save_file({"gradient": task.part.adapter.gradient}, rank.scratch / f"{arguments['name']}-{rank.rank}")
        return numbers_of(results) | {
            "evaluated": [each.loss for each in evaluations],
            "right": [each.right for each in evaluations],
            "finished": task.finished,
            "partition": [[layers.start, layers.stop] for layers in pipeline.partition],
        }


def train_and_switch(rank: Rank) -> dict[str, Any]:
    """Some steps of the first of several jobs, then a switch to the next, and so on; all states are kept.

    Without overlap, the last step is taken and the state is gathered before the next job is loaded.
    """
    arguments = rank.arguments
    with join(rank, **arguments.get("options", {})) as pipeline, recorded(rank.rank) as spans:
        jobs = arguments["jobs"]
        task = load_task(pipeline, prepared(rank, pipeline, jobs[0]))
        steps: list[list[StepResult]] = []
        for following in jobs[1:]:
            results = [task.step() for _ in range(arguments["steps"] - 1)]
            ahead = prepared(rank, pipeline, following)
            old = task
            if arguments["overlap"]:
                task, stored = switch(old, ahead)
                first = task.step()
                end = stored.result(30.0)
            else:
                end = StoredTask(old.step(), old.state())
                task = load_task(pipeline, ahead)
                first = task.step()
            keep(rank, pipeline, f"{arguments['name']}-{old.job_id}", end.state)
            steps.append([*results, end.step])
            steps.append([first])
        steps.append([task.step() for _ in range(arguments["steps"] - 1)])
        keep(rank, pipeline, f"{arguments['name']}-{task.job_id}", task.state())
        return {
            "steps": [numbers_of(results) for results in steps],
            "spans": [asdict(span) for span in spans],
        }


def hold_back_the_first_rank(rank: Rank) -> dict[str, Any]:
    """A switch that can only end if the next job does not wait for the last backward of the old one."""
    store = rank.store()
    begun: list[str] = []

    def before(kind: str, job_id: str) -> None:
        begun.append(f"{kind} {job_id}")
        if rank.rank == 0 and kind == "backward" and begun.count("backward a") == 2:
            store.wait(["b has begun"], timedelta(seconds=10))
        if kind == "forward" and job_id == "b" and rank.rank > 0:
            store.set("b has begun", "")

    with join(rank) as pipeline, recorded(rank.rank, before) as spans:
        task = load_task(pipeline, prepared(rank, pipeline, rank.arguments["jobs"][0]))
        task.step()
        task, stored = switch(task, prepared(rank, pipeline, rank.arguments["jobs"][1]))
        task.step()
        stored.result(20.0)
        return {"spans": [asdict(span) for span in spans]}


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
    # No rank waits so long: a rank that is released leaves, and so ends the next one's wait.
    with suppress(StageLostError), join(rank, peer_timeout_s=60.0) as pipeline:
        task = load_task(pipeline, prepared(rank, pipeline, rank.arguments))
        while True:
            task.step()
    store = PrefixStore("again", rank.store())
    with join(rank, store=store, world=rank.world - 1) as pipeline:
        task = load_task(pipeline, prepared(rank, pipeline, rank.arguments))
        return numbers_of([task.step() for _ in range(2)])


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
            layer = pipeline.structure.layers[pipeline.partition[1].start]
            next(layer.parameters()).data.fill_(float("nan"))
        result = task.step()
        same = all(torch.equal(x, y) for x, y in zip(before, task.part.adapter.tensors[:3], strict=True))
        state = task.state()
        steps = None if state is None else [state.optimizer_steps, state.micro_batches]
        return {"loss": str(result.loss), "norm": str(result.gradient_norm), "same": same, "steps": steps}
