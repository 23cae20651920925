"""`millrace profile`: measures training steps on this machine, for the tables of a zone or its cell."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from infra.commands.asking import ask
from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    Json,
    Seed,
    Timeout,
    TopicPrefix,
    bounded,
    target_of,
)
from infra.commands.output import print_json, print_line, remark
from infra.errors import CommandError
from infra.views.sentences import sentence
from schemas.cells import MAX_RANK, ThroughputRow
from schemas.codec import describe as describe_fault
from schemas.decisions import EventWithoutEffect
from schemas.lora import LoraHyperparameters
from schemas.merging.reports import MeasuredStep
from schemas.merging.settings import MemoryRow
from schemas.profiles import PROFILES, ProfileKey, ProfilePoint, ProfileReported

if TYPE_CHECKING:
    from executors.lora.slots.profiling import MachineProfile

Model = TypeVar("Model", bound=BaseModel)
DEFAULT_MODEL = "default"
"""Name of the small model that executors make where they are given none."""
_DIGITS = 6
_JUMP = 1.1
"""Least factor beyond the possible growth of a step that is a jump: steps vary."""
_SOURCE = "millrace/profile"
_END: Mapping[str, str] = MappingProxyType(
    {
        "time": "a larger micro-batch would take longer than --most-s leaves",
        "memory": "a larger micro-batch may need more than --most-gib",
        "largest": "all micro-batches up to --largest",
    }
)


def profile(
    model: Annotated[
        str,
        typer.Argument(
            help=f"Hugging Face directory of the base model; `{DEFAULT_MODEL}`: the small one of executors.",
            metavar="MODEL",
        ),
    ],
    dataset: Annotated[Path, typer.Argument(help="JSONL file of training records.", metavar="DATASET")],
    rank: Annotated[int, bounded(least=1, most=MAX_RANK, help="Rank of the adapter.")] = 8,
    target_module: Annotated[
        list[str] | None,
        typer.Option(
            help="Layers with an adapter; may be repeated. [default: q_proj v_proj]", show_default=False
        ),
    ] = None,
    sequence_length: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=2**20,
            help="Longest sequence in tokens; by default the class of 95 % of the records.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(envvar="MILLRACE_DEVICE", help="`cpu`, or `cuda`, or `cuda:N`.")
    ] = "cpu",
    threads: Annotated[int, bounded(least=1, most=1_024, help="CPU threads of torch.")] = 1,
    gpu_type: Annotated[
        str | None,
        typer.Option(help="The zone's name of this machine's GPU type.", show_default="the device's name"),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(help="The zone's name of the base model.", show_default="the directory's name"),
    ] = None,
    most_s: Annotated[
        float, bounded(least=1, most=86_400, help="Seconds after which no step begins.")
    ] = 60.0,
    most_gib: Annotated[
        float | None,
        bounded(
            least=2**-20, most=1e6, help="Most memory of a step in GiB; by default half of what is free."
        ),
    ] = None,
    largest: Annotated[int, bounded(least=1, most=4_096, help="Largest micro-batch.")] = 4_096,
    seed: Seed = 0,
    publish: Annotated[
        bool, typer.Option("--publish", help="Publish it as a profile of --zone in --cell.")
    ] = False,
    cell: Annotated[str | None, typer.Option(help="Cell of the zone.", show_default=False)] = None,
    zone: Annotated[str | None, typer.Option(help="Zone of the profile.", show_default=False)] = None,
    profiler: Annotated[str, typer.Option(help="Your name as the writer of the profile.")] = "millrace",
    timeout_s: Timeout = 30.0,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Measure training steps on this machine by micro-batch, for a zone's tables or its cell."""
    if publish and (cell is None or zone is None):
        raise CommandError("--publish needs --cell and --zone")
    # Before the measurement, which takes a while.
    target = target_of(bootstrap_servers, topic_prefix, "profilers") if publish else None
    shape = _checked(
        LoraHyperparameters,
        rank=rank,
        target_modules=tuple(target_module or ("q_proj", "v_proj")),
        seed=seed,
        **({} if sequence_length is None else {"sequence_length": sequence_length}),
    )
    # Imported here, since `--help` does without torch.
    from executors.lora.slots.profiling import MachineSettings, profile_machine

    settings = _checked(
        MachineSettings,
        model=None if model == DEFAULT_MODEL else Path(model),
        dataset=dataset,
        device=device,
        threads=threads,
        gpu_type=gpu_type,
        most_s=most_s,
        most_gib=most_gib,
        largest=largest,
    )
    try:
        found = profile_machine(settings, shape, finds_length=sequence_length is None)
    except (ValueError, OSError, RuntimeError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CommandError(f"{model}, {dataset}: {' '.join(cause.split())}") from error
    key = _checked(ProfileKey, **(found.key | ({} if base_model is None else {"base_model": base_model})))
    for jump in jumps(found.points):
        remark(jump)
    rows = zone_rows(key, found.shape, found.points)
    _show(key, rows, found, json)
    if target is None:
        return
    event = _checked(
        ProfileReported,
        cell=cell,
        zone=zone,
        profiler=profiler,
        key=key,
        points=found.points,
        losses=found.losses,
    )
    for _, decision in ask(target, PROFILES.name, _SOURCE, [event], lambda _: f"zone {zone}", timeout_s):
        if isinstance(decision.outcome, EventWithoutEffect):
            raise CommandError(f"zone {zone} does not take the profile: {sentence(decision.outcome)}")
        remark(f"zone {zone} of cell {cell} keeps {len(found.points)} points")


def zone_rows(
    key: ProfileKey, shape: LoraHyperparameters, points: Sequence[ProfilePoint]
) -> dict[str, list[dict[str, Any]]]:
    """Return points as rows of a zone's file: `throughput` of a zone under the auction, and `speeds` and
    `memory` of a policy of merging. Points without memory have no row of `throughput` or `memory`."""
    timed = [
        MeasuredStep(
            gpus=point.gpus,
            nodes=point.nodes,
            micro_batch_size=point.micro_batch_size,
            accumulation_steps=1,
            step_s=_rounded(point.step_s),
            exchange_s=point.exchange_s,
        )
        for point in points
    ]
    held = [(point, _rounded(point.memory_gib)) for point in points if point.memory_gib is not None]
    throughput = [
        ThroughputRow(
            gpu_type=point.gpu_type,
            rank=key.rank,
            batch_size=point.micro_batch_size,
            sequence_length=shape.sequence_length,
            samples_per_s=_rounded(point.samples_per_s),
            memory_gib=memory_gib,
        )
        for point, memory_gib in held
    ]
    memory = [
        MemoryRow(micro_batch_size=point.micro_batch_size, memory_gib=memory_gib)
        for point, memory_gib in held
    ]
    return {
        name: [row.model_dump(mode="json") for row in rows]
        for name, rows in (("throughput", throughput), ("speeds", timed), ("memory", memory))
    }


def jumps(points: Sequence[ProfilePoint]) -> Iterator[str]:
    """Yield a warning for each step that took less time than a smaller step, or more than in proportion to
    its micro-batch. Other work of the machine has probably delayed one of the two steps.

    Args:
        points: by ascending micro-batch.
    """
    for smaller, larger in pairwise(points):
        growth = larger.micro_batch_size / smaller.micro_batch_size
        measured = larger.step_s / smaller.step_s
        if not 1 / _JUMP <= measured <= growth * _JUMP:
            yield (
                f"micro-batch {larger.micro_batch_size} took {measured:.2g} times as long as "
                f"{smaller.micro_batch_size}, and 1 to {growth:g} times are possible: measure again on an "
                "idle machine"
            )


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _show(
    key: ProfileKey, rows: dict[str, list[dict[str, Any]]], found: "MachineProfile", json: bool
) -> None:
    if json:
        points = [point.model_dump(mode="json") for point in found.points]
        print_json({"key": key.model_dump(mode="json"), "points": points, "end": found.end, **rows})
        return
    print_line(f"# {key.base_model} on {found.points[0].gpu_type}, {key.precision}: {_END[found.end]}")
    for name, each in rows.items():
        print_line(f"{name}:")
        for row in each:
            print_line(f"  - {{{', '.join(f'{field}: {value}' for field, value in row.items())}}}")


def _checked(record: type[Model], /, **fields: Any) -> Model:
    """Return a record with these fields.

    Raises:
        CommandError: a field is invalid.
    """
    try:
        return record.model_validate(fields)
    except ValidationError as error:
        raise CommandError(describe_fault(error)) from None
