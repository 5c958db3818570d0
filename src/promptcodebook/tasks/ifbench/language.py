"""What the checks know of languages: sentences, tokens, stop words, tags, syllables, guesses.

One `Language` is built and handed to every check. Its parts are loaded when first used, so a check
that only counts characters needs no data and no optional package. NLTK looks its files up through a
list kept in the module and refuses folders outside it, so a folder chosen by the caller would have
to be set before the first import; the files are few and plain: they are read here and handed to
NLTK's classes. Regular expressions that come from data are `Patterns`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, cast

from promptcodebook.errors import TaskError, import_extra
from promptcodebook.tasks.worker import Worker, shared_worker

CONTEXT = 3
"""The tagger's choice for a text's first token depends on this many tokens."""

_REPEATED = 1024
"""Sentences remembered while one text is tokenised; a degenerate reply repeats itself."""

_LIMIT_S = 1.5
_HARMLESS = re.compile(r"[^*+?{|]{0,200}")
_PUNKT = "tokenizers/punkt_tab/english"
_STOP_WORDS = "corpora/stopwords/english"
_TAGGER = "taggers/averaged_perceptron_tagger_eng"


class Language:
    """The English tokenisers, lists and guessers behind the checks.

    `nltk_data` is a folder laid out as NLTK's downloader does; None: NLTK_DATA, then PCO_DATA
    (with nltk_data inside), then NLTK's usual folders. Uses raise MissingExtra when a package of
    the extra `bench` is missing and TaskError when NLTK's data are not found.
    """

    def __init__(self, nltk_data: Path | None = None, patterns: Patterns | None = None) -> None:
        self._places = nltk_folders(nltk_data, os.environ)
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

    def guess(self, text: str) -> str:
        """The code of the likeliest language; '' when nothing in `text` tells. Repeatable."""
        detector = self._detectors.create()
        try:
            detector.append(text)
            return detector.detect()
        except self._no_guess:
            return ""

    @cached_property
    def stop_words(self) -> frozenset[str]:
        """NLTK's English stop words, lower-case."""
        return frozenset(_lines(_find(self._places, _STOP_WORDS, "stopwords")))

    @cached_property
    def _punkt(self) -> Any:
        punkt = _nltk("tokenize.punkt")
        folder = _find(self._places, _PUNKT, "punkt_tab")
        parameters = punkt.PunktParameters()
        parameters.abbrev_types = set(_lines(folder / "abbrev_types.txt"))
        parameters.sent_starters = set(_lines(folder / "sent_starters.txt"))
        pairs = (line.partition("\t") for line in _lines(folder / "collocations.tab"))
        parameters.collocations = {(first, second) for first, _, second in pairs}
        for line in _lines(folder / "ortho_context.tab"):
            word, _, flags = line.partition("\t")
            parameters.ortho_context[word] = int(flags)
        return punkt.PunktSentenceTokenizer(parameters)

    @cached_property
    def _words(self) -> Any:
        return _nltk("tokenize").NLTKWordTokenizer()

    @cached_property
    def _tagger(self) -> Any:
        tagger = _nltk("tag.perceptron").PerceptronTagger(load=False)
        folder = _find(self._places, _TAGGER, "averaged_perceptron_tagger_eng")
        weights, tags, classes = (_json(folder, name) for name in ("weights", "tagdict", "classes"))
        tagger.model.weights, tagger.tagdict = weights, tags
        tagger.classes = tagger.model.classes = set(classes)
        return tagger

    @cached_property
    def syllables(self) -> Callable[[str], int]:
        """Counts the syllables of an English word, estimated where it is in no dictionary."""
        return import_extra("syllapy", "words:odd_even_syllables", "bench").count

    @cached_property
    def is_emoji(self) -> Callable[[str], bool]:
        return import_extra("emoji", "format:emoji", "bench").is_emoji

    @cached_property
    def _detectors(self) -> Any:
        library = _langdetect("detector_factory")
        factory = library.DetectorFactory()
        factory.load_profile(library.PROFILES_DIRECTORY)
        factory.seed = 0  # the detector samples; the public scorer is left unseeded
        return factory

    @cached_property
    def _no_guess(self) -> type[Exception]:
        return _langdetect("lang_detect_exception").LangDetectException


def _nltk(part: str) -> Any:
    return import_extra(f"nltk.{part}", "checking IFBench's constraints", "bench")


def _langdetect(part: str) -> Any:
    return import_extra(f"langdetect.{part}", "IFEval's language check", "bench")


class Patterns:
    """Counts matches of patterns that come from data; a worker is started when one needs it.

    IFEval uses its keywords as patterns, unescaped. One with a repetition or an alternative can
    take exponential time, which nothing in a thread can stop, so it runs in a worker process that
    is killed at its limit. The rest, nearly all, run here.
    """

    def __init__(self, worker: Worker | None = None, limit_s: float = _LIMIT_S) -> None:
        self._worker = worker
        self._limit_s = limit_s

    def counts(
        self,
        patterns: Sequence[str],
        text: str,
        *,
        prefix: str = "",
        suffix: str = "",
        ignore_case: bool = True,
    ) -> list[int]:
        """For each pattern, the number of matches of prefix + pattern + suffix.

        A pattern that is not a regular expression is looked for literally (the public scorer
        raises). Raises TimeoutError when the whole takes longer than the limit.
        """
        if all(_HARMLESS.fullmatch(pattern) for pattern in patterns):
            return count_each(list(patterns), text, (prefix, suffix), ignore_case)
        worker = self._worker or shared_worker()
        args = [list(patterns), text, (prefix, suffix), ignore_case]
        result = worker.call(f"{__name__}:count_each", args, self._limit_s)
        if not result.done:
            raise TimeoutError("a pattern took too long")
        return cast("list[int]", result.value)


def count_each(
    patterns: list[str], text: str, around: tuple[str, str], ignore_case: bool
) -> list[int]:
    """The matches of each pattern between `around`'s two; runs in the worker too."""
    before, after = around
    flags, counts = re.IGNORECASE if ignore_case else re.NOFLAG, list[int]()
    for pattern in patterns:
        try:
            compiled = re.compile(before + pattern + after, flags)
        except (re.error, RecursionError, OverflowError):
            compiled = re.compile(before + re.escape(pattern) + after, flags)
        counts.append(sum(1 for _ in compiled.finditer(text)))
    return counts


def nltk_folders(given: Path | None, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Where to look, in order: the given folder alone, else $NLTK_DATA, $PCO_DATA, NLTK's own."""
    if given is not None:
        return (given,)
    named = [Path(part) for part in environment.get("NLTK_DATA", "").split(os.pathsep) if part]
    data = environment.get("PCO_DATA", "")
    beside = [Path(data), Path(data) / "ifbench"] if data else []
    roots = (*beside, Path.home(), Path(sys.prefix))
    shared = map(Path, ("/usr/share", "/usr/local/share", "/usr/lib"))
    return (*named, *(root / "nltk_data" for root in (*roots, *shared)))


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
