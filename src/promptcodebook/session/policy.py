"""A learned policy at work: x -> route, prompt, answer."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from promptcodebook.config import Config
from promptcodebook.data import Dataset
from promptcodebook.data.template import parse_template
from promptcodebook.errors import ConfigError, DataError, PolicyError, did_you_mean
from promptcodebook.method.draws import Draws
from promptcodebook.method.evaluate import EVALUATION
from promptcodebook.method.policy import Deployed, Trial, rollout_of
from promptcodebook.session.models import Models, Supplies
from promptcodebook.session.parts import build_policy
from promptcodebook.session.policy_file import PolicyFile, config_of, read_policy_file
from promptcodebook.session.simulation import simulated_factory
from promptcodebook.session.sync import run_sync
from promptcodebook.tasks.single import single_call
from promptcodebook.types import Codebook, Example, Rollout, Route

__all__ = ["Explanation", "Policy", "load_policy", "role_layers"]

X = str | Mapping[str, object] | Example


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why this input got this prompt."""

    input: str
    route: Route
    instincts: tuple[tuple[int, str], ...]
    prompt: str


class Policy:
    """Routes, composes and answers; sync and async. Close it (or use `with`) when done."""

    def __init__(self, file: PolicyFile, models: Models, config: Config, trial: Trial) -> None:
        self.file = file
        self._models = models
        self._trial = trial
        self._seed = config.seed
        self._config = config
        policy = build_policy(config, models.ask, models.tally)
        self._deployed = Deployed(policy, file.parameters, file.standing)

    @property
    def codebook(self) -> Codebook:
        return self.file.parameters.codebook

    async def arun(self, x: X) -> Rollout:
        """The whole forward pass of one input, failures recorded; no reward."""
        example = self._example(x)
        draws = Draws(self._seed, EVALUATION, example.id)
        return await rollout_of(self._deployed, self._trial, example, draws)

    async def aprompt(self, x: X) -> str:
        """The composed prompt for x (Eq. 10)."""
        return (await self._route_and_prompt(x))[1]

    async def aanswer(self, x: X) -> str:
        """The executor's answer under the composed prompt; raises what a failed pass raised."""
        rollout = await self.arun(x)
        if rollout.failure is not None:
            failure = rollout.failure
            raise PolicyError(
                f"no answer: {failure.kind} at {failure.stage}: {failure.message}",
                hint="pco doctor",
            )
        return rollout.output

    async def aexplain(self, x: X) -> Explanation:
        """Route, chosen instincts, composed prompt and the encoder's reasons."""
        route, prompt = await self._route_and_prompt(x)
        chosen = tuple((k, self.codebook[k].text) for k in route.indices)
        return Explanation(self._example(x).input, route, chosen, prompt)

    def __repr__(self) -> str:
        return f"Policy(K={len(self.codebook)}, S={self._config.select}, lm={self._config.lm!r})"

    def prompt(self, x: X) -> str:
        return run_sync(self._closing(self.aprompt(x)))

    def answer(self, x: X) -> str:
        return run_sync(self._closing(self.aanswer(x)))

    def explain(self, x: X) -> Explanation:
        return run_sync(self._closing(self.aexplain(x)))

    def save(self, path: str | Path) -> None:
        """Writes the policy file whole or not at all."""
        self.file.save(Path(path))

    async def aclose(self) -> None:
        """Closes the connections; the policy opens new ones when it is used again."""
        await self._models.close()

    async def __aenter__(self) -> Policy:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _closing(self, coroutine: Any) -> Any:
        """Connections belong to the loop that opened them, and a sync call's loop ends with it."""
        try:
            return await coroutine
        finally:
            await self.aclose()

    async def _route_and_prompt(self, x: X) -> tuple[Route, str]:
        example = self._example(x)
        draws = Draws(self._seed, EVALUATION, example.id)
        route, prompt, _ = await self._deployed.prompt(example, draws)
        assert route is not None, "a learned policy always routes"
        return route, str(prompt)

    def _example(self, x: X) -> Example:
        if isinstance(x, Example):
            return x
        if isinstance(x, str):
            return Example(_id_of(x), x)
        if not isinstance(x, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DataError(
                f"an input is a text, a mapping of columns or an Example, not {type(x).__name__}",
                hint="policy.prompt('...') or policy.prompt({'column': '...'})",
            )
        text = _rendered(x, self._config.data.input)
        return Example(_id_of(text), text, fields=dict(x))


def _id_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _rendered(columns: Mapping[str, object], template: str) -> str:
    """x as the training data was read: one column, or a template over several."""
    if template in columns:
        return str(columns[template])
    pieces = parse_template(template)
    missing = [name for name in pieces.columns or (template,) if name not in columns]
    if missing:
        raise DataError(
            f"the input has no column {missing[0]!r}{did_you_mean(missing[0], columns)}",
            hint=f"the policy reads {template!r}",
        )
    return pieces.render({name: str(columns[name]) for name in pieces.columns})


def load_policy(
    path: str | Path, lm: str | None = None, roles: Mapping[str, Any] | None = None
) -> Policy:
    """A saved policy, ready to answer.

    The model is `lm`, else the environment's PCO_LM, else a ConfigError. `roles` gives single
    roles a model (a spec) or settings of their own.
    """
    spec = lm or os.environ.get("PCO_LM", "")
    if not spec:
        raise ConfigError(
            "a policy file names no model, and none was given",
            hint="pass lm='http://host:8000/v1#model' or set PCO_LM",
        )
    file = read_policy_file(Path(path))
    config = config_of(file, {"lm": spec, "roles": role_layers(roles), "cache": False})
    # A simulated model of no data in particular: it knows no answers, but routes and composes.
    nothing = Dataset((), (), ())
    models = Models.build(config, Supplies(simulated=simulated_factory("", nothing)))
    return Policy(file, models, config, Trial(single_call, None, models.lm, greedy=True))


def role_layers(roles: Mapping[str, Any] | None) -> dict[str, Any]:
    """{'critic': 'openai/x'} and {'critic': {'model': ...}} mean the same."""
    layers: dict[str, Any] = {}
    for role, value in (roles or {}).items():
        if isinstance(value, str):
            layers[role] = {"model": value}
        elif isinstance(value, Mapping):
            layers[role] = dict(cast("Mapping[str, Any]", value))
        else:
            raise ConfigError(
                f"roles[{role!r}] is of type {type(value).__name__}",
                hint="give a model's spec, or a mapping of settings",
            )
    return layers
