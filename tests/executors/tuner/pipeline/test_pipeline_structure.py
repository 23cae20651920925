"""Structure of a model, and its stages."""

from pathlib import Path

import pytest
import torch

from executors.lora.base_model import BaseModelError, load_base
from executors.lora.batch import TextSequence, pack
from executors.tuner.pipeline.structure import parameter_costs, partition_by_parameters, structure_of

CPU = torch.device("cpu")


def test_stages_together_are_whole_model(deep_directory: Path) -> None:
    structure = structure_of(load_base(deep_directory))
    model, family = structure.base.model, structure.family
    batch = pack([[TextSequence(list(range(2, 20)), 1), TextSequence(list(range(30, 39)), 4)]], CPU)
    hidden = family.embed(model, batch)
    for layers in partition_by_parameters(structure, 4):
        hidden = family.run(model, structure.layers[layers.start : layers.stop], hidden, batch)
    expected = model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        sequence_runs=batch.sequence_runs,
        logits_to_keep=batch.loss_rows,
        use_cache=False,
    ).logits[0]
    assert torch.equal(structure.logits(hidden, batch.loss_rows), expected)


def test_the_head_counts_with_the_last_layer(deep_directory: Path) -> None:
    costs = parameter_costs(structure_of(load_base(deep_directory)))
    layer = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48 + 2 * 32
    assert costs == [layer] * 4 + [layer + 320 * 32]


def test_a_family_that_cannot_be_cut_is_refused(deep_directory: Path) -> None:
    base = load_base(deep_directory)
    base.model.config.model_type = "opt"
    with pytest.raises(BaseModelError, match="a 'opt' cannot be cut into stages; gpt2, llama"):
        structure_of(base)
