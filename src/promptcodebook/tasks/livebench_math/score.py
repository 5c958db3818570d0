"""LiveBench-Math's scorers, chosen by the parts of the subtask's name.

amc, smc: multiple choice. aime: the three digits near the end. imo, usamo: edit distance of an
order. amps: algebraic equality.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from promptcodebook.errors import DataError, MissingExtra
from promptcodebook.tasks.livebench_math.readings import (
    Ids,
    choice_path,
    clean_gold,
    clean_response,
    closeness,
    compact,
    normalise,
    parse_answer,
    read_ids,
)
from promptcodebook.tasks.worker import Worker, shared_worker

ALGEBRA = ("sympy", "lark", "math_verify")
"""The packages that comparing formulas takes."""

_AIME_TAIL = 50
_LONGEST = 4000
"""Characters of an AMPS answer that is still compared by algebra; no gold is nearly as long."""
_LARK_S = 4.0
_TOLERANT_S = 3.0
_ALGEBRA = "promptcodebook.tasks.livebench_math.algebra"


@dataclass(frozen=True, slots=True)
class MathScore:
    """A score in [0, 1], and how it came about.

    `kind`: choice, aime, rearrangement or amps. `path`: the reading or comparison that decided, ""
    when nothing could be read. `read`: the answer as it was read. `ids`: of a rearrangement.
    `timed_out`: a comparison was stopped at its time limit (and counts as unequal).
    """

    score: float
    kind: str
    path: str
    read: str = ""
    ids: Ids = field(default_factory=lambda: Ids())
    timed_out: bool = False


def score(question: str, ground_truth: str, subtask: str, answer: str) -> float:
    """The public score, 0 to 1; a fraction only for imo and usamo. DataError: unknown subtask."""
    return math_score(question, ground_truth, subtask, answer).score


def math_score(
    question: str, ground_truth: str, subtask: str, answer: str, worker: Worker | None = None
) -> MathScore:
    """`score` with the path that decided; `worker` runs the algebra (default: the process's)."""
    kind = kind_of(subtask)
    answer = without_thoughts(answer)
    if kind == "choice":
        path = choice_path(question, ground_truth, answer)
        return MathScore(float(bool(path)), kind, path)
    if kind == "aime":
        at_end = ground_truth in answer[-_AIME_TAIL:]
        return MathScore(float(at_end), kind, "end of the answer" if at_end else "")
    if kind == "rearrangement":
        ids, path = read_ids(answer)
        return MathScore(closeness(ids, _gold_ids(ground_truth)), kind, path, ids=ids)
    return _amps(ground_truth, answer, worker)


def kind_of(subtask: str) -> str:
    """The scorer of a subtask: choice, aime, rearrangement or amps."""
    parts = subtask.lower().split("_")
    if parts[0] in ("amc", "smc") or parts[1:2] == ["amc"]:
        return "choice"
    if parts[0] == "aime":
        return "aime"
    if parts[0] in ("imo", "usamo"):
        return "rearrangement"
    if parts[0] == "amps":
        return "amps"
    raise DataError(
        f"unknown subtask {subtask!r} of LiveBench-Math",
        hint="known: amc..., updated_amc..., smc, aime..., imo, usamo, amps_hard...",
    )


def without_thoughts(answer: str) -> str:
    """The answer without its <think>...</think> spans; one that is never closed stays."""
    kept = list[str]()
    at = 0
    while (start := answer.find("<think>", at)) >= 0:
        end = answer.find("</think>", start)
        if end < 0:
            break
        kept.append(answer[at:start])
        at = end + len("</think>")
    return "".join((*kept, answer[at:]))


def _gold_ids(ground_truth: str) -> list[int]:
    try:
        return [int(piece) for piece in ground_truth.split(",")]
    except ValueError:
        raise DataError(
            f"the gold order {ground_truth[:80]!r} is not a comma-separated list of integers",
            hint="correct ground_truth in the data file",
        ) from None


def _amps(ground_truth: str, answer: str, worker: Worker | None) -> MathScore:
    response, gold = clean_response(answer), clean_gold(ground_truth)
    read, path = parse_answer(response)
    if read is None:
        ended = response.removesuffix(".").endswith(ground_truth)
        return MathScore(float(ended), "amps", "end of the answer" if ended else "")
    if not read:
        return MathScore(0.0, "amps", path)
    if compact(read) in (compact(gold), compact(normalise(gold))):
        return MathScore(1.0, "amps", f"{path}, equal text", read)
    if len(read) > _LONGEST:
        return MathScore(0.0, "amps", f"{path}, too long to compare", read[:_LONGEST])
    return _by_algebra(gold, read, path, worker or shared_worker())


def _by_algebra(gold: str, read: str, path: str, worker: Worker) -> MathScore:
    """The lark grammar first, then math-verify where lark did not find them equal."""
    decided, late = "not readable", False
    for name, function, limit_s in (
        ("lark", "same_by_lark", _LARK_S),
        ("math-verify", "same_by_math_verify", _TOLERANT_S),
    ):
        result = worker.call(f"{_ALGEBRA}:{function}", (gold, read), limit_s)
        if result.error.startswith("ModuleNotFoundError"):
            raise MissingExtra("comparing mathematical answers", "bench")
        late = late or result.timed_out
        if result.value is True:
            return MathScore(1.0, "amps", f"{path}, {name}", read, timed_out=late)
        if result.value is False:
            decided = name
        elif result.error:
            decided = "comparison failed"
    return MathScore(
        0.0, "amps", f"{path}, {'time limit' if late else decided}", read, timed_out=late
    )
