"""The user's agent as an executor: a process, or a function, that is given a base URL and a key."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from promptcodebook.base.text import parse_json, place_in, shell
from promptcodebook.calls import Chat
from promptcodebook.config.loading import read_prompt
from promptcodebook.deploy.agents.endpoint import PromptPlaces, TrainingEndpoint, dry
from promptcodebook.errors import ConfigError, ExecutorError, PcoError
from promptcodebook.types import Example, Output, Prompt

AgentFunction = Callable[[str, str, Example], Awaitable[str | Output]]
_LARGEST = 2**20  # bytes of an agent's output that are kept: of a flood, the last ones
_IDLE_S = 10.0  # a process that reads lines is ended after it has waited this long
_GRACE_S, _LOOK_S = 1.0, 0.01  # the supervisor kills what has not ended by then; between two looks
_DRY = "a dry run"
_AS_IS = "Call it as its description says."  # of a tool of which nothing is learned yet
_VARIABLES = (
    *("HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "NODE_EXTRA_CA_CERTS", "NODE_PATH"),
    *("PATH", "PYTHONPATH", "REQUESTS_CA_BUNDLE", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE"),
    *("SYSTEMROOT", "TEMP", "TERM", "TMP", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV"),
)
_OURS = "OPENAI_API_KEY", "OPENAI_BASE_URL"
_LINE = 'print the answer as the last line, or {"output": ..., "fields": {...}}'
_LINE_OF = '{"id": ..., "output": ...}'
_UNHEARD = "it must call OpenAI's API: OPENAI_BASE_URL and OPENAI_API_KEY point here"
_HINT = "put {{pco}} into the agent's system prompt, or name its current prompt: --prompt FILE"


@dataclass(frozen=True, eq=False)
class Agent:
    """An agent that is trained as it is: its command (a process for each rollout), or an async
    function of base URL, key and example, for one in this process.

    The process reads the example from its standard input as JSON (`id`, `input` and the columns of
    the row, without the reference), and calls `OPENAI_BASE_URL` with `OPENAI_API_KEY` by any
    client. Its answer is the last line that it prints, or there `{"output": ..., "fields": {...}}`.

    - `command`: what starts it, a text or a list of words. (): it is a `function`.
    - `function`: async, of base URL, key and example; it returns its answer. None: a `command`.
    - `present`: the prompt that it has now, or one for each stage; a marker `{{pco}}` or
      `{{pco:STAGE}}` in the agent's own prompt does without ('').
    - `question`: what it always asks, if it reads no example: the input takes its place ('').
    - `seconds`, `most_calls`, `most_tokens`: what a rollout may take (300 s, 50 calls of the model,
      200,000 tokens).
    - `workers`: how many rollouts run at a time (16).
    - `folder`: where the process runs (the current one).
    - `lines`: whether a process serves many rollouts (False).
    - `env`: variables of the environment that it sees beside the usual ones (none).

    With `lines` a process serves many rollouts, one after the other: it reads a line for each,
    `{"id": ..., "example": ..., "base_url": ..., "api_key": ...}`, and prints a line,
    `{"id": ..., "output": ...}` with the same id. Other lines are passed over. It ends when its
    standard input does.

    Raises ConfigError when both or neither of `command` and `function` are given, and when `env`
    names what leads to the run's own model."""

    command: str | Sequence[str] = ()
    function: AgentFunction | None = None
    present: str | Mapping[str, str] = ""
    question: str = ""
    seconds: float = 300.0
    most_calls: int = 50
    most_tokens: int = 200_000
    workers: int = 16
    folder: Path = Path()
    lines: bool = False
    env: Sequence[str] = ()
    _idle: dict[_Child, asyncio.Task[None]] = field(default_factory=dict[Any, Any])
    _seen: dict[str, str] = field(default_factory=dict[str, str])
    _free: dict[Any, asyncio.Semaphore] = field(default_factory=dict[Any, asyncio.Semaphore])

    def __post_init__(self) -> None:
        if bool(self.command) == (self.function is not None):
            hint = 'Agent(command=["python", "agent.py"]), or Agent(function=run)'
            raise ConfigError("an agent needs a command or a function", hint=hint)
        own = [each for each in self.env if each in _OURS or each.startswith("PCO_")]
        if own or isinstance(self.env, str):
            what = f"an agent cannot receive {own[0]}: pco sets it" if own else "env must be a list"
            raise ConfigError(f"executor.env: {what}", hint='env = ["WEATHER_API_KEY"]')

    @property
    def stages(self) -> tuple[str, ...]:
        """Those that have a prompt of their own; () = one prompt for all calls."""
        return () if isinstance(self.present, str) else tuple(self.present)

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        """One rollout. Raises ExecutorError where the agent gives no answer, asks no model, or has
        no place for the prompt; what the run's models raise passes through."""
        for ended in [loop for loop in self._free if loop.is_closed()]:
            del self._free[ended]
        free = self._free.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.workers))
        async with free, self._endpoint(prompt, lm, example) as endpoint:
            output = await self._run(endpoint, example)
        if not endpoint.placed:
            raise _nowhere(endpoint, ExecutorError)
        trace = tuple(endpoint.stages)
        return Output(output.text, trace, endpoint.truncated, output.fields)

    @property
    def tools(self) -> tuple[str, ...]:
        """A first instinct for each tool that the agent was seen to have when it was tried."""
        texts = (f"tool:{name}: {_AS_IS}" for name in self._seen)
        return tuple(text for text in texts if place_in(text))

    async def check(self, *examples: Example) -> None:
        """Tries the agent on made-up replies: its prompt needs a place, and what it asks must
        depend on the example.

        - `examples`: one, or several of which two differ.

        Raises ConfigError when a rollout would learn nothing."""
        first, *others = examples
        asked = await self._tried(first)
        other = next((e for e in others if e.input != first.input), None)
        if not asked or first.input in asked or other is None:
            return
        if asked == await self._tried(other):
            what = "the agent asks its model the same question for every row"
            hint = "let it read the row from standard input, or name the question that it always "
            raise ConfigError(what, hint=f"{hint}asks: --question TEXT")

    async def _tried(self, example: Example) -> str:
        """All that it asks its model; '' where made-up replies were of no use to it."""
        prompt = Prompt.of_stages(dict.fromkeys(self.stages, _DRY)) if self.stages else Prompt(_DRY)
        heard, useful = list[str](), True
        async with self._endpoint(prompt, dry(_DRY, heard), example) as endpoint:
            try:
                await self._run(endpoint, example)
            except ExecutorError as error:
                useful = False
                if not endpoint.calls:
                    what = endpoint.refused or "the agent fails before it calls its model"
                    what = f"{what} ({error})"
                    raise ConfigError(what, hint=f"{error.hint}; {_UNHEARD}") from None
        if not endpoint.placed:
            raise _nowhere(endpoint, ConfigError)
        self._seen.update(endpoint.tools)
        return "\n".join(heard) if useful else ""

    def _endpoint(self, prompt: Prompt, lm: Chat, example: Example) -> TrainingEndpoint:
        present = {"": self.present} if isinstance(self.present, str) else self.present
        places = PromptPlaces(present, self.question.strip(), example.input)
        return TrainingEndpoint(prompt, lm, places, self.most_calls, self.most_tokens)

    async def _run(self, endpoint: TrainingEndpoint, example: Example) -> Output:
        """The agent's answer, or what ended the rollout first."""
        if self.function is not None:
            run = _called(self.function(endpoint.url, endpoint.key, example))
        else:
            run = (self._by_line if self.lines else self._in_process)(endpoint, example)
        work, over = asyncio.ensure_future(run), asyncio.ensure_future(endpoint.over.wait())
        try:
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait({work, over}, timeout=self.seconds, return_when=first)
            if endpoint.failure is not None:
                raise endpoint.failure
            if not work.done():
                what = f"the agent did not answer within {self.seconds:g} s (example {example.id})"
                hint = "find out where it hangs; Agent(seconds=) sets the limit"
                raise ExecutorError(what, hint=hint)
            return work.result()
        finally:
            for task in (work, over):
                task.cancel()
            await asyncio.wait({work, over})

    async def _start(self, stderr: int, **own: str) -> _Child:
        command = shlex.split(self.command) if isinstance(self.command, str) else self.command
        env = {**environment(self.env), **own}
        program = self.folder / command[0] if os.sep in command[0] else command[0]
        if shutil.which(program, path=env.get("PATH")) is None:
            what = f"the agent cannot be started: {shell(*command)}: no such program"
            raise ExecutorError(what, hint="run the command yourself")
        pipe, (read, tether) = asyncio.subprocess.PIPE, os.pipe()
        supervisor = sys.executable, "-I", "-S", str(Path(__file__).with_name("supervise.py"))
        try:
            process = await asyncio.create_subprocess_exec(
                *supervisor,
                str(read),
                *command,
                stdin=pipe,
                stdout=pipe,
                stderr=stderr,
                limit=_LARGEST,
                cwd=self.folder,
                env=env,
                start_new_session=True,
                pass_fds=(read,),
            )
        except BaseException:
            os.close(tether)
            raise
        finally:
            os.close(read)
        return _Child(process, tether)

    async def _by_line(self, endpoint: TrainingEndpoint, example: Example) -> Output:
        """A line to a process that waits for one, or to a new one."""
        loop, child = asyncio.get_running_loop(), None
        for each, rest in list(self._idle.items()):
            if rest.get_loop() is loop and each.process.returncode is None:
                child = each
        if child is not None:
            rest = self._idle.pop(child)
            rest.cancel()
            await asyncio.wait({rest})
        try:
            child = child or await self._start(asyncio.subprocess.DEVNULL)
            output = await child.answer(endpoint, example)
        except BaseException:
            if child is not None:
                await child.end()
            raise
        if endpoint.placed:
            self._idle[child] = loop.create_task(self._rest(child))
        else:
            await child.end()
        return output

    async def _rest(self, child: _Child) -> None:
        """Ends a process that waited too long, or whose event loop ends: no other can use it."""
        try:
            with contextlib.suppress(TimeoutError, ExecutorError):
                async with asyncio.timeout(_IDLE_S):
                    while await child.line():
                        pass
        finally:
            if self._idle.get(child) is asyncio.current_task():
                del self._idle[child]
                await child.end()

    async def _in_process(self, endpoint: TrainingEndpoint, example: Example) -> Output:
        own = {"OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": endpoint.key}
        child = await self._start(asyncio.subprocess.PIPE, **own)
        process = child.process
        ends = [asyncio.ensure_future(_end_of(s)) for s in (process.stdout, process.stderr)]
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(shown(example), default=str).encode() + b"\n")
            with contextlib.suppress(ConnectionError):  # it may end without having read it
                await process.stdin.drain()
                process.stdin.close()
            status = await child.status()
        finally:
            await child.end()
            # What a child of the agent's left behind may keep the pipes open.
            heard, _ = await asyncio.wait(ends, timeout=_GRACE_S)
            for each in ends:
                each.cancel()
        printed, complaint = (each.result().strip() if each in heard else "" for each in ends)
        if status:
            lines = complaint.splitlines()
            last = ([line for line in lines if "rror" in line] or lines or [""])[-1][:300]
            what = f"the agent exited with status {status}"
            cut = "raise roles.executor.max_tokens: it truncated the model's reply"
            hint = cut if endpoint.truncated else "try it by hand"
            raise ExecutorError(f"{what}: {last}" if last else what, hint=hint)
        return answer_of(printed)


@dataclass(eq=False)
class _Child:
    """The agent's process, below its supervisor, which ends both when the `tether` closes."""

    process: asyncio.subprocess.Process
    tether: int

    async def answer(self, endpoint: TrainingEndpoint, example: Example) -> Output:
        """The answer to this request. Raises ExecutorError where there is none."""
        name = secrets.token_hex(8)
        asked = {"id": name, "example": shown(example)}
        asked |= {"base_url": endpoint.url, "api_key": endpoint.key}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked, default=str).encode() + b"\n")
        while line := await self.line():
            tree = _object(line)
            if tree.get("id") == name:
                return answer_of(line.strip())
            if "output" in tree and "id" not in tree:
                what = "the agent's answer does not say which request it is for"
                raise ExecutorError(what, hint=f"print it with the request's id: {_LINE_OF}")
        if status := await self.status():
            raise ExecutorError(f"the agent exited with status {status}", hint="run it yourself")
        raise ExecutorError("the agent exited before it answered", hint=f"print {_LINE_OF}")

    async def line(self) -> str:
        """The next line that it prints; "" = it has ended."""
        assert self.process.stdout is not None
        try:
            line = await self.process.stdout.readline()
        except ValueError:  # it is longer than the limit
            raise ExecutorError("the agent's line is too long", hint="print one answer") from None
        return line.decode(errors="replace") if line.endswith(b"\n") else ""

    async def status(self) -> int:
        """Its exit status. `process.wait` would wait for the ends of its pipes, too."""
        while self.process.returncode is None:  # noqa: ASYNC110 - no event tells it alone
            await asyncio.sleep(_LOOK_S)
        return self.process.returncode

    async def end(self) -> None:
        """Ends the agent and all that it started: asked first, then killed."""
        if self.tether >= 0:
            os.close(self.tether)
            self.tether = -1
        try:
            await self._gone()
        except asyncio.CancelledError:  # the loop ends, and must not leave a process behind
            await self._gone()
            raise

    async def _gone(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.status(), 10 * _GRACE_S)


def _object(line: str) -> dict[str, Any]:
    """A line that is a JSON object; any other is none."""
    try:
        tree: object = parse_json(line)
    except ValueError:
        return {}
    return cast("dict[str, Any]", tree) if isinstance(tree, dict) else {}


async def _called(returned: Awaitable[str | Output]) -> Output:
    made = await returned
    if not isinstance(made, str | Output):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"the agent returned {type(made).__name__}, not a string or an Output")
    return made if isinstance(made, Output) else Output(made)


def _nowhere(endpoint: TrainingEndpoint, kind: type[PcoError]) -> PcoError:
    asked = f"none of its {endpoint.calls} calls has it" if endpoint.calls else "it made no call"
    what = f"the prompt is missing from the agent's calls to its model: {asked}"
    return kind(what, hint=_HINT if endpoint.calls else _UNHEARD)


def shown(example: Example) -> dict[str, Any]:
    """The example as an agent sees it: without the reference, which production has not, either."""
    columns = {k: v for k, v in example.fields.items() if v != example.target}
    chat = [message.wire for message in example.messages]
    shown = {"id": example.id, "input": example.input, **columns}
    return {**shown, "messages": chat} if chat else shown


async def _end_of(stream: asyncio.StreamReader | None) -> str:
    """The last part of a stream, read to its end."""
    kept = b""
    while stream is not None and (piece := await stream.read(2**16)):
        kept = (kept + piece)[-_LARGEST:]
    return kept.decode(errors="replace")


def answer_of(printed: str) -> Output:
    """The last line that an agent printed: a text, or a JSON object with `output` and `fields`."""
    last = printed.rpartition("\n")[2].strip()
    if not last:
        raise ExecutorError("the agent printed no answer", hint=_LINE)
    try:
        tree: Any = parse_json(last)
        text, fields = tree["output"], cast("dict[str, Any]", tree.get("fields") or {})
    except (json.JSONDecodeError, TypeError, LookupError, AttributeError):
        return Output(last)
    except ValueError as error:
        if not last.startswith("{"):
            return Output(last)
        raise ExecutorError(f"the agent's last line is unusable: {error}", hint=_LINE) from None
    return Output(text if isinstance(text, str) else json.dumps(text), fields=fields)


def environment(more: Iterable[str] = ()) -> dict[str, str]:
    """The variables of this process that a program needs to run, and `more`: no key is in them."""
    known = {*_VARIABLES, *more}
    return {k: v for k, v in os.environ.items() if k in known or k.startswith("LC_")}


def agent_of(table: Mapping[str, Any], base: Path) -> Agent:
    """The Agent of a setting `executor = {command = ..., ...}`. Raises ConfigError for an unknown
    key."""
    ours = ("function", "folder")
    known = [each.name for each in fields(Agent) if each.name[0] != "_" and each.name not in ours]
    if unknown := sorted(set(table) - {*known}):
        hint = f"known keys: {', '.join(known)}"
        raise ConfigError(f"executor: unknown key {unknown[0]!r}", hint=hint)
    return Agent(**table, folder=base)


_STAGE = re.compile(r"([\w.-]+)=(\S+)")


def typed(command: str, prompts: Sequence[str], question: str) -> dict[str, Any]:
    """The settings of `--agent COMMAND` with `--prompt FILE`, or STAGE=FILE for each stage, and
    `--question`. The prompts are also what the run compares with. Raises ConfigError."""
    texts = dict[str, str]()
    for each in prompts:
        stage, file = found.groups() if (found := _STAGE.fullmatch(each)) else ("", each)
        texts[stage] = read_prompt(file)
    if "" in texts and len(prompts) > 1:
        hint = "--prompt FILE, or for each stage --prompt STAGE=FILE"
        raise ConfigError("--prompt: give one FILE, or only STAGE=FILE", hint=hint)
    executor = {"command": command, **({"question": question} if question else {})}
    if not texts:
        return {"executor": executor}
    if "" in texts:
        present, prompt, more = texts[""], texts[""], dict[str, Any]()
    else:
        present, prompt, more = texts, Prompt.of_stages(texts).text, {"compose_per_stage": True}
    return {"executor": {**executor, "present": present}, "init": {"prompt": prompt}, **more}
