"""vLLM's own `run-batch`, whose arguments follow, all of it but the model: a program of its own.

The arguments, the lines of the file, the checks of each request and what is written are vLLM's. In
the model's place each request is answered with its last message, and one about 13 is refused.
cv2, which vLLM imports and nothing here calls, is empty.
"""
# ruff: noqa: E402

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

sys.modules["cv2"] = MagicMock()

from vllm import platforms
from vllm.platforms.cpu import CpuPlatform

platforms.current_platform = CpuPlatform()

from vllm.entrypoints.launchers import run_batch
from vllm.entrypoints.launchers.api_server import entry
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
)
from vllm.exceptions import VLLMValidationError
from vllm.utils.argparse_utils import FlexibleArgumentParser


class Model:
    """What vLLM asks of an engine for a batch."""

    vllm_config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        parallel_config=SimpleNamespace(data_parallel_size=1),
    )
    errored = False

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    async def create_chat_completion(self, request: ChatCompletionRequest) -> Any:
        text = request.messages[-1]["content"]
        if "13" in text:
            raise VLLMValidationError("13 is too far", parameter="messages")
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return ChatCompletionResponse(model=request.model, choices=[choice], usage=usage)


@asynccontextmanager
async def engine(args: Namespace, **_: object) -> AsyncIterator[Model]:
    yield Model()


async def state_of(model: Model, state: Any, *_: object) -> None:
    state.openai_serving_chat = model


if __name__ == "__main__":
    entry.build_async_engine_client, run_batch.init_app_state = engine, state_of
    arguments = run_batch.make_arg_parser(FlexibleArgumentParser()).parse_args()
    asyncio.run(run_batch.main(arguments))
