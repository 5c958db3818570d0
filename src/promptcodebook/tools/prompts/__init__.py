"""Prompts that were found elsewhere: a front of GEPA, DSPy programs, or a folder of text files.
Each becomes an instinct. Only text and JSON are read: GEPA's state and some DSPy programs are
pickles, which may run code; both are refused, with what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

from promptcodebook.base.paths import read_text
from promptcodebook.base.text import parse_json
from promptcodebook.base.units import plural
from promptcodebook.errors import ConfigError
from promptcodebook.method.policy import join_prompts

_TEXTS = (".txt", ".md", ".prompt")
_STATE, _CANDIDATES = "gepa_state.bin", "candidates.json"
_AS_JSON = "import json; json.dump(result.to_dict(), open('front.json', 'w'), default=str)"
_AS_PROGRAM = "program.save('program.json')"


@dataclass(frozen=True, slots=True)
class Front:
    """Different prompts, the best first; `best` is what its maker would deploy, '' = unsaid."""

    prompts: tuple[str, ...]
    best: str = ""


def read_prompts(path: Path) -> Sequence[str]:
    """The prompts alone, for `init.kind`."""
    return read_front(path).prompts


def read_front(place: Path) -> Front:
    """What a file or folder holds. `FILE#NAME` = the texts of that name. Raises ConfigError when it
    holds no prompts."""
    named, _, component = str(place).partition("#")
    path = Path(named)
    try:
        tree = _of_folder(path) if path.is_dir() else _of_file(path)
        found, scores = _prompts_of(tree, path, component)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise _refusal(path, str(error).splitlines()[0]) from None
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise _refusal(path, f"its JSON is incomplete or malformed ({error})") from None
    prompts = [text.strip() for text in found]
    best = prompts[scores.index(max(scores))] if scores else ""
    order = sorted(range(len(prompts)), key=lambda k: -scores[k] if scores else 0.0)
    different = tuple(text for text in dict.fromkeys(prompts[k] for k in order) if text)
    if not different:
        raise _refusal(path, "it contains no prompt")
    return Front(different, best)


def _refusal(path: Path, why: str) -> ConfigError:
    hint = "give GEPA's result (as JSON or its run folder), DSPy programs as JSON, a JSON list of "
    hint += f"strings, or a folder of {', '.join(_TEXTS)} files"
    return ConfigError(f"cannot read prompts from {path}: {why}", hint=hint)


def _of_file(path: Path) -> Any:
    if path.suffix in _TEXTS:
        return [read_text(path)]
    if path.suffix in (".bin", ".pkl", ".pickle"):
        raise _pickled(path)
    return parse_json(read_text(path))


def _pickled(path: Path) -> ConfigError:
    write = _AS_JSON if path.name == _STATE else f"{_AS_JSON}, or {_AS_PROGRAM}"
    what = f"{path} is a pickle, which may run code when it is read, so it is not opened"
    return ConfigError(what, hint=f"save it as JSON where you made it: {write}")


def _of_folder(path: Path) -> Any:
    """GEPA's candidates, or the prompts of every file that has some, by name."""
    if (path / _CANDIDATES).is_file():
        return _of_file(path / _CANDIDATES)
    if (path / _STATE).is_file():
        raise _pickled(path / _STATE)
    inner = path / "evaluated_programs"  # where MIPROv2's log_dir has them
    folder = inner if inner.is_dir() else path
    files = sorted(f for f in folder.iterdir() if f.suffix in (*_TEXTS, ".json"))
    found = list[Any]()
    for file in files:
        tree = _of_file(file)
        if file.suffix == ".json" and _is_program(tree):
            found.append(_texts_of_program(tree))
        elif file.suffix != ".json":
            found += tree
    return found


def _prompts_of(tree: Any, path: Path, component: str) -> tuple[list[str], list[float]]:
    scores: list[float] = []
    if isinstance(tree, dict):
        tree = cast("dict[str, Any]", tree)
        if "candidates" in tree:
            every, scores = tree["candidates"], [float(s) for s in tree["val_aggregate_scores"]]
            kept = _undominated(scores, tree["per_val_instance_best_candidates"].values())
            tree, scores = [every[k] for k in kept], [scores[k] for k in kept]
        elif "candidate_programs" in tree:
            listed = cast("list[Mapping[str, Any]]", tree["candidate_programs"])
            scores = [float(each["score"]) for each in listed]
            tree = [_texts_of_program(each["program"]) for each in listed]
        elif _is_program(tree):
            tree = [_texts_of_program(tree)]
    if not isinstance(tree, list):
        raise _refusal(path, "its JSON has no prompts in a known form")
    texts = [_one_text(each, path, component) for each in cast("list[Any]", tree)]
    return texts, scores if len(scores) == len(texts) else []


def _undominated(scores: Sequence[float], fronts: Iterable[Sequence[int]]) -> list[int]:
    """The candidates that GEPA's front needs: the worst goes first, if others are as good."""
    best = scores.index(max(scores))
    left = [set(front) for front in fronts]
    for k in sorted(range(len(scores)), key=lambda k: scores[k]):
        own = [front for front in left if k in front]
        if k != best and all(len(front) > 1 for front in own):
            for front in own:
                front.discard(k)
    return sorted({best, *chain(*left)})


def _one_text(candidate: Any, path: Path, component: str) -> str:
    if isinstance(candidate, str):
        return candidate
    texts = cast("Mapping[str, Any]", candidate if isinstance(candidate, dict) else {})
    if component in texts or len(texts) == 1:
        found = texts[component] if component in texts else next(iter(texts.values()))
        if isinstance(found, str):
            return found
    if len(texts) > 1:
        names = ", ".join(sorted(texts))
        what = f"a candidate in {path} has {plural(len(texts), 'text')}: {names}"
        hint = f"a codebook takes one text per prompt; choose one, as in {path}#{sorted(texts)[0]}"
        raise ConfigError(what, hint=hint)
    raise _refusal(path, "a candidate is not a text")


def _is_program(tree: object) -> bool:
    return isinstance(tree, dict) and bool(list(_predictors(cast("dict[str, Any]", tree))))


def _predictors(program: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    alone = "signature" in program  # a predictor that is saved by itself
    for name, saved in {"": program}.items() if alone else program.items():
        held = cast("dict[str, Any]", saved) if isinstance(saved, dict) else {}
        if "instructions" in (held.get("signature") or ()):
            yield name, saved


def _texts_of_program(program: Mapping[str, Any]) -> Mapping[str, str]:
    """By predictor: its instructions, and its demonstrations field by field."""
    found: dict[str, str] = {}
    for name, saved in _predictors(program):
        demos = [
            "\n".join(f"{k.replace('_', ' ').capitalize()}: {v}" for k, v in demo.items() if v)
            for demo in ({k: v for k, v in d.items() if k != "augmented"} for d in saved["demos"])
        ]
        shown = "\n\n".join(["Examples:", *demos]) if demos else ""
        found[name] = join_prompts(str(saved["signature"]["instructions"]), shown)
    return found
