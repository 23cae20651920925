"""Least memory of a LoRA task without its base model, from the sizes of both.

It counts the memory of the fused engine (docs/lora-engine.md) at the end of a forward pass over full
sequences:

- for each parameter of the adapter, four numbers of 4 bytes: itself, its gradient, AdamW's two moments;
- for each token and layer, the values that the frozen Llama keeps for the backward pass: the inputs of both
  norms, query and attention output (4 h), keys and values (2 kv), and the gate before and after its
  activation and the parallel projection (3 i). The first layer is left out, since gradients need not reach
  its beginning;
- for each token, the log-probabilities of the whole vocabulary, in 4 bytes.

It is a lower bound: it leaves out additional inputs that adapters keep, dropout masks, work space and the
allocator's overhead. On the default base it is 0.6 to 0.8 of the measured memory of autograd.
"""

from schemas.cells import BaseDimensions
from schemas.lora import LoraHyperparameters

_BYTES_PER_PARAMETER = 16
_BYTES_PER_LOG_PROBABILITY = 4
_BYTES_PER_GIB = 2**30


def least_memory_gib(shape: LoraHyperparameters, base: BaseDimensions) -> float:
    """Return the least memory of a task in GiB: whole bytes, so equal on every machine.

    Layers that a Llama does not have add nothing: the executor rejects them by name.
    """
    hidden, inner, narrow = base.hidden_features, base.intermediate_features, base.key_value_features
    features = {
        "q_proj": 2 * hidden,
        "k_proj": hidden + narrow,
        "v_proj": hidden + narrow,
        "o_proj": 2 * hidden,
        "gate_proj": hidden + inner,
        "up_proj": hidden + inner,
        "down_proj": inner + hidden,
    }
    adapted = features if shape.is_all_linear else set(shape.target_modules)
    parameters = base.layers * shape.rank * sum(features.get(name, 0) for name in adapted)
    kept = (base.layers - 1) * (4 * hidden + 2 * narrow + 3 * inner) * base.activation_bytes
    tokens = shape.batch_size * shape.sequence_length
    per_token = kept + _BYTES_PER_LOG_PROBABILITY * base.vocabulary_size
    return (_BYTES_PER_PARAMETER * parameters + tokens * per_token) / _BYTES_PER_GIB
