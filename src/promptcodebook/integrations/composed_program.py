"""A DSPy program whose predictors get the prompt that a policy composes for each input."""

from __future__ import annotations

import asyncio
import json
import os
import types
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from pydantic import ValidationError

from promptcodebook.assemble import Sources
from promptcodebook.calls import LM
from promptcodebook.config import role_layers
from promptcodebook.errors import ConfigError, PcoError, PolicyError, import_extra
from promptcodebook.method.policy import join_prompts
from promptcodebook.optimizers.dspy_model import dspy_model
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.policy import Policy, deploy
from promptcodebook.policy.response import Explanation
from promptcodebook.run.optimize import Run
from promptcodebook.types import Prompt

_dspy: Any = import_extra("dspy", "promptcodebook.integrations.dspy", "baselines")

_PROMPT = "promptcodebook_prompt"
"""Of dspy's settings: they reach the threads that dspy starts, where a variable would not."""
_STATE = "promptcodebook"
"""Our part of a saved program's state."""


class ComposedProgram(_dspy.Module):
    """A DSPy program whose predictors get the prompt that a policy composes for each input.

    `student` is a copy of the program that it was made of. `lm` and `roles` say who routes and
    composes: a spec such as 'openai/gpt-x', an LM object, or '' for the environment's PCO_LM.
    Within `with` their connections stay open from call to call. Without a policy it must be loaded
    first; `trust` takes one that sets more of a request than how replies are drawn.
    """

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
        self._trust = trust
        self._policy = policy
        self._compiled = policy is not None  # within another program it is left alone

    @property
    def policy(self) -> Policy:
        """What composes. PolicyError where nothing was loaded yet."""
        if self._policy is None:
            raise PolicyError("this program has no policy yet", hint="program.load('program.json')")
        return self._policy

    def forward(self, **inputs: Any) -> Any:
        """The student's prediction under the prompt of these inputs."""
        _, prompt = self.policy.compose(inputs)
        with self._tell(prompt):
            return self.student(**inputs)

    async def aforward(self, **inputs: Any) -> Any:
        """The same, awaited."""
        _, prompt = await asyncio.to_thread(self.policy.compose, inputs)
        with self._tell(prompt):
            return await self.student.acall(**inputs)

    def explain(self, **inputs: Any) -> Explanation:
        """Route, instincts, prompt and reasons for one input."""
        return self.policy.explain(inputs)

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """The student's state, which fits a bare student as well, and beside it the policy."""
        state: dict[str, Any] = self.student.dump_state(json_mode=json_mode)
        return {**state, _STATE: {"policy": json.loads(self.policy.file.text())}}

    def load_state(self, state: Mapping[str, Any], *, allow_unsafe_lm_state: bool = False) -> None:
        """Raises PolicyError for a state without a policy of ours, RunNotTrusted for one whose
        policy needs trust; then nothing has changed."""
        file = _policy_in(state)
        file.require_trust("of the saved program", trusted=self._trust)
        lm, roles = self._models
        policy = _deploy(file, lm, roles)
        self.student.load_state(state, allow_unsafe_lm_state=allow_unsafe_lm_state)
        self._policy, self._compiled = policy, True

    def __deepcopy__(self, memo: object) -> ComposedProgram:
        """With a student of its own, on the same policy."""
        lm, roles = self._models
        made = ComposedProgram(
            self.student, lm, roles=roles, policy=self._policy, trust=self._trust
        )
        made.run = self.run
        return made

    def __enter__(self) -> ComposedProgram:
        self.policy.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self.policy.__exit__(*raised)

    @contextmanager
    def _tell(self, prompt: Prompt) -> Generator[None]:
        """Within it the student's predictors have this prompt, and a model."""
        model = _dspy.settings.lm or dspy_model(_dspy, self.policy.reply, "executor")
        with tell(prompt, lm=model):
            yield


class _Attending:
    """A predictor that gets the prompt of the present input; this class is mixed into its own."""

    stage_name: str
    signature: Any

    def forward(self, **inputs: Any) -> Any:
        return super().forward(**self._told(inputs))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]

    async def aforward(self, **inputs: Any) -> Any:
        return await super().aforward(**self._told(inputs))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]

    def _told(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
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
    """Within it attending predictors have this prompt, and dspy these settings. What our models
    raise comes out as it was, without the error of dspy's around it."""
    with _dspy.context(**{**settings, _PROMPT: prompt}):
        try:
            yield
        except Exception as error:
            ours = error.__cause__
            if not isinstance(ours, PcoError):
                raise
            raise ours from None


def require_student(student: Any) -> None:
    if not isinstance(student, _dspy.Module) or isinstance(student, ComposedProgram):
        kind = type(cast("object", student)).__name__
        raise ConfigError(
            f"a {kind} cannot be compiled by PCO",
            hint="give a dspy.Module; of a program that PCO composed, its .student",
        )
    if not student.predictors():
        raise ConfigError(
            f"{type(cast('object', student)).__name__} has no predictors to prompt",
            hint="make them in its __init__, e.g. self.answer = dspy.Predict('question -> answer')",
        )


def _policy_in(state: Mapping[str, Any]) -> PolicyFile:
    try:
        return PolicyFile.model_validate_json(json.dumps(state[_STATE]["policy"]))
    except (KeyError, TypeError):
        raise PolicyError(
            "the saved program holds no policy of promptcodebook",
            hint="load one that a program compiled by PCO saved, or a bare student's own",
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "policy"
        raise PolicyError(
            f"the saved program's policy cannot be read: {where}: {first['msg']}",
            hint="it must have been written by `save` of a program that PCO compiled",
        ) from None


def _deploy(file: PolicyFile, lm: str | LM, roles: Mapping[str, Any] | None) -> Policy:
    """The policy ready to compose. ConfigError where no model is named."""
    spec = lm if isinstance(lm, str) else ""
    spec = spec or ("" if lm else os.environ.get("PCO_LM", ""))
    if not lm and not spec:
        raise ConfigError(
            "a saved program names no model to route and compose with, and none was given",
            hint="ComposedProgram(student, 'http://host:8000/v1#model'), or set PCO_LM",
        )
    above: dict[str, Any] = {"roles": role_layers(roles), "cache": False}
    if spec:
        above["lm"] = spec
    own = None if isinstance(lm, str) else lm
    settings = file.settings(above=above, where="load()", trusted=True)  # it was asked before
    return deploy(file, settings, Sources(lm=own))
