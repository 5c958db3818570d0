"""NLTK's data files, found and read without NLTK's loaders.

NLTK looks its files up through a list kept in the module and refuses folders outside it, so a
folder chosen by the caller would have to be set before the first import. The files are few and
plain; they are read here and handed to NLTK's classes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from promptcodebook.errors import TaskError

__all__ = ["folders", "read_punkt", "read_stop_words", "read_tagger"]

_PUNKT = "tokenizers/punkt_tab/english"
_STOP_WORDS = "corpora/stopwords/english"
_TAGGER = "taggers/averaged_perceptron_tagger_eng"


def folders(given: Path | None, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Where to look, in order: the given folder alone, else $NLTK_DATA, $PCO_DATA, NLTK's own."""
    if given is not None:
        return (given,)
    named = [Path(part) for part in environment.get("NLTK_DATA", "").split(os.pathsep) if part]
    data = environment.get("PCO_DATA", "")
    beside = [Path(data) / "nltk_data", Path(data) / "ifbench" / "nltk_data"] if data else []
    usual = [Path.home() / "nltk_data", Path(sys.prefix) / "nltk_data"]
    shared = [Path(root) / "nltk_data" for root in ("/usr/share", "/usr/local/share", "/usr/lib")]
    return (*named, *beside, *usual, *shared)


def read_punkt(places: tuple[Path, ...]) -> Any:
    """A Punkt sentence tokeniser for English. Raises TaskError when the data are not there."""
    folder = _find(places, _PUNKT, "punkt_tab")
    from nltk.tokenize.punkt import (  # pyright: ignore[reportMissingTypeStubs]
        PunktParameters,
        PunktSentenceTokenizer,
    )

    parameters: Any = PunktParameters()
    parameters.abbrev_types = set(_lines(folder / "abbrev_types.txt"))
    parameters.sent_starters = set(_lines(folder / "sent_starters.txt"))
    parameters.collocations = {
        (first, second)
        for first, _, second in (
            line.partition("\t") for line in _lines(folder / "collocations.tab")
        )
    }
    for line in _lines(folder / "ortho_context.tab"):
        word, _, flags = line.partition("\t")
        parameters.ortho_context[word] = int(flags)
    return PunktSentenceTokenizer(parameters)


def read_stop_words(places: tuple[Path, ...]) -> frozenset[str]:
    """NLTK's English stop words. Raises TaskError when the data are not there."""
    return frozenset(_lines(_find(places, _STOP_WORDS, "stopwords")))


def read_tagger(places: tuple[Path, ...]) -> Any:
    """NLTK's English part-of-speech tagger. Raises TaskError when the data are not there."""
    folder = _find(places, _TAGGER, "averaged_perceptron_tagger_eng")
    from nltk.tag.perceptron import (  # pyright: ignore[reportMissingTypeStubs]
        PerceptronTagger,
    )

    tagger: Any = PerceptronTagger(load=False)
    tagger.model.weights = _json(folder, "weights")
    tagger.tagdict = _json(folder, "tagdict")
    tagger.classes = tagger.model.classes = set(_json(folder, "classes"))
    return tagger


def _find(places: tuple[Path, ...], inside: str, package: str) -> Path:
    for place in places:
        if (place / inside).exists():
            return place / inside
    looked = ", ".join(str(place) for place in places)
    raise TaskError(
        f"IFBench's checks need NLTK's data package {package}; {inside} is in none of: {looked}",
        hint="python -m nltk.downloader punkt_tab stopwords averaged_perceptron_tagger_eng"
        " (or set NLTK_DATA to the folder that holds them)",
    )


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise TaskError(
            f"NLTK's data file {path} cannot be read: {error.strerror}",
            hint="python -m nltk.downloader punkt_tab stopwords",
        ) from error
    return [line for line in text.split("\n") if line]


def _json(folder: Path, part: str) -> Any:
    path = folder / f"{folder.name}.{part}.json"
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise TaskError(
            f"NLTK's data file {path} cannot be read",
            hint="python -m nltk.downloader averaged_perceptron_tagger_eng",
        ) from error
