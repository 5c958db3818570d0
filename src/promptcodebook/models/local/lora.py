"""A LoRA adapter trained by GRPO (Shao et al. 2024, DeepSeekMath) through `trl` and `peft`. A
checkpoint follows every step: a killed training loses one step."""

from __future__ import annotations

import gc
import json
import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcodebook.calls import Message
from promptcodebook.errors import ConfigError, import_extra
from promptcodebook.models.local.transformers import chat_tokens, from_pretrained, nf4

_WHAT, _EXTRA = "GRPO", "grpo"
_STATE = "trainer_state.json"  # the trainer writes it last: a checkpoint without it is half of one


@dataclass(frozen=True, slots=True)
class Written:
    """A reply that the model in training wrote to the conversation number `row`. Tokens as the
    model counts them, the one that ends a reply among them; `cut` = it did not end by itself."""

    row: int
    text: str
    prompt_tokens: int
    completion_tokens: int
    cut: bool


@dataclass(frozen=True, slots=True)
class LoraHooks:
    """`begin` is called before the replies of a step are written, with the tokens of the longest
    prompt; `score` gives their rewards. Either may raise to end the training."""

    begin: Callable[[int], None]
    score: Callable[[int, Sequence[Written]], Sequence[float]]


@dataclass(frozen=True, slots=True)
class LoraTraining:
    """What is trained: the model of `source` (a folder or a name of the hub), on replies to
    `conversations`, with checkpoints in `folder`. `order` = the numbers of the conversations that
    the steps take, in turn. `arguments` are those of trl's GRPOConfig, `lora` those of peft's
    LoraConfig. `four_bit` None = where there is a GPU."""

    source: str
    folder: Path
    conversations: Sequence[Sequence[Message]]
    order: Sequence[int]
    arguments: Mapping[str, Any]
    lora: Mapping[str, Any]
    four_bit: bool | None = None


def last_checkpoint(folder: Path) -> Path | None:
    """The last whole checkpoint; half ones, of a process that was killed, are removed."""
    for path in sorted(folder.glob("checkpoint-*"), key=_steps, reverse=True):
        if checkpoint_rewards(path):
            return path
        shutil.rmtree(path)
    return None


def _steps(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def checkpoint_rewards(checkpoint: Path | None) -> Sequence[float]:
    """The mean reward of each step up to a checkpoint; none of one that is not whole."""
    if checkpoint is None:
        return ()
    try:
        history = json.loads((checkpoint / _STATE).read_text("utf-8"))["log_history"]
    except (OSError, ValueError, KeyError):
        return ()
    return tuple(entry["reward"] for entry in history if "reward" in entry)


def train_lora(training: LoraTraining, watch: LoraHooks) -> Mapping[str, Any]:
    """Trains to the last step, from the last checkpoint where there is one. Returns what trl was
    left to choose, and where it ran. Raises MissingExtra, ConfigError for a model that cannot be
    loaded or a prompt that is too long for it, and what `watch` raises."""
    torch: Any = import_extra("torch", _WHAT, _EXTRA)
    on_gpu = bool(torch.cuda.is_available())
    four_bit = on_gpu if training.four_bit is None else training.four_bit
    dtype = torch.bfloat16 if on_gpu or four_bit else torch.float32
    arguments = _arguments(training, on_gpu=on_gpu)
    settings: dict[str, Any] = {
        **{name: getattr(arguments, name, None) for name in _config()["left_to_trl"]},
        "optim": str(arguments.optim.value),
        "device": torch.cuda.get_device_name(0) if on_gpu else "cpu",
        "dtype": str(dtype).removeprefix("torch."),
        "four_bit": four_bit,
    }
    begun = last_checkpoint(training.folder)
    if begun is not None and _steps(begun) >= arguments.max_steps:
        return settings
    library: Any = import_extra("transformers", _WHAT, _EXTRA)
    options: dict[str, Any] = {"dtype": dtype}
    if four_bit:
        import_extra("bitsandbytes", "grpo.four_bit", _EXTRA)
        options["quantization_config"] = nf4(torch, library)
        options["device_map"] = {"": 0 if on_gpu else "cpu"}
    loaded = trainer = None
    try:
        loaded = from_pretrained(library, training.source, options, padding_side="left")
        trainer = _trainer(training, arguments, loaded, watch)
        trainer.train(resume_from_checkpoint=None if begun is None else str(begun))
    finally:
        loaded = trainer = None
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
    return settings


def _config() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("lora.toml").read_text("utf-8"))


def _arguments(training: LoraTraining, *, on_gpu: bool) -> Any:
    """trl's, with a checkpoint and a line of its log after every step."""
    trl: Any = import_extra("trl", _WHAT, _EXTRA)
    return trl.GRPOConfig(
        output_dir=str(training.folder),
        **_config()["arguments"],
        use_cpu=not on_gpu,
        bf16=on_gpu,
        gradient_checkpointing=on_gpu,
        dataloader_pin_memory=on_gpu,
        **training.arguments,
    )


def _trainer(
    training: LoraTraining, arguments: Any, loaded: tuple[Any, Any], watch: LoraHooks
) -> Any:
    """trl's own trainer. It sees the prompts and their row numbers, and no other data."""
    modules = ("trl", "peft", "datasets", "transformers")
    trl, peft, datasets, library = (import_extra(each, _WHAT, _EXTRA) for each in modules)
    model, tokenizer = loaded
    turns = [[{"role": m.role, "content": m.content} for m in c] for c in training.conversations]
    lengths = [len(chat_tokens(tokenizer, each)) for each in turns]
    longest, cap = max(lengths), arguments.max_completion_length
    room = model.config.get_text_config().max_position_embeddings
    if longest + cap > room:
        raise ConfigError(
            f"the longest training prompt has {longest} tokens and its reply may have {cap}, and "
            f"the model reads {room} at most",
            hint=f"set roles.executor.max_tokens to {max(1, room - longest)} or less",
        )
    trainer: Any = None

    def reward(completions: Any, completion_ids: Any, row: Sequence[int], **_: Any) -> list[float]:
        ends: set[int] = set(trainer.eos_token_ids)
        written = [
            Written(at, reply[0]["content"], lengths[at], len(ids), not ids or ids[-1] not in ends)
            for reply, ids, at in zip(completions, completion_ids, row, strict=True)
        ]
        return [float(each) for each in watch.score(trainer.state.global_step, written)]

    class Announce(library.TrainerCallback):
        """Says that a step is about to begin, where it may still be refused."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            watch.begin(longest)

    rows = [{"prompt": turns[index], "row": index} for index in training.order]
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=arguments,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=peft.LoraConfig(task_type="CAUSAL_LM", **training.lora),
        callbacks=[Announce()],
    )

    def no_card(**_: object) -> None:
        """trl's would name the base None, and show a question of its own."""

    trainer.create_model_card = no_card
    return trainer
