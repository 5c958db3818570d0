"""A local model as an `LM`: the engine behind a spec, loaded when it is first used. `LocalModels`
owns the engines: one for each spec, shared by all roles and runs, closed together."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from annotated_types import MinLen
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from promptcodebook.calls import LM, Message, Reply, Request, Usage
from promptcodebook.deploy.http.completions import Refusal, read_response_format
from promptcodebook.errors import RequestRefused, did_you_mean
from promptcodebook.lm.spec import Spec
from promptcodebook.lm.wire import no_embeddings
from promptcodebook.models.local.engine import (
    GGUF_NEEDS,
    EmbeddingEngine,
    Engine,
    Job,
    Weights,
    identify,
    require_model,
)

_SEED_BITS = 2**31 - 1
_Text = Annotated[str, MinLen(1)]


def load_engine(weights: Weights, *, four_bit: bool = False) -> Engine:
    """Load a model (one of Hugging Face in 4 bits), in seconds. Raises MissingExtra without its
    library, ConfigError when it is not there."""
    if weights.format == "hf":
        from promptcodebook.models.local.transformers import load_transformers

        return load_transformers(weights, four_bit=four_bit)
    from promptcodebook.models.local.openvino import load_openvino

    return load_openvino(weights)


class LocalModels:
    """The engines of this process, each loaded when first asked; GGUF files need `needs`."""

    def __init__(
        self, load: Callable[[Weights], Engine] = load_engine, needs: Sequence[str] = GGUF_NEEDS
    ) -> None:
        self._load = load
        self._needs = needs
        self._models: dict[str, LocalLM] = {}

    def connect(self, spec: Spec) -> LM:
        """The model behind a spec, not loaded yet. Raises MissingExtra or ConfigError where that
        is impossible.

        Equal specs get one engine."""
        if spec.text not in self._models:
            self._models[spec.text] = LocalLM(require_model(spec.text, self._needs), self._load)
        return self._models[spec.text]

    async def identity(self, spec_text: str) -> str:
        """What tells the weights behind a connected spec from others of its name; '' = nothing."""
        model = self._models.get(spec_text)
        return "" if model is None else await model.identity()

    async def close(self) -> None:
        """Gives all memory back; a model that is asked again is loaded again."""
        for model in self._models.values():
            await model.close()


class LocalLM:
    """An LM over an engine. Raises RequestRefused for what the engine cannot do."""

    def __init__(self, weights: Weights, load: Callable[[Weights], Engine]) -> None:
        self._weights = weights
        self._load = load
        self._made: dict[Callable[[Weights], Any], Any] = {}
        self._making = threading.Lock()

    async def __call__(self, request: Request) -> Reply:
        if request.embeds:
            return await self._embedding(request)
        job = job_of(request)
        engine = await self.engine()
        begun = time.perf_counter()
        made = await engine.generate(job)
        took = time.perf_counter() - begun
        cached = made.cached_tokens or 0
        usage = Usage(1, made.prompt_tokens, made.completion_tokens, cached, None, took)
        return Reply(made.text, made.finish, usage)

    async def _embedding(self, request: Request) -> Reply:
        engine = await self.engine()
        if not isinstance(engine, EmbeddingEngine) or request.messages[0].media:
            of = " of images" if isinstance(engine, EmbeddingEngine) else ""
            raise no_embeddings(f"{engine.model} offers no embeddings{of} here", request)
        begun = time.perf_counter()
        [made] = await engine.embed([request.messages[0].content])
        usage = Usage(1, made.tokens, 0, 0, None, time.perf_counter() - begun)
        return Reply("", usage=usage, vector=tuple(round(x, 6) for x in made.vector))

    async def engine(self) -> Engine:
        """The engine, loaded now if it is not yet."""
        return self._made.get(self._load) or await asyncio.to_thread(self._once, self._load)

    async def identity(self) -> str:
        """The digest of its weights, made once: a big file takes seconds."""
        return await asyncio.to_thread(self._once, identify)

    async def close(self) -> None:
        engine: Engine | None = self._made.pop(self._load, None)
        self._made.clear()
        if engine is not None:
            await engine.close()

    def _once(self, make: Callable[[Weights], Any]) -> Any:
        # Any number of calls, of any loop, may be the first.
        with self._making:
            if make not in self._made:
                self._made[make] = make(self._weights)
            return self._made[make]


class _Extra(BaseModel):
    """The fields of `roles.ROLE.extra` that a local model takes."""

    model_config = ConfigDict(extra="forbid", strict=True)
    stop: _Text | list[_Text] = Field([], description="a string, or a list of strings")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="a number from -2 to 2")
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="a number from -2 to 2")


def job_of(request: Request) -> Job:
    """The request as an engine takes it. Raises RequestRefused when a field is unknown or a part is
    not text."""
    sampling, known = request.sampling, _Extra.model_fields
    given = {name: value for name, value in sampling.extra.items() if value or name != "stop"}
    schema = None if request.schema is None else request.schema.body
    for part in (part for message in request.messages for part in message.media):
        message = f"a local model reads only text, not a part of type {part['type']!r}"
        hint = f"set roles.{request.role}.model to a model that reads such parts"
        raise RequestRefused(message, hint=hint, role=request.role, model=request.model)
    try:
        form: Any = given.pop("response_format", None)
        form = {} if form in (None, "none") else form
        asked, any_object = read_response_format(form)
        schema = schema or (asked.body if asked else {"type": "object"} if any_object else None)
        extra = _Extra.model_validate(given)
    except Refusal as error:
        hint = "write it in OpenAI's format"
        raise RequestRefused(str(error), hint=hint, role=request.role) from None
    except ValidationError as error:
        name = str(error.errors(include_url=False, include_input=False)[0]["loc"][0])
        what = f"a local model does not accept the field {name!r}{did_you_mean(name, known)}"
        hint = f"roles.{request.role}.extra accepts {', '.join(known)}"
        if name in known:
            what = f"roles.{request.role}.extra.{name} is not {known[name].description}"
            hint = f"correct it in pco.toml: {name} is {known[name].description}"
        raise RequestRefused(what, hint=hint, role=request.role, model=request.model) from None
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    return Job(
        # A template of a local model may know no tools: a tool's result is said by the user.
        tuple(Message("user" if m.role == "tool" else m.role, m.content) for m in request.messages),
        temperature=0.0 if request.greedy else temperature,
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        max_tokens=sampling.max_tokens,
        stop=(extra.stop,) if isinstance(extra.stop, str) else tuple(extra.stop),
        seed=request.sample & _SEED_BITS,
        presence_penalty=extra.presence_penalty,
        frequency_penalty=extra.frequency_penalty,
        schema=schema,
    )
