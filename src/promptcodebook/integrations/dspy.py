"""DSPy: a teleprompter that compiles a program into one that is prompted for each input.

    from promptcodebook.integrations.dspy import PCO, ComposedProgram
    compiled = PCO(metric, "openai/gpt-x", budget="2usd").compile(program, trainset=rows)
    compiled.save("program.json")
    program = ComposedProgram(MyProgram(), "openai/gpt-x")
    program.load("program.json")

The prompt is composed once for an input of the program (with `compose_per_stage` for each
predictor) and precedes each predictor's own instruction and demonstrations, which stay what they
were. So the row `present` of the verdict is the program as it came.

The metric is asked with no trace, as `dspy.Evaluate` asks it: many are stricter where they are
given one. A reply that dspy's adapter cannot parse earned the least, and the critic reads why."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from promptcodebook.assemble import Sources
from promptcodebook.calls import LM, Chat, Message, Reply, Usage
from promptcodebook.config import Config, role_layers
from promptcodebook.data import Dataset
from promptcodebook.data.dataset import Split, draw_splits
from promptcodebook.data.table import cell_text, parse_input_template, plain
from promptcodebook.errors import (
    ConfigError,
    DataError,
    PcoError,
    PolicyError,
    RewardError,
    import_extra,
)
from promptcodebook.integrations import read_score, scored_output
from promptcodebook.lm.spec import no_model
from promptcodebook.method.policy import join_prompts
from promptcodebook.paper.rivals.mipro import dspy_model
from promptcodebook.policy.file import parse_policy_file
from promptcodebook.policy.policy import Explanation, Policy, deploy
from promptcodebook.progress import Listener
from promptcodebook.run.optimize import Run, optimize
from promptcodebook.types import Example, Output, Prompt, Score, Stage

_dspy: Any = import_extra("dspy", "promptcodebook.integrations.dspy", "baselines")

_PROMPT = "promptcodebook_prompt"  # Of dspy's settings, which reach the threads that dspy starts.
_STATE = "promptcodebook"  # Our part of a saved program's state.


class ComposedProgram(_dspy.Module):
    """A DSPy program whose predictors get the prompt that a policy composes for each input. `lm`
    and `roles` say who routes and composes: a spec such as 'openai/gpt-x', an LM object, or '' for
    the environment's PCO_LM. Within `with` their connections stay open. Without a policy it must be
    loaded first; `trust` takes one that sets more of a request than how replies are drawn."""

    def __init__(
        self,
        student: Any,
        lm: str | LM = "",
        *,
        roles: Mapping[str, Any] | None = None,
        policy: Policy | None = None,
        trust: bool = False,
    ) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        require_student(student)
        self.student = attend(student.deepcopy())
        self.run: Run | None = None
        self._models = (lm, roles)
        self._trust, self._policy = trust, policy
        self._compiled = policy is not None  # within another program it is left alone

    @property
    def policy(self) -> Policy:
        """What composes. Raises PolicyError where nothing was loaded yet."""
        if self._policy is None:
            raise PolicyError("this program has no policy yet", hint="program.load('program.json')")
        return self._policy

    def forward(self, **inputs: Any) -> Any:
        _, prompt = self.policy.compose(inputs)
        with self._tell(prompt):
            return self.student(**inputs)

    async def aforward(self, **inputs: Any) -> Any:
        _, prompt = await asyncio.to_thread(self.policy.compose, inputs)
        with self._tell(prompt):
            return await self.student.acall(**inputs)

    def explain(self, **inputs: Any) -> Explanation:
        return self.policy.explain(inputs)

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        state: dict[str, Any] = self.student.dump_state(json_mode=json_mode)
        return {**state, _STATE: {"policy": json.loads(self.policy.file.text())}}

    def load_state(self, state: Mapping[str, Any], *, allow_unsafe_lm_state: bool = False) -> None:
        """Raises PolicyError when it holds no policy of ours, and RunNotTrusted for code of
        others. Then nothing has changed."""
        try:
            text = json.dumps(state[_STATE]["policy"])
        except (KeyError, TypeError):
            hint = "load a program that PCO compiled, or load this one into the bare student"
            message = "the saved program contains no promptcodebook policy"
            raise PolicyError(message, hint=hint) from None
        file = parse_policy_file(text, "the policy in the saved program")
        file.require_trust("of the saved program", trusted=self._trust)
        lm, roles = self._models
        lm = lm or os.environ.get("PCO_LM", "")
        if not lm:
            message = "a saved program names no model to route and compose with, and none was given"
            raise no_model(message)
        above: dict[str, Any] = {"roles": role_layers(roles), "cache": False}
        if isinstance(lm, str):
            above["lm"] = lm
        settings = file.settings(above=above, where="load()", trusted=True)  # it was asked before
        policy = deploy(file, settings, Sources(lm=None if isinstance(lm, str) else lm))
        self.student.load_state(state, allow_unsafe_lm_state=allow_unsafe_lm_state)
        self._policy, self._compiled = policy, True

    def __deepcopy__(self, memo: object) -> ComposedProgram:
        lm, roles = self._models
        more: dict[str, Any] = {"roles": roles, "policy": self._policy, "trust": self._trust}
        made = ComposedProgram(self.student, lm, **more)
        made.run = self.run
        return made

    def __enter__(self) -> ComposedProgram:
        self.policy.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self.policy.__exit__(*raised)

    def _tell(self, prompt: Prompt) -> AbstractContextManager[None]:
        return tell(
            prompt, lm=_dspy.settings.lm or dspy_model(_dspy, self.policy.reply, "executor")
        )


class _Attending:
    """A predictor that gets the prompt of the present input; this class is mixed into its own."""

    stage_name: str
    signature: Any

    def forward(self, **inputs: Any) -> Any:
        return super().forward(**self._with_prompt(inputs))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]

    async def aforward(self, **inputs: Any) -> Any:
        return await super().aforward(**self._with_prompt(inputs))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]

    def _with_prompt(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        prompt: Prompt | None = _dspy.settings.get(_PROMPT)
        if prompt is None:
            return dict(inputs)
        signature = inputs.get("signature", self.signature)
        if isinstance(signature, str):
            signature = _dspy.Signature(signature)
        text = join_prompts(prompt.of(self.stage_name), signature.instructions)
        return {**inputs, "signature": signature.with_instructions(text)}


def attend(student: Any) -> Any:
    """The student, its predictors attending. Their class changes and they do not, for a program may
    hold one in several places, and may be of a class of its own."""
    for name, predictor in student.named_predictors():
        if not isinstance(predictor, _Attending):
            predictor.__class__ = types.new_class(
                predictor.__class__.__name__, (_Attending, predictor.__class__)
            )
        predictor.stage_name = name
    student._compiled = False  # a compiled part hides its predictors, and so its state
    return student


@contextmanager
def tell(prompt: Prompt, **settings: Any) -> Generator[None]:
    """Attending predictors have this prompt, dspy these settings; our errors come out bare."""
    with _dspy.context(**{**settings, _PROMPT: prompt}):
        try:
            yield
        except Exception as error:
            ours = error.__cause__
            if not isinstance(ours, PcoError):
                raise
            raise ours from None


def require_student(student: Any) -> None:
    kind = type(cast("object", student)).__name__
    if not isinstance(student, _dspy.Module) or isinstance(student, ComposedProgram):
        hint = "pass a dspy.Module; if PCO composed the program, pass its .student"
        raise ConfigError(f"a {kind} cannot be compiled by PCO", hint=hint)
    if not student.predictors():
        hint = "create them in its __init__, e.g. self.answer = dspy.Predict('question -> answer')"
        raise ConfigError(f"{kind} has no predictors to prompt", hint=hint)


_ParseError: Any = import_extra("dspy.utils.exceptions", __name__, "baselines").AdapterParseError

_VALIDATING = 1 / 3  # Of the training rows, where nothing is given to validate on.


class PCO(_dspy.teleprompt.Teleprompter):
    """Learns a codebook for a DSPy program. `metric` is dspy's: (example, prediction, trace) ->
    number, bool, or a Prediction with `score` and `feedback`, which reaches the critic. The other
    parameters are those of `pco.optimize`. What the program asks itself is asked of the dspy LM
    that it or dspy is configured with; what dspy says that this took is counted. Where there is
    none, our role `executor` is asked."""

    def __init__(
        self,
        metric: Callable[..., object],
        lm: str | LM = "",
        *,
        roles: Mapping[str, Any] | None = None,
        budget: str | None = None,
        config: Config | Mapping[str, Any] | None = None,
        runs_dir: str | Path = "runs",
        name: str = "",
        listener: Listener | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.metric, self._lm = metric, lm
        self._options: dict[str, Any] = {"roles": roles, "budget": budget, "config": config}
        self._options |= {"runs_dir": runs_dir, "name": name, "listener": listener}
        self._options["progress"] = progress

    def compile(
        self,
        student: Any,
        *,
        trainset: Sequence[Any],
        teacher: Any = None,
        valset: Sequence[Any] | None = None,
        testset: Sequence[Any] | None = None,
        resume: str = "",
    ) -> ComposedProgram:
        """The student, composed; itself it stays as it was. `compiled.run` is the run behind it.
        Without a `valset` a third of the training rows is drawn to validate on; a `testset` gives
        the run a verdict; `resume` names a run to continue. Raises what `pco.optimize` raises."""
        if teacher is not None:
            raise ConfigError("PCO learns without a teacher", hint="compile(student, trainset=...)")
        require_student(student)
        given = {"train": trainset, "val": valset or (), "test": testset or ()}
        data, rows = _read_rows(cast("Mapping[Split, Sequence[Any]]", given))
        config: Config | Mapping[str, Any] = self._options["config"] or {}
        known = config.reward_range if isinstance(config, Config) else config.get("reward_range")
        runner = _Runner(student, self.metric, rows, float((known or (0.0, 1.0))[0]))
        run = optimize(
            data, read_score, self._lm, executor=cast("Any", runner), resume=resume, **self._options
        )
        made = ComposedProgram(student, self._lm, roles=self._options["roles"], policy=run.policy)
        made.run = run
        return made


class _Spent(_dspy.utils.usage_tracker.UsageTracker):
    """What dspy's models say that their calls took; threads that a program starts share it."""

    usage_data: Mapping[str, list[Mapping[str, Any]]]

    def __deepcopy__(self, memo: object) -> _Spent:
        return self


class _Runner:
    def __init__(
        self, student: Any, metric: Callable[..., object], rows: Mapping[str, Any], floor: float
    ) -> None:
        self.__qualname__ = type(student).__qualname__
        self._student = attend(student.deepcopy())
        self.stages = tuple(name for name, _ in self._student.named_predictors())
        self._score = _reward(metric)
        self._rows, self._floor = rows, floor
        # As they are where `compile` is called: rollouts run in threads of their own.
        self._settings = dict(_dspy.settings.copy())
        models = [p.lm for p in self._student.predictors()]
        self._asks_us = self._settings.get("lm") is None and not any(models)

    def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        row = self._rows[example.id]
        settings: dict[str, Any] = {**self._settings, "trace": [], "disable_history": True}
        spent = settings["usage_tracker"] = _Spent()
        if self._asks_us:
            # In a thread `lm` returns the reply itself.
            ask = cast("Callable[[Sequence[Message]], Reply]", lm)
            settings["lm"] = dspy_model(_dspy, ask, "executor")
        with tell(prompt, **settings):
            try:
                prediction = self._student(**row.inputs())
            except _ParseError as error:
                wanted = ", ".join(error.signature.output_fields)
                feedback = "The reply could not be parsed into the fields that it must have: "
                text, score = str(error.lm_response), Score(self._floor, f"{feedback}{wanted}.")
                return scored_output(text, self._taken(), score, self._paid(spent))
            taken, paid = self._taken(), self._paid(spent)
        with _dspy.context(**self._settings):
            score = self._score(row, prediction)
        return scored_output(_text(prediction), taken, score, paid)

    def _paid(self, spent: _Spent) -> Usage | None:
        """Of calls past our meter. None where fewer say it than were made, such as those that
        dspy's own cache answered: then it is not known what a query takes."""
        calls = [c for calls in spent.usage_data.values() for c in calls if c.get("prompt_tokens")]
        if self._asks_us or len(calls) < max(1, len(_dspy.settings.trace)):
            return None
        kinds = ("prompt_tokens", "completion_tokens")
        return Usage(len(calls), *(sum(call.get(kind) or 0 for call in calls) for kind in kinds))

    def _taken(self) -> list[Stage]:
        names = {id(p): name for name, p in self._student.named_predictors()}
        trace: Sequence[tuple[Any, Any, Any]] = _dspy.settings.trace
        known = [(names.get(id(p)), read, made) for p, read, made in trace]
        return [Stage(name, _text(read), _text(made)) for name, read, made in known if name]


def _reward(metric: Callable[..., object]) -> Callable[[Any, Any], Score]:
    """A metric of dspy's by row and prediction. Raises ConfigError for one that takes other
    arguments."""
    signature = inspect.signature(metric)
    for count in (3, 2, 5):  # 5: as dspy's GEPA has it
        with suppress(TypeError):
            signature.bind(*range(count))
            nothing = [None] * (count - 2)
            return lambda row, prediction: _score(metric(row, prediction, *nothing))
    message = "the metric does not take (example, prediction, trace)"
    raise ConfigError(message, hint="def metric(example, prediction, trace=None): ...")


def _score(returned: Any) -> Score:
    feedback: object = ""
    if not isinstance(returned, bool | int | float | Score):
        get = returned.get if isinstance(returned, Mapping | _dspy.Prediction) else lambda _: None  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType, reportUnknownMemberType]
        returned, feedback = get("score"), get("feedback")  # pyright: ignore[reportUnknownVariableType]
    if isinstance(returned, Score):
        returned, feedback = returned.value, returned.feedback
    try:
        return Score(float(returned), str(feedback or ""))  # pyright: ignore[reportUnknownArgumentType]
    except (TypeError, ValueError):
        hint = "return a float, a bool, or dspy.Prediction(score=..., feedback=...)"
        raise RewardError("the metric returned neither a number nor a score", hint=hint) from None


def _text(fields: Any) -> str:
    """A prediction, or what a predictor read: its one field, else each behind its name."""
    if not isinstance(fields, Mapping | _dspy.Example):
        return str(fields)
    items = [(str(k), str(v)) for k, v in fields.items()]
    return items[0][1] if len(items) == 1 else "\n".join(f"{k}: {v}" for k, v in items)


def _read_rows(given: Mapping[Split, Sequence[Any]]) -> tuple[Dataset, dict[str, Any]]:
    rows = {f"{split}-{k}": row for split, rows in given.items() for k, row in enumerate(rows)}
    if not given["train"]:
        raise DataError("the trainset is empty", hint="compile(student, trainset=[...])")
    inputs = {id: _inputs(id, row) for id, row in rows.items()}
    first, *others = inputs.values()
    names = [name for name in first if all(name in other for other in others)]
    if not names:
        raise DataError("the rows share no input field", hint="row.with_inputs('question')")
    template = names[0] if len(names) == 1 else "\n\n".join(f"{n}: {{{n}}}" for n in names)
    render = parse_input_template(template if len(names) > 1 else f"{{{names[0]}}}").render

    def read(id: str) -> Example:
        labels = rows[id].labels()
        text = render({name: cell_text(plain(inputs[id][name])) for name in names})
        return Example(id, text, _text(labels) if len(labels) else None)

    counts: dict[Split, int] = {split: len(rows) for split, rows in given.items()}
    splits: dict[Split, tuple[Example, ...]] = {
        split: tuple(read(f"{split}-{k}") for k in range(n)) for split, n in counts.items()
    }
    if not splits["val"]:
        shares: dict[Split, float] = {"train": 1 - _VALIDATING, "val": _VALIDATING}
        splits |= draw_splits(splits["train"], shares, 0, "the trainset")
    return Dataset(splits["train"], splits["val"], splits["test"], "dspy", template), rows


def _inputs(id: str, row: Any) -> dict[str, Any]:
    try:
        return dict(row.inputs().items())
    except (AttributeError, ValueError):
        split, _, index = id.partition("-")
        message = f"{split}set[{index}] does not say what its inputs are"
        hint = "dspy.Example(question='...', answer='...').with_inputs('question')"
        raise DataError(message, hint=hint) from None
