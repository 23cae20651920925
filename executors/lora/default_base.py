"""The default base model: a small Llama, briefly trained on Python's standard library.

A first run can train adapters on real text without a download: same seed, same text, same model.
"""

import fcntl
import json
import os
import platform
import random
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

import platformdirs
import torch
import transformers
from safetensors import SafetensorError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from executors.processes.threads import one_thread
from schemas.errors import ReadableError

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class Recipe:
    """Values that determine the default base. Any change makes another model, in another folder.

    About 1.3 million parameters; training takes some five seconds on one thread.
    """

    seed: int = 20_240
    vocabulary_size: int = 1024
    hidden_features: int = 128
    intermediate_features: int = 384
    layers: int = 5
    heads: int = 4
    longest_sequence_tokens: int = 1024
    text_bytes: int = 500_000
    steps: int = 40
    batch_size: int = 8
    sequence_length: int = 96
    peak_learning_rate: float = 4e-3
    warm_up_share: float = 0.2

    def digest(self) -> str:
        """Return the name of this recipe together with the text and the software that it depends on."""
        software = [platform.python_version(), torch.__version__, transformers.__version__]
        return blake2b(json.dumps([asdict(self), software]).encode(), digest_size=6).hexdigest()


class BaseNotKeptError(ReadableError):
    """The default base cannot be written to the cache."""

    def __init__(self, cache: Path, error: Exception) -> None:
        super().__init__(
            f"the default base model cannot be kept in {cache} ({error}): "
            "set MILLRACE_CACHE_DIR to a folder that can be written and has 10 MB free"
        )


def cache_directory() -> Path:
    """Return the folder for reproducible files: ``MILLRACE_CACHE_DIR``, else the user's cache folder."""
    override = os.environ.get("MILLRACE_CACHE_DIR")
    return Path(override) if override else platformdirs.user_cache_path("millrace")


def default_base_directory(recipe: Recipe | None = None) -> Path:
    """Return the Hugging Face directory of the default base; the first call trains and saves it.

    Concurrent processes wait for one of them, and a folder appears only once it is complete. A damaged one is
    made again: its digest is stored next to it.

    Raises:
        BaseNotKeptError: it cannot be written to the cache.
    """
    recipe = recipe or Recipe()
    cache = cache_directory()
    target = cache / f"base-{recipe.digest()}"
    if not _is_whole(target):
        try:
            _make(recipe, target)
        except (OSError, SafetensorError) as error:
            raise BaseNotKeptError(cache, error) from error
    return target


def _make(recipe: Recipe, target: Path) -> None:
    cache = target.parent
    cache.mkdir(parents=True, exist_ok=True)
    with _exclusive(cache / f"{target.name}.lock"):
        if _is_whole(target):
            return
        shutil.rmtree(target, ignore_errors=True)
        for left in cache.glob(f".{target.name}-*"):  # left by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=cache))
        try:
            train_base(recipe, unfinished)
            unfinished.chmod(0o755)
            unfinished.rename(target)
            _digest_file(target).write_text(_digest_of(target), encoding="ascii")
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _is_whole(target: Path) -> bool:
    try:
        return _digest_file(target).read_text(encoding="ascii") == _digest_of(target)
    except (OSError, UnicodeDecodeError):
        return False


def _digest_file(target: Path) -> Path:
    return target.with_name(f"{target.name}.digest")


def _digest_of(target: Path) -> str:
    digest = blake2b(digest_size=16)
    for path in sorted(target.iterdir()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def train_base(recipe: Recipe, directory: Path) -> None:
    """Train the recipe's tokenizer and model and save both in ``directory``."""
    text = "".join(_standard_library_text(recipe))
    tokenizer = _train_tokenizer(text, recipe)
    token_ids = torch.tensor(tokenizer.encode(text, add_special_tokens=False))
    # More threads than free cores wait for each other, and sums depend on their number.
    with torch.random.fork_rng(devices=()), one_thread():
        torch.manual_seed(recipe.seed)
        model = LlamaForCausalLM(_llama_config(recipe, tokenizer))
        _train(model, token_ids, recipe)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _standard_library_text(recipe: Recipe) -> Iterator[str]:
    """Yield modules in a seeded order, up to the recipe's size."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    random.Random(recipe.seed).shuffle(paths)
    left = recipe.text_bytes
    for path in paths:
        if left <= 0:
            return
        text = path.read_text(encoding="utf-8", errors="ignore")[:left]
        left -= len(text)
        yield text


def _train_tokenizer(text: str, recipe: Recipe) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )


def _llama_config(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=recipe.vocabulary_size,
        hidden_size=recipe.hidden_features,
        intermediate_size=recipe.intermediate_features,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=recipe.longest_sequence_tokens,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _train(model: LlamaForCausalLM, token_ids: Tensor, recipe: Recipe) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.peak_learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=recipe.peak_learning_rate,
        total_steps=recipe.steps,
        pct_start=recipe.warm_up_share,
    )
    generator = torch.Generator().manual_seed(recipe.seed)
    last_start = len(token_ids) - recipe.sequence_length
    for _ in range(recipe.steps):
        starts = torch.randint(last_start, (recipe.batch_size, 1), generator=generator)
        batch = token_ids[starts + torch.arange(recipe.sequence_length)]
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def place_default_base(target: str) -> None:
    """Copy the default base to a folder. On SIGTERM, incomplete files are removed."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    shutil.copytree(default_base_directory(), target, dirs_exist_ok=True)
