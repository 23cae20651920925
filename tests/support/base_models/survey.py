"""The probe's verdict on each architecture."""

import logging
import multiprocessing
import resource
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

from executors.lora.base_model import load_base
from executors.lora.model_kind import BaseModelError
from executors.lora.probe.deviation import UnprovenBaseError
from tests.support.base_models.small import VOCABULARY, CannotBuildError, small_model

Task = Literal["language model", "classifier"]
Verdict = Literal["taken", "refused", "not built"]

_MAPPINGS = {
    "language model": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "classifier": MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
}
_SEED = 5
_MOST_CPU_S = 300
_MOST_WAIT_S = 3_600
"""Only for a process that waits for ever: the limit that counts is of CPU time, since a busy machine does not
change that."""


@dataclass(frozen=True, order=True)
class Row:
    """An architecture and what becomes of it.

    Attributes:
        model_type: the configuration's name for it.
        architecture: the class.
        reason: the probe's word for a refusal; empty otherwise.
        detail: the numbers or the error.
        bit_identical: of one that is taken, whether neighbours change no bit.
    """

    task: Task
    model_type: str
    architecture: str
    verdict: Verdict
    reason: str = ""
    detail: str = ""
    bit_identical: bool = True


def architectures() -> list[tuple[Task, str, str]]:
    """All causal language models and sequence classifiers of the installed transformers: task, model type,
    class."""
    tasks: tuple[Task, ...] = ("language model", "classifier")
    return [(task, *pair) for task in tasks for pair in sorted(_MAPPINGS[task].items())]


def survey(requested: Sequence[tuple[Task, str, str]]) -> Iterator[Row]:
    """Probe each in a process of its own, as some end their process or never end."""
    context = multiprocessing.get_context("fork")
    for task, model_type, architecture in requested:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send_row, args=(sender, task, model_type, architecture))
        process.start()
        sender.close()
        row: Row | None = None
        with suppress(EOFError):
            row = receiver.recv() if receiver.poll(_MOST_WAIT_S) else None
        process.kill()
        process.join()
        receiver.close()
        yield row or _lost(task, model_type, architecture, process.exitcode)


def probe_architecture(task: Task, model_type: str, architecture: str) -> Row:
    """Build a small model, save it as a user would have it, and load it as a node does."""
    known = (task, model_type, architecture)
    fields = {"num_labels": 3} if task == "classifier" else {}
    try:
        kind = getattr(transformers, architecture)
        model = small_model(model_type, kind, seed=_SEED, **fields)
    except (CannotBuildError, AttributeError, ImportError) as error:
        return Row(*known, "not built", detail=_line(error))
    with tempfile.TemporaryDirectory() as folder:
        try:
            model.save_pretrained(folder)
            small_tokenizer().save_pretrained(folder)
        except Exception as error:
            return Row(*known, "not built", detail=_line(error))
        try:
            proof = load_base(Path(folder)).proof
            assert proof is not None, "it is loaded"
        except UnprovenBaseError as error:
            return Row(*known, "refused", error.reason, error.detail)
        except BaseModelError as error:
            return Row(*known, "refused", "unfit", _line(error).replace(f"{folder}: ", ""))
        except Exception as error:
            return Row(*known, "refused", "load_raises", f"{type(error).__name__}: {_line(error)}")
    return Row(*known, "taken", bit_identical=proof.bit_identical)


def small_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of as many tokens as the small models have."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w7")),
        pad_token="w0",
        bos_token="w1",
        eos_token="w2",
        unk_token="w7",
    )


def _send_row(sender: "Connection[Row, Row]", task: Task, model_type: str, architecture: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S + 1))
    logging.disable()
    torch.set_num_threads(1)
    sender.send(probe_architecture(task, model_type, architecture))


def _lost(task: Task, model_type: str, architecture: str, exit_code: int | None) -> Row:
    detail = f"its process ended with status {exit_code}"
    if exit_code == -signal.SIGXCPU:
        detail = f"takes more than {_MOST_CPU_S} s of CPU time"
    return Row(task, model_type, architecture, "not built", detail=detail)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
