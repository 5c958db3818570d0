"""What the checks know of languages: sentences, tokens, stop words, tags, syllables, guesses.

One `Language` is built and handed to every check. Its parts are loaded when first used, so a
check that only counts characters needs no data and no optional package.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from promptcodebook.errors import MissingExtra
from promptcodebook.tasks.ifbench.nltk_files import (
    folders,
    read_punkt,
    read_stop_words,
    read_tagger,
)
from promptcodebook.tasks.ifbench.patterns import Patterns

__all__ = ["CONTEXT", "Language"]

CONTEXT = 3
"""The tagger's choice for a text's first token depends on this many tokens."""

_REPEATED = 1024
"""Sentences remembered while one text is tokenised; a degenerate reply repeats itself."""


class Language:
    """The English tokenisers, lists and guessers behind the checks.

    `nltk_data` is a folder laid out as NLTK's downloader does; None: NLTK_DATA, then PCO_DATA
    (with nltk_data inside), then NLTK's usual folders. Uses raise MissingExtra when a package of
    the extra `bench` is missing and TaskError when NLTK's data are not found.
    """

    def __init__(self, nltk_data: Path | None = None, patterns: Patterns | None = None) -> None:
        self._places = folders(nltk_data, os.environ)
        self.patterns = patterns or Patterns()

    def sentences(self, text: str) -> list[str]:
        """Punkt's sentences of `text`."""
        return self._punkt.tokenize(text)

    def tokens(self, text: str) -> list[str]:
        """NLTK's Treebank-style tokens, sentence by sentence."""
        return [token for found in self.each_tokens(self.sentences(text)) for token in found]

    def each_tokens(self, sentences: Iterable[str]) -> Iterator[list[str]]:
        """The tokens of each sentence, made as they are asked for, of equal sentences once."""
        split = lru_cache(_REPEATED)(self._words.tokenize)
        return (split(sentence) for sentence in sentences)

    def first_tag(self, tokens: list[str]) -> str:
        """The part-of-speech tag (Penn Treebank) of the first token; '' for no tokens."""
        return self._tagger.tag(tokens[:CONTEXT])[0][1] if tokens else ""

    def syllables(self, word: str) -> int:
        """Syllables of an English word, estimated where it is in no dictionary."""
        return self._count_syllables(word)

    def guess(self, text: str) -> str:
        """The code of the likeliest language; '' when nothing in `text` tells. Repeatable."""
        detector = self._detectors.create()
        try:
            detector.append(text)
            return detector.detect()
        except self._no_guess:
            return ""

    def is_emoji(self, character: str) -> bool:
        return self._is_emoji(character)

    @cached_property
    def stop_words(self) -> frozenset[str]:
        """NLTK's English stop words, lower-case."""
        return read_stop_words(self._places)

    @cached_property
    def _punkt(self) -> Any:
        _need_nltk()
        return read_punkt(self._places)

    @cached_property
    def _words(self) -> Any:
        _need_nltk()
        from nltk.tokenize import NLTKWordTokenizer  # pyright: ignore[reportMissingTypeStubs]

        return NLTKWordTokenizer()

    @cached_property
    def _tagger(self) -> Any:
        _need_nltk()
        return read_tagger(self._places)

    @cached_property
    def _count_syllables(self) -> Any:
        try:
            from syllapy import count  # pyright: ignore[reportMissingTypeStubs]
        except ImportError as error:
            raise MissingExtra("words:odd_even_syllables", "bench") from error
        return count

    @cached_property
    def _is_emoji(self) -> Any:
        try:
            from emoji import is_emoji
        except ImportError as error:
            raise MissingExtra("format:emoji", "bench") from error
        return is_emoji

    @cached_property
    def _detectors(self) -> Any:
        try:
            from langdetect.detector_factory import (  # pyright: ignore[reportMissingTypeStubs]
                PROFILES_DIRECTORY,
                DetectorFactory,
            )
        except ImportError as error:
            raise MissingExtra("IFEval's language check", "bench") from error
        factory: Any = DetectorFactory()
        factory.load_profile(PROFILES_DIRECTORY)
        factory.seed = 0  # the detector samples; the public scorer is left unseeded
        return factory

    @cached_property
    def _no_guess(self) -> type[Exception]:
        from langdetect.lang_detect_exception import (  # pyright: ignore[reportMissingTypeStubs]
            LangDetectException,
        )

        return LangDetectException


def _need_nltk() -> None:
    if find_spec("nltk") is None:
        raise MissingExtra("checking IFBench's constraints", "bench")
