"""Real text that any machine with Python has, and rated film reviews where they were fetched."""

import inspect
import io
import pydoc_data.topics
import re
import tarfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

ARCHIVE = "vaderSentiment-3.3.2.tar.gz"
"""A source distribution under the MIT licence; `make reviews` fetches it. It holds the data sets of Hutto and
Gilbert (ICWSM 2014), among them 10,605 sentences of film reviews of Pang and Lee, the source of SST-2
too, and 13,097 more of reviews of goods, of opinion pieces and of tweets, each with the mean of 20 ratings
from -4 to 4."""
_DATA_SETS = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
_RATED = tuple(
    f"hutto_ICWSM_2014/{kind}_GroundTruth.txt"
    for kind in ("movieReviewSnippets", "amazonReviewSnippets", "nytEditorialSnippets", "tweets")
)
_MODULES = (
    "argparse",
    "asyncio.tasks",
    "csv",
    "datetime",
    "difflib",
    "email.message",
    "fractions",
    "heapq",
    "inspect",
    "logging",
    "pathlib",
    "random",
    "shutil",
    "statistics",
    "subprocess",
    "tarfile",
    "tempfile",
    "threading",
    "unittest.case",
    "unittest.mock",
    "uuid",
    "zipfile",
    "doctest",
    "decimal",
    "configparser",
    "urllib.request",
    "http.client",
    "pdb",
    "pickletools",
    "optparse",
)

Labelled = tuple[str, int]
"""A text and its class, 0 or 1."""


def rated_sentences(folder: Path) -> list[Labelled]:
    """Sentences of reviews, opinion pieces and tweets, class 1 where they are rated above 0; those rated 0
    are left out.

    Raises:
        FileNotFoundError: the archive is not there.
    """
    with tarfile.open(folder / ARCHIVE) as distribution:
        data_sets = io.BytesIO(_read(distribution, _DATA_SETS))
        with tarfile.open(fileobj=data_sets) as archive:
            lines = [line for file in _RATED for line in _read(archive, file).decode().splitlines()]
    rows = [line.split("\t") for line in lines if line.strip()]
    return [(text, int(float(rating) > 0)) for _, rating, text in rows if float(rating) != 0]


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def reference() -> str:
    """The language reference that Python's `help` shows."""
    return "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))


def library_sentences() -> list[Labelled]:
    """Sentences on Python: class 0 from the language reference, 1 from docstrings of the standard library; as
    many of both.
    """
    docstrings = "\n\n".join(
        inspect.getdoc(member) or ""
        for name in _MODULES
        for module in [import_module(name)]
        for _, holder in sorted(vars(module).items(), key=lambda item: item[0])
        for member in [holder, *(vars(holder).values() if inspect.isclass(holder) else ())]
        if callable(member) and getattr(member, "__module__", None) == name
    )
    classes = [_sentences(reference()), _sentences(docstrings)]
    fewest = min(len(sentences) for sentences in classes)
    return [(sentence, label) for label, some in enumerate(classes) for sentence in some[:fewest]]


def _sentences(text: str) -> Sequence[str]:
    """Those of eight words or more, each once."""
    flowing = re.sub(r"\s+", " ", text)
    found = (sentence.strip() for sentence in re.split(r"(?<=[.:;])\s", flowing))
    return list(dict.fromkeys(sentence for sentence in found if len(sentence.split()) >= 8))
