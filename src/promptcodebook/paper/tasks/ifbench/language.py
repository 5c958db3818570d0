"""What a check is handed: its arguments, the analysed response, and what is known of languages,
each part loaded when first used. NLTK refuses folders outside a list that it makes at its first
import; so its files, few and plain, are read here and handed to its classes."""

from __future__ import annotations

import json
import os
import re
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BeforeValidator, ConfigDict, FiniteFloat, create_model

from promptcodebook.base.text import shipped_table
from promptcodebook.base.worker import shared_worker
from promptcodebook.errors import TaskError, import_extra
from promptcodebook.tasks.home import BenchmarkRow, check_row

MARKS = string.punctuation  # the 32 ASCII punctuation marks
EDGES = MARKS + " "
CONTEXT = 3  # tokens on which the tag of the first one depends

_REPEATED = 1024  # sentences remembered; a degenerate reply repeats itself
_LIMIT_S = 1.5  # for the patterns of one constraint
_DELETE = str.maketrans("", "", MARKS)
_PACKAGES = "punkt_tab stopwords averaged_perceptron_tagger_eng"


ConstraintCheck = Callable[["SplitText", "Arguments"], bool]


@dataclass(frozen=True, slots=True)
class InstructionCheck:
    """One constraint: its demand with {argument} fields, and the arguments that it requires."""

    name: str
    met: ConstraintCheck
    says: str
    takes: tuple[str, ...]


_DEMANDS = shipped_table(__file__, "instructions.toml")


def read_instructions(checks: Mapping[str, ConstraintCheck]) -> dict[str, InstructionCheck]:
    """The constraints by id; instructions.toml has their demands in words."""
    return {
        name: InstructionCheck(
            name, met, _DEMANDS[name]["says"], tuple(_DEMANDS[name].get("takes", ()))
        )
        for name, met in checks.items()
    }


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Those of all arguments that are no texts.
_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(_DEMANDS["whole"], Annotated[int, BeforeValidator(_whole)]),
    **dict.fromkeys(("keywords", "forbidden_words"), list[str]),
    **dict.fromkeys(
        ("relation", "let_relation", "capital_relation"), Literal["less than", "at least"]
    ),
    "percentage": FiniteFloat,
}


class Arguments(BenchmarkRow):
    """The kwargs of one constraint, as attributes; 5.0 is as good as 5."""

    model_config = ConfigDict(extra="forbid")
    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def as_texts(self) -> dict[str, str]:
        """Each argument as it reads in a sentence."""
        texts = dict[str, str]()
        for name, value in self.model_dump().items():
            texts[name] = f"{value:g}" if isinstance(value, float) else str(value)
            if isinstance(value, list):
                texts[name] = ", ".join(f'"{item}"' for item in cast("list[object]", value))
        return texts


@cache
def _shape(takes: tuple[str, ...]) -> type[Arguments]:
    fields: dict[str, Any] = {name: (_TYPES.get(name, str), ...) for name in takes}
    return create_model("Arguments", __base__=Arguments, **fields)


def read_arguments(constraint: InstructionCheck, given: Mapping[str, object]) -> Arguments:
    """Nulls count as absent. Raises DataError when one is too many, missing or of a wrong type."""
    values = {name: value for name, value in given.items() if value is not None}
    return check_row(values, f"the kwargs of {constraint.name}", _shape(constraint.takes))


def compare(relation: str, count: int, bound: int) -> bool:
    return count < bound if relation == "less than" else count >= bound


def without_marks(text: str) -> str:
    """`text` without ASCII punctuation."""
    return text.translate(_DELETE)


class SplitText:
    """A response as the checks see it; `value` is its exact text. Each analysis is made once."""

    def __init__(self, value: str, language: Language) -> None:
        self.value = value
        self.language = language

    @cached_property
    def sentences(self) -> list[str]:
        return self.language.sentences(self.value)

    @cached_property
    def tokens(self) -> list[str]:
        return [*chain.from_iterable(self.language.each_tokens(self.sentences))]

    def first_tokens(self, count: int) -> list[str]:
        """The first `count` tokens, without making the others."""
        found = self.language.each_tokens(self.sentences)
        return [*islice(chain.from_iterable(found), count)]

    def last_tokens(self, count: int) -> list[str]:
        """The last `count` tokens in their order, without making the others."""
        found = self.language.each_tokens(reversed(self.sentences))
        return [*islice(chain.from_iterable(each[::-1] for each in found), count)][::-1]

    @cached_property
    def lower(self) -> str:
        return self.value.lower()

    @cached_property
    def words(self) -> list[str]:
        r"""Maximal runs of \w."""
        return re.findall(r"\w+", self.value)

    @cached_property
    def bare(self) -> list[str]:
        """White-space tokens of the text without ASCII punctuation."""
        return without_marks(self.value).split()

    @cached_property
    def bare_lower(self) -> list[str]:
        return without_marks(self.lower).split()


class Language:
    """The English tokenisers, lists and guessers behind the checks. `nltk_data` is a folder laid
    out as NLTK's downloader does; None: NLTK_DATA, then PCO_DATA (with nltk_data inside), then
    NLTK's usual folders. Uses raise MissingExtra or TaskError for a package of the extra `bench` or
    a file of NLTK's that is not there."""

    def __init__(self, nltk_data: Path | None = None) -> None:
        named = [Path(part) for part in os.environ.get("NLTK_DATA", "").split(os.pathsep) if part]
        data = os.environ.get("PCO_DATA", "")
        roots = [Path(data), Path(data) / "ifbench"] if data else []
        roots += [Path.home(), Path(sys.prefix)]
        roots += map(Path, ("/usr/share", "/usr/local/share", "/usr/lib"))
        self._places = (*named, *(root / "nltk_data" for root in roots))
        if nltk_data is not None:
            self._places = (nltk_data,)

    def sentences(self, text: str) -> list[str]:
        """Punkt's sentences of `text`."""
        return self._punkt.tokenize(text)

    def tokens(self, text: str) -> list[str]:
        """NLTK's Treebank-style tokens, sentence by sentence."""
        return [*chain.from_iterable(self.each_tokens(self.sentences(text)))]

    def each_tokens(self, sentences: Iterable[str]) -> Iterator[list[str]]:
        """The tokens of each sentence, made as they are asked for, of equal sentences once."""
        return map(lru_cache(_REPEATED)(self._words.tokenize), sentences)

    def first_tag(self, tokens: list[str]) -> str:
        """The part-of-speech tag (Penn Treebank) of the first token; '' for no tokens."""
        return self._tagger.tag(tokens[:CONTEXT])[0][1] if tokens else ""

    def guess(self, text: str) -> str:
        """The code of the likeliest language; '' when nothing in `text` tells. Repeatable."""
        factory, no_guess = self._detectors
        detector = factory.create()
        try:
            detector.append(text)
            return detector.detect()
        except no_guess:
            return ""

    def counts(
        self,
        patterns: list[str],
        text: str,
        *,
        around: tuple[str, str] = ("", ""),
        ignore_case: bool = True,
    ) -> list[int]:
        """For each pattern, the number of its matches, with what is put `around` it. IFEval uses
        its keywords as patterns, unescaped. One that could take exponential time runs in a worker
        process that is killed at its limit: TimeoutError."""
        if all(re.fullmatch(r"[^*+?{|]{0,200}", pattern) for pattern in patterns):
            return count_each(patterns, text, around, ignore_case)
        args = [patterns, text, around, ignore_case]
        result = shared_worker().call(f"{__name__}:count_each", args, _LIMIT_S)
        if result.timed_out or result.error:
            raise TimeoutError("a pattern took too long")
        return cast("list[int]", result.value)

    @cached_property
    def stop_words(self) -> frozenset[str]:
        """NLTK's English stop words, lower-case."""
        return frozenset(_lines(self._find("corpora/stopwords/english", "stopwords")))

    @cached_property
    def syllables(self) -> Callable[[str], int]:
        """Counts the syllables of an English word, estimated where it is in no dictionary."""
        return import_extra("syllapy", "words:odd_even_syllables", "bench").count

    @cached_property
    def is_emoji(self) -> Callable[[str], bool]:
        return import_extra("emoji", "format:emoji", "bench").is_emoji

    @cached_property
    def _detectors(self) -> tuple[Any, type[Exception]]:
        library, errors = (
            import_extra(f"langdetect.{part}", "IFEval's language check", "bench")
            for part in ("detector_factory", "lang_detect_exception")
        )
        factory = library.DetectorFactory()
        factory.load_profile(library.PROFILES_DIRECTORY)
        factory.seed = 0  # the detector samples; the public scorer is left unseeded
        return factory, errors.LangDetectException

    @cached_property
    def _punkt(self) -> Any:
        punkt, decoder = _nltk("tokenize.punkt"), _nltk("tabdata").PunktDecoder()
        folder = self._find("tokenizers/punkt_tab/english", "punkt_tab")
        known = punkt.PunktParameters()
        known.abbrev_types = set(_lines(folder / "abbrev_types.txt"))
        known.sent_starters = set(_lines(folder / "sent_starters.txt"))
        known.collocations = set(decoder.tab2tups(_lines(folder / "collocations.tab")))
        known.ortho_context = decoder.tab2intdict(_lines(folder / "ortho_context.tab"))
        return punkt.PunktSentenceTokenizer(known)

    @cached_property
    def _words(self) -> Any:
        return _nltk("tokenize").NLTKWordTokenizer()

    @cached_property
    def _tagger(self) -> Any:
        name = "averaged_perceptron_tagger_eng"
        tagger = _nltk("tag.perceptron").PerceptronTagger(load=False)
        folder = self._find(f"taggers/{name}", name)
        parts = ("weights", "tagdict", "classes")
        tagger.decode_json_params(
            _read(folder / f"{name}.{part}.json", json.loads) for part in parts
        )
        return tagger

    def _find(self, inside: str, package: str) -> Path:
        for place in self._places:
            if (place / inside).exists():
                return place / inside
        looked = ", ".join(map(str, self._places))
        message = f"IFBench's checks need NLTK's {package}, but {inside} was not found in {looked}"
        hint = f"python -m nltk.downloader {_PACKAGES} (or set NLTK_DATA to their folder)"
        raise TaskError(message, hint=hint)


def _nltk(part: str) -> Any:
    return import_extra(f"nltk.{part}", "checking IFBench's constraints", "bench")


def _lines(path: Path) -> list[str]:
    return [line for line in _read(path, str).split("\n") if line]


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        message = f"NLTK's data file {path} cannot be read: {error}"
        raise TaskError(message, hint=f"python -m nltk.downloader {_PACKAGES}") from error


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
