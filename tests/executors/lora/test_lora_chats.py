"""Chats go through the base model's own template, with the loss on the answers alone."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from executors.lora.base_model import load_base
from executors.lora.chat import read_messages
from executors.lora.dataset import DatasetError, DatasetRoot
from executors.lora.engine import FusedEngine
from executors.lora.model_kind import records_in
from executors.lora.records import LabelledRecords, TextRecord, TextRecords, with_columns
from executors.lora.shared_base import SharedBase
from schemas.lora import ChatColumns, Columns, Dataset, InstructionColumns, PromptColumns, TextColumns
from tests.support.examples import examples

CHATML = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
TRIMMED = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content.strip() + ' </s>' }}{% endif %}{% endfor %}"
)
THINKING = (
    "{% for m in messages %}{{ '<' + m.role + '>' }}"
    "{% if m.role == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}"
    "{{ m.content + '</>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
DEFAULTED = "{% if messages[0].role != 'system' %}{{ '<|system|>\nYou help.<|end|>\n' }}{% endif %}" + CHATML
# As DeepSeek-R1's distilled models have it: the prompt opens the reasoning, which given answers are without.
REASONING = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<|User|>' + m.content }}{% else %}"
    "{{ '<|Assistant|>' + m.content.split('</think>')[-1] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"
)
# As Qwen3-Thinking has it: the last answer is given empty reasoning.
REASONED = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' }}"
    "{% if m.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n<think>\n' }}{% endif %}"
)
BARE = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('No system turns') }}{% endif %}" + CHATML

TURNS = [("user", "hi there"), ("assistant", "hello"), ("user", "again"), ("assistant", "bye bye")]


def messages(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


@pytest.fixture
def tokenizer(base: SharedBase) -> PreTrainedTokenizerBase:
    return copy.deepcopy(base.tokenizer)


@pytest.mark.parametrize(
    ("template", "turns", "whole", "answers"),
    [
        (
            CHATML,
            TURNS,
            "<|user|>\nhi there<|end|>\n<|assistant|>\nhello<|end|>\n<|user|>\nagain<|end|>\n"
            "<|assistant|>\nbye bye<|end|>",
            "hello<|end|>bye bye<|end|>",
        ),
        (
            TRIMMED,
            TURNS,
            "[INST] hi there [/INST] hello </s>[INST] again [/INST] bye bye </s>",
            " hello </s> bye bye </s>",
        ),
        (
            THINKING,
            TURNS,
            "<user>hi there</>\n<assistant>hello</>\n<user>again</>\n<assistant><think></think>bye bye</>",
            "hello</><think></think>bye bye</>",
        ),
        (
            CHATML,
            [("system", "be brief"), *TURNS[:2], ("user", "unanswered")],
            "<|system|>\nbe brief<|end|>\n<|user|>\nhi there<|end|>\n<|assistant|>\nhello<|end|>",
            "hello<|end|>",
        ),
        (CHATML, [("assistant", "first")], "<|assistant|>\nfirst<|end|>", "first<|end|>"),
        (
            DEFAULTED,
            [("assistant", "first"), *TURNS[:2]],
            "<|system|>\nYou help.<|end|>\n<|assistant|>\nfirst<|end|>\n<|user|>\nhi there<|end|>\n"
            "<|assistant|>\nhello<|end|>",
            "first<|end|>hello<|end|>",
        ),
        (
            REASONING,
            TURNS,
            "<|User|>hi there<|Assistant|>hello<|end|><|User|>again<|Assistant|>bye bye<|end|>",
            "hello<|end|>bye bye<|end|>",
        ),
        (
            REASONED,
            TURNS[:2],
            "<|user|>\nhi there<|end|>\n<|assistant|>\n<think>\n\n</think>\n\nhello<|end|>",
            "\n</think>\n\nhello<|end|>",
        ),
    ],
    ids=["chatml", "trimmed", "thinking", "system", "answer-first", "defaulted", "reasoning", "reasoned"],
)
def test_loss_is_on_assistant_text_only(
    tokenizer: PreTrainedTokenizerBase, template: str, turns: list, whole: str, answers: str
) -> None:
    tokenizer.chat_template = template
    sequence = read_messages(messages(*turns)).tokenize(tokenizer, 500)
    assert tokenizer.decode(sequence.token_ids) == whole
    assert tokenizer.decode(list(sequence.labels)) == answers
    assert [sequence.token_ids[row + 1] for row in sequence.loss_rows] == list(sequence.labels)
    assert sequence.loss_tokens == len(sequence.labels)


def test_cut_single_answer_is_refused_with_remedy(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    tokenizer.chat_template = REASONING
    chat = read_messages(messages(("user", "hi"), ("assistant", "<think>hm</think>hello")))
    with pytest.raises(ValueError, match=r"^messages\[1\]: .* does not write this turn as it is given$"):
        chat.tokenize(tokenizer, 500)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_turn_may_be_empty(tokenizer: PreTrainedTokenizerBase, role: str) -> None:
    tokenizer.chat_template = CHATML
    sequence = read_messages(messages((role, ""), *TURNS[:2])).tokenize(tokenizer, 500)
    assert tokenizer.decode(sequence.token_ids).startswith(f"<|{role}|>\n<|end|>\n<|user|>\nhi there")


def test_open_ended_answer_is_closed(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = BARE
    sequence = read_messages(messages(*TURNS[:2])).tokenize(tokenizer, 500)
    assert sequence.token_ids[-1] == tokenizer.eos_token_id
    assert sequence.labels[-1] == tokenizer.eos_token_id


@given(
    turns=st.lists(
        st.tuples(st.sampled_from(["user", "assistant"]), st.text("ab \n", min_size=1)), max_size=5
    ),
    template=st.sampled_from([CHATML, TRIMMED, BARE]),
    length=st.integers(2, 60),
)
@settings(max_examples=examples(500), deadline=None)
def test_chat_fits_and_bears_loss_or_is_refused(
    base: SharedBase, turns: list[tuple[str, str]], template: str, length: int
) -> None:
    tokenizer = copy.deepcopy(base.tokenizer)
    tokenizer.chat_template = template
    try:
        sequence = read_messages(messages(*turns, ("assistant", "c"))).tokenize(tokenizer, length)
    except ValueError as error:
        if not str(error).startswith("messages"):
            raise
        return
    assert 2 <= len(sequence.token_ids) <= length
    assert 0 <= sequence.loss_rows[0] <= sequence.loss_rows[-1] < len(sequence.token_ids) - 1
    assert sequence.loss_tokens == len(sequence.loss_rows) >= 1


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("hi", "messages: is a string, expected an array of turns"),
        (None, "messages: is null, expected an array"),
        ([], "messages: has no turn of the assistant"),
        (messages(("user", "hi")), "messages: has no turn of the assistant"),
        (["hi"], r"messages\[0\]: is a string, expected an object with role and content"),
        ([{"content": "hi"}], r"messages\[0\]\.role: is missing"),
        ([{"role": "user"}], r"messages\[0\]\.content: is missing"),
        ([{"role": "robot", "content": "hi"}], r"messages\[0\]\.role: expected one of system, developer"),
        ([{"role": "user", "content": None}], r"messages\[0\]\.content: is null, expected a string"),
        ([{"role": "user", "content": ["hi"]}], r"messages\[0\]\.content: is an array, expected a string"),
        ([{"role": "user", "content": ""}], r"messages\[0\]\.content: is empty"),
        (messages(("user", "hi"), ("assistant", " \n")), r"messages\[1\]\.content: has only white space"),
        ([{"role": "user", "content": "\ud83d"}], r"messages\[0\]\.content: has half of a surrogate pair"),
        ([{"role": "user", "content": "a", "name": "x"}], r"messages\[0\]\.name: unknown field"),
    ],
)
def test_what_is_no_conversation_is_refused_by_field(value: object, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}"):
        TextRecords(reads_chats=True).parse({"messages": value})


def test_refused_conversation_names_its_line(
    base: SharedBase, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    tokenizer.chat_template = STRICT
    chat = {"messages": messages(("system", "be brief"), *TURNS)}
    (tmp_path / "d.jsonl").write_text(f'{{"text": "a"}}\n{json.dumps(chat)}\n')
    error = r"^d\.jsonl, line 2: messages: the base model's chat template refuses them: No system turns"
    with (
        DatasetRoot(tmp_path).open("d.jsonl", form=TextRecords(reads_chats=True)) as dataset,
        pytest.raises(DatasetError, match=error),
    ):
        dataset.tokenized(1, tokenizer, 64)


@pytest.fixture
def chat_directory(llama_directory: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(llama_directory, tmp_path / "chat-model"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    return folder


def test_a_chat_is_trained_as_transformers_would(chat_directory: Path, make_task, tmp_path: Path) -> None:
    base = load_base(chat_directory)
    assert base.objective.records == records_in(chat_directory) == TextRecords(reads_chats=True)
    (tmp_path / "d.jsonl").write_text(json.dumps({"messages": messages(*TURNS)}) + "\n")
    engine = FusedEngine(base, DatasetRoot(tmp_path))
    engine.attach(make_task("job", dataset="d.jsonl", batch_size=1, sequence_length=120))
    loss = engine.step()["job"]

    tokenizer = AutoTokenizer.from_pretrained(chat_directory)
    parts = [
        ("<|user|>\nhi there<|end|>\n<|assistant|>\n", False),
        ("hello<|end|>", True),
        ("\n<|user|>\nagain<|end|>\n<|assistant|>\n", False),
        ("bye bye<|end|>", True),
    ]
    ids, labels = [], []
    for text, bears_loss in parts:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        ids += tokens
        labels += tokens if bears_loss else [-100] * len(tokens)
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(chat_directory).eval()
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
    expected = cross_entropy(logits, torch.tensor(labels[1:]), ignore_index=-100)
    assert loss == pytest.approx(float(expected), rel=1e-5)


def test_an_instruction_is_in_the_prompt_of_alpaca() -> None:
    given_both = TextRecords().parse({"instruction": "Add.", "input": "1 2", "output": "3"})
    assert given_both == TextRecord(
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:",
        "3",
    )
    alone = TextRecord(
        "Below is an instruction that describes a task. Write a response that appropriately completes the "
        "request.\n\n### Instruction:\nSing.\n\n### Response:",
        "La",
    )
    for record in (
        {"instruction": "Sing.", "output": "La"},
        {"instruction": "Sing.", "input": "", "output": "La"},
        {"instruction": "Sing.", "input": None, "output": "La"},
    ):
        assert TextRecords().parse(record) == alone


@pytest.mark.parametrize(
    ("columns", "line", "expected"),
    [
        (TextColumns(text="content"), {"id": 1, "content": "a", "text": None}, TextRecord("", "a")),
        (PromptColumns(prompt="q", completion="a"), {"q": "x", "a": "y", "more": [1]}, TextRecord("x", "y")),
        (
            InstructionColumns(instruction="do", input="with", output="so"),
            {"do": "Sing.", "so": "La"},
            TextRecords().parse({"instruction": "Sing.", "output": "La"}),
        ),
        (ChatColumns(messages="chat"), {"chat": messages(*TURNS)}, read_messages(messages(*TURNS))),
    ],
)
def test_columns_use_names_of_job(columns: Columns, line: dict[str, object], expected: object) -> None:
    assert with_columns(TextRecords(reads_chats=True), columns).parse(line) == expected


def test_columns_of_a_classifier() -> None:
    form = with_columns(LabelledRecords(("a", "b"), "last"), TextColumns(text="review", label="stars"))
    record = form.parse({"review": "fine", "stars": "b", "date": "today"})
    assert (record.text, record.label) == ("fine", 1)
    with pytest.raises(ValueError, match=r"^stars: 7 is not in 0 to 1"):
        form.parse({"review": "fine", "stars": 7})


def test_column_faults_name_fields_of_file() -> None:
    texts = with_columns(TextRecords(), TextColumns(text="id"))
    with pytest.raises(ValueError, match=r"^id: is a number, expected a string"):
        texts.parse({"id": 7})
    chats = with_columns(TextRecords(reads_chats=True), ChatColumns(messages="chat"))
    with pytest.raises(ValueError, match=r"^chat\[0\]: is a string, expected an object"):
        chats.parse({"chat": ["hi"]})


def test_a_missing_column_is_named() -> None:
    form = with_columns(TextRecords(), TextColumns(text="content"))
    error = r"^content: is missing, and dataset\.columns\.text names it; the fields are: id, text"
    with pytest.raises(ValueError, match=error):
        form.parse({"id": 1, "text": "a"})


def test_forms_with_other_columns_have_other_keys() -> None:
    chosen = [TextColumns(text="a"), TextColumns(text="b"), PromptColumns(prompt="a", completion="b"), None]
    assert len({with_columns(TextRecords(), columns).key for columns in chosen}) == len(chosen)


@pytest.mark.parametrize("named", [{}, {"text": "a", "prompt": "b"}, {"prompt": "a"}, {"input": "a"}])
def test_columns_are_of_one_form(named: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="columns"):
        Dataset.model_validate({"path": "d.jsonl", "samples": 1, "columns": named})


def test_a_dataset_without_columns_is_written_as_before() -> None:
    assert Dataset(path="d", samples=1).model_dump_json() == '{"path":"d","samples":1}'
    named = Dataset(path="d", samples=1, columns=PromptColumns(prompt="q", completion="a"))
    assert Dataset.model_validate_json(named.model_dump_json()) == named
