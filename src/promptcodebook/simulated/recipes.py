"""The world of each task: its skills, what an input demands of each stage, and who writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.facts import instructions, private_units, unit_kind
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.problem import Demand
from promptcodebook.simulated.skill import Lexicon, Skill
from promptcodebook.simulated.skills_aime import AIME_SKILLS
from promptcodebook.simulated.skills_constraints import CONSTRAINT_SKILLS
from promptcodebook.simulated.skills_general import GENERAL_SKILLS
from promptcodebook.simulated.skills_hotpotqa import HOTPOTQA_SKILLS
from promptcodebook.simulated.skills_hover import HOVER_SKILLS
from promptcodebook.simulated.skills_ifbench import FAMILIES, IFBENCH_SKILLS
from promptcodebook.simulated.skills_livebench import LIVEBENCH_SKILLS
from promptcodebook.simulated.skills_pupa import PUPA_SKILLS
from promptcodebook.simulated.world import MOST_SKILLS, Demands, World, Writer
from promptcodebook.simulated.writer_answers import write_boxed, write_plain
from promptcodebook.simulated.writer_constraints import write_constraints
from promptcodebook.simulated.writer_ifbench import TEST_WRITERS
from promptcodebook.simulated.writer_ifeval import IFEVAL, write_ifbench
from promptcodebook.simulated.writer_livebench import write_livebench
from promptcodebook.types import Example

__all__ = ["build_world", "unfollowed"]

_STAGED = ("hotpotqa", "hover", "ifbench", "pupa")
"""Tasks that are programs of several stages."""


def build_world(
    task_name: str,
    examples: Sequence[Example],
    settings: SimulatedSettings | None = None,
    *,
    homogeneous: bool = False,
) -> World:
    """The world of a task: one of its own for each benchmark, else a general one for any data.

    `homogeneous` (or the setting of that name): every input needs the same skills, so that
    nothing is gained by routing.
    """
    settings = settings or SimulatedSettings()
    skills, writer = _parts(task_name)
    lexicon = Lexicon(skills)
    specific = [k for k, s in enumerate(skills) if not s.general]
    seed = settings.world_seed
    same = sorted(specific, key=lambda k: keyed_int("same", seed, k))[:4]
    fixed = tuple(sorted(same)) if homogeneous or settings.homogeneous else ()
    demands = _demands(task_name, skills, lexicon, fixed)
    world = World(task_name or "general", skills, examples, demands, writer)
    world.staged = task_name in _STAGED
    world.unfollowed = unfollowed(task_name)
    return world


def _parts(name: str) -> tuple[Sequence[Skill], Writer]:
    """A task's skills and the writer of its replies."""
    return {
        "constraints": (CONSTRAINT_SKILLS, write_constraints),
        "aime": (AIME_SKILLS, write_boxed),
        "hotpotqa": (HOTPOTQA_SKILLS, write_plain),
        "hover": (HOVER_SKILLS, write_plain),
        "pupa": (PUPA_SKILLS, write_plain),
        "ifbench": (IFBENCH_SKILLS, write_ifbench),
        "livebench_math": (LIVEBENCH_SKILLS, write_livebench),
    }.get(name, (GENERAL_SKILLS, write_plain))


def unfollowed(task: str) -> tuple[str, ...]:
    """Ids of a task's constraints that no writer knows: replies follow them by accident only."""
    if task != "ifbench":
        return ()
    return tuple(sorted(FAMILIES.keys() - IFEVAL - TEST_WRITERS.keys()))


def _demands(
    name: str, skills: Sequence[Skill], lexicon: Lexicon, fixed: tuple[int, ...]
) -> Demands:
    if name in ("hotpotqa", "hover"):
        return _OfHops(skills, lexicon, fixed, 3 if name == "hover" else 2)
    named: Mapping[str, type[_OfAnswer | _OfConstraints | _OfInstructions | _OfPrivacy]] = {
        "constraints": _OfConstraints,
        "ifbench": _OfInstructions,
        "pupa": _OfPrivacy,
    }
    return named.get(name, _OfAnswer)(skills, lexicon, fixed)


class _OfConstraints:
    """One demand a constraint: the example's own, else those whose words show in the input."""

    def __init__(self, skills: Sequence[Skill], lexicon: Lexicon, fixed: tuple[int, ...]) -> None:
        self._index = {s.name: k for k, s in enumerate(skills)}
        self._names = [s.name for s in skills]
        self._general = frozenset(k for k, s in enumerate(skills) if s.general)
        self._lexicon = lexicon
        self.fixed = fixed

    def __call__(self, text: str, example: Example | None) -> tuple[Demand, ...]:
        listed = example.fields.get("constraints") if example is not None else None
        if isinstance(listed, list | tuple):
            found = cast("Sequence[Mapping[str, object]]", listed)
        else:
            about = sorted(self._lexicon.about_in(text) - self._general)[:MOST_SKILLS]
            found = [{"kind": self._names[k]} for k in about]
        demands: list[Demand] = []
        for place, constraint in enumerate(found):
            kind = str(constraint.get("kind", ""))
            topic = self._index.get(kind, 0)
            key = f"{place}:{kind}"
            shown = constraint if example is not None else None
            demands.append(Demand(key, topic, self.fixed or (topic,), shown))
        return tuple(demands)


class _OfAnswer:
    """One demand, the right answer; the skills are those whose words show in the input."""

    def __init__(self, skills: Sequence[Skill], lexicon: Lexicon, fixed: tuple[int, ...]) -> None:
        self._general = frozenset(k for k, s in enumerate(skills) if s.general)
        self._lexicon = lexicon
        self.fixed = fixed

    def __call__(self, text: str, example: Example | None) -> tuple[Demand, ...]:
        about = self._lexicon.about_in(text) - self._general
        # Which five of many visible topics matter is fixed by the input.
        chosen = sorted(about, key=lambda k: keyed_int("topic", k, text))[:5]
        skills = self.fixed or tuple(sorted(chosen))
        return (Demand("answer", skills[0] if skills else 0, skills),)


class _Named:
    """Demands whose skills are found by name: a core skill, and others visible in the input."""

    def __init__(self, skills: Sequence[Skill], lexicon: Lexicon, fixed: tuple[int, ...]) -> None:
        self._index: Mapping[str, int] = {s.name: k for k, s in enumerate(skills)}
        self._lexicon = lexicon
        self.fixed = fixed

    def _demand(
        self, key: str, stage: str, core: str, more: Sequence[str] = (), topic: str = ""
    ) -> Demand:
        named = dict.fromkeys((core, *more))
        skills = self.fixed or tuple(sorted(self._index[n] for n in named))
        return Demand(key, self._index[topic or core], skills, stage=stage)

    def _visible(self, text: str, among: Sequence[str], most: int) -> list[str]:
        """Of these skills those that show in the input; which of many matter is fixed by it."""
        about = self._lexicon.about_in(text)
        found = [n for n in among if self._index[n] in about]
        return sorted(found, key=lambda n: keyed_int("topic", n, text))[:most]


class _OfHops(_Named):
    """Multi-hop retrieval: notes and searches hop by hop, and the answer or the verification."""

    def __init__(
        self, skills: Sequence[Skill], lexicon: Lexicon, fixed: tuple[int, ...], hops: int
    ) -> None:
        super().__init__(skills, lexicon, fixed)
        names = [s.name for s in skills if not s.general]
        self._search, self._notes, self._end = names[1:10], names[10:14], names[16:]
        self._core = names[15]
        self._hops = hops

    def __call__(self, text: str, example: Example | None) -> tuple[Demand, ...]:
        searches = self._visible(text, self._search, 2)
        notes = self._visible(text, self._notes, 1)
        end = self._visible(text, self._end, 1)
        found: list[Demand] = []
        for hop in range(1, self._hops + 1):
            if hop > 1:
                found.append(self._demand(f"search:{hop}", "search", "name_page", searches))
            if hop < self._hops or self._hops == 2:
                found.append(self._demand(f"notes:{hop}", "notes", "page_titles", notes))
        last = "verify" if self._hops == 3 else "answer"
        found.append(self._demand(last, last, self._core, end))
        return tuple(found)


class _OfInstructions(_Named):
    """One demand for each constraint: the example's own, else those whose words show."""

    def __call__(self, text: str, example: Example | None) -> tuple[Demand, ...]:
        if example is None:
            names = [n for n in self._index if n in FAMILIES.values()]
            return tuple(self._demand(n, "", n) for n in self._visible(text, names, 5))
        found: list[Demand] = []
        for place, constraint in enumerate(instructions(example)):
            kind = str(constraint["kind"])
            topic = self._index[FAMILIES.get(kind, "words")]
            skills = self.fixed or (topic,)
            found.append(Demand(f"{place}:{kind}", topic, skills, constraint))
        return tuple(found)


_KEEPING = ("letters", "translations", "applications", "stories", "code_and_data")


class _OfPrivacy(_Named):
    """One demand for each private piece, one that the task is kept, one that it is answered."""

    def __call__(self, text: str, example: Example | None) -> tuple[Demand, ...]:
        kinds = {u: unit_kind(u) for u in private_units(example)}
        # A query with many kinds of pieces would need more skills than an input may.
        shown = list(dict.fromkeys(kinds.values()))[:4]
        found = [
            self._demand(f"unit:{u}", "", kind if kind in shown else shown[0])
            for u, kind in kinds.items()
        ]
        keep = self._visible(text, _KEEPING, 1)
        found.append(self._demand("task", "redact", "keep_task", keep, topic="answer_query"))
        reply = self._visible(text, ("restore_details", "same_form"), 1)
        found.append(self._demand("respond", "respond", "answer_query", reply))
        return tuple(found)
