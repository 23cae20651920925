"""The whole model of a job: a dense one whose feed-forward networks become experts, or one with experts."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import psutil
import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from executors.gang.job_models import (
    ModelError,
    TrainableModel,
    files_in,
    named_as_in_job,
    put_adapter,
)
from executors.lora.base_model import load_tokenizer
from executors.lora.model_kind import (
    check_config,
    is_classifier,
    labels_of,
    read_any_config,
    text_records,
)
from executors.lora.randomness import derive_seed
from executors.lora.records import TEXT_RECORDS, RecordForm
from executors.moe.block import moe_blocks, router_bytes, set_gating
from executors.moe.conversion import convert as conversions
from executors.moe.conversion.drop_in import SPARSE_FAMILIES, adopt
from executors.moe.conversion.sample_paths import SAMPLE_PATHS, file_of_paths
from executors.moe.conversion.storage import DESCRIPTION, MoeDescription, load, load_whole, save
from executors.moe.gating import Gating
from executors.moe.training.objective import Label, NextToken, TrainingObjective, Translation
from schemas.experts.workload import Conversion, MoeTrainWorkload
from schemas.lora import LoraHyperparameters
from solvers.experts.paths import PathProfile

ModelFiles = dict[str, bytes]


@dataclass(frozen=True)
class MoeModel:
    """A model with gated experts. All of its weights, or only those of an adapter, are trained in float32.

    Attributes:
        description: properties that its configuration does not state.
    """

    module: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    objective: TrainingObjective
    description: MoeDescription

    def fill(self, trained: Mapping[str, Tensor]) -> None:
        """Set all trained tensors, by name."""
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(trained[name])

    def adapter_files(self) -> ModelFiles | None:
        """Return the adapter's files in PEFT's format, by name; None if all weights are trained."""
        if not isinstance(self.module, PeftModel):
            return None
        return TrainableModel(self.module, self.tokenizer).files()

    def files(self, paths: PathProfile | None = None) -> ModelFiles:
        """Return the model's files for a service, by name; an adapter is added to its weights.

        Args:
            paths: sample paths of its training, if there are any.
        """
        whole = self.module
        if isinstance(whole, PeftModel):
            whole = cast(PreTrainedModel, whole.merge_and_unload())
        with tempfile.TemporaryDirectory() as scratch:
            save(whole, self.description, Path(scratch))
            self.tokenizer.save_pretrained(scratch)
            files = files_in(Path(scratch))
        if paths is not None:
            files = {**files, SAMPLE_PATHS: file_of_paths(paths, router_bytes(whole))}
        return files


def records_of(directory: Path, name: str) -> RecordForm:
    """Return the form of records for training the model in a directory.

    Args:
        name: name of the model in the job.

    Raises:
        ModelError: it is neither a language model nor a classifier.
    """
    with named_as_in_job(directory, name):
        config = read_any_config(directory)
        if config.is_encoder_decoder:
            # Its data has prompts with completions, and neither chats nor plain text.
            return TEXT_RECORDS
        check_config(directory, config)
        return labels_of(config) if is_classifier(config) else text_records(directory)


def load_model(directory: Path, workload: MoeTrainWorkload) -> MoeModel:
    """Load a model onto the CPU, the same on all ranks, with a new adapter if the job has one.

    Raises:
        ModelError: it cannot be loaded, converted or gated so, or a target module matches nothing.
        OSError: a file cannot be read.
    """
    seed = workload.hyperparameters.seed
    with named_as_in_job(directory, workload.model):
        module, converted = _with_experts(directory, workload)
        tokenizer = load_tokenizer(directory, module)
    module = module.float().train()
    gating = next(iter(moe_blocks(module).values())).gating
    config = module.config
    objective = objective_of(config)
    adapted: PreTrainedModel | PeftModel = module
    if workload.adapter is not None:
        torch.manual_seed(derive_seed(seed, "weights"))
        adapted = adapt(module, workload.adapter, is_classifier(config), workload.model)
    return MoeModel(
        adapted.train(), tokenizer, objective, MoeDescription(gating=gating, conversion=converted)
    )


def _with_experts(
    directory: Path, workload: MoeTrainWorkload
) -> tuple[PreTrainedModel, conversions.LayerConversion | None]:
    """Return a model with gated layers as in the workload, and its conversion."""
    gating = Gating(workload.gating.mode).by(workload.gating)
    is_described, config = (directory / DESCRIPTION).is_file(), read_any_config(directory)
    if workload.conversion is not None and (is_described or config.model_type in SPARSE_FAMILIES):
        raise ValueError("it has experts already, so there is nothing to convert: leave conversion out")
    if is_described:
        module, description = load(directory)
        experts = {len(block.router.get_parameter("weight")) for block in moe_blocks(module).values()}
        if min(experts) < gating.fewest_experts:
            raise ValueError(f"gating {gating.mode} needs two experts, a layer has {min(experts)}")
        set_gating(module, next(iter(moe_blocks(module).values())).gating.by(workload.gating))
        return module, description.conversion
    module = load_whole(directory, config, torch.float32)
    if workload.conversion is None:
        adopt(module, gating)
        return module, None
    converted = _conversion(workload.conversion, workload.hyperparameters.seed)
    needed_bytes = conversions.converted_bytes(module, converted, gating)
    available_bytes = psutil.virtual_memory().available
    if needed_bytes > available_bytes:
        raise ValueError(
            f"its experts need {needed_bytes / 2**30:.3g} GiB of the host's memory, of which "
            f"{available_bytes / 2**30:.3g} GiB are free: have fewer experts, or convert fewer layers"
        )
    conversions.convert(module, converted, gating)
    return module, converted


def _conversion(conversion: Conversion, seed: int) -> conversions.LayerConversion:
    return conversions.LayerConversion(
        experts=conversion.experts,
        layers=conversion.every,
        initialization=conversion.initialization,
        noise=conversion.noise,
        seed=derive_seed(seed, "experts"),
    )


def objective_of(config: PretrainedConfig) -> TrainingObjective:
    """Return the objective of a kind of model."""
    if config.is_encoder_decoder:
        return Translation(cast(int, config.decoder_start_token_id))
    if is_classifier(config):
        return Label(config.get_text_config().pad_token_id or 0)
    return NextToken()


def adapt(module: PreTrainedModel, adapter: LoraHyperparameters, is_labelled: bool, name: str) -> PeftModel:
    """Put an adapter on the layers, and the experts, that the adapter's targets name.

    Args:
        is_labelled: whether it is a classifier, whose head is trained, too.
        name: name of the model, for errors.

    Raises:
        ModelError: a target matches nothing, or PEFT cannot adapt it.
    """
    modules = [each for each, _ in module.named_modules()]
    experts = [
        f"{layer}.experts.{each}"
        for layer, block in moe_blocks(module).items()
        for each, parameter in cast(nn.Module, block.experts).named_parameters()
        if parameter.ndim == 3
    ]
    named = () if adapter.is_all_linear else adapter.target_modules
    unknown = [target for target in named if not _named(target, modules) + _named(target, experts)]
    if unknown:
        raise ModelError(name, f"no such adapter: no layer is called {', '.join(unknown)}")
    # PEFT's "all-linear" leaves out experts, whose weights are not in linear layers.
    linear = "all-linear" if adapter.is_all_linear else [each for each in named if _named(each, modules)]
    return put_adapter(
        module,
        adapter,
        name,
        target_modules=linear,
        target_parameters=[target for target in named if _named(target, experts)],
        task_type="SEQ_CLS" if is_labelled else None,
    )


def _named(target: str, names: Sequence[str]) -> list[str]:
    """Return the names that a target matches, by PEFT's rule."""
    return [name for name in names if name == target or name.endswith(f".{target}")]
