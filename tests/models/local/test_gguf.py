"""GGUF files unpacked for training: a tiny model to its last weight, SmolLM2 to its last token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptcodebook.errors import ConfigError
from promptcodebook.models.local.engine import Weights, find_weights
from promptcodebook.models.local.gguf import convert_gguf
from tests.build.tiny_model import BEGIN, END, PAD, TEMPLATE, write_gguf

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TEXTS = (
    "Answer 1234 questions, in 5.6 s!",
    "  def f(x):\n\treturn x**2  # twice\n\n",
    "naïve café — 東京 🙂 ½",
    "<|im_start|>user\nhi<|im_end|>",
    "It's 10 o'clock; they've 007 cats",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder: this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setattr("promptcodebook.models.local.gguf.cache_folder", lambda: folder)
    return folder


@pytest.mark.parametrize(("changed", "message"), [
    ({"general.architecture": "qwen2"}, "its general.architecture is qwen2, not llama"),
    ({"tokenizer.ggml.pre": "qwen2"}, "its tokenizer.ggml.pre is qwen2, not gpt-2 or smollm"),
    ({"tokenizer.ggml.pre": None}, "its tokenizer.ggml.pre is None"),
    ({}, "it has no llama.attention.head_count_kv"),
    ({"llama.attention.head_count_kv": 1}, "it has no tokenizer.ggml.tokens"),
])  # fmt: skip
def test_what_is_not_known_is_refused(
    tmp_path: Path, cache: Path, changed: Mapping[str, Any], message: str
) -> None:
    fields = {
        "general.architecture": "llama",
        "llama.context_length": 8,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "",
    }
    fields = {key: value for key, value in {**fields, **changed}.items() if value is not None}
    write_gguf(tmp_path / "small.gguf", fields, {})
    with pytest.raises(ConfigError, match=f"small.gguf cannot be unpacked: {message}") as caught:
        convert_gguf(find_weights(str(tmp_path / "small.gguf")))
    assert caught.value.hint == "train the model that it was made of: --lm hf:OWNER/NAME"
    assert not [each for each in (cache / "models").iterdir() if each.is_dir()]


def test_a_damaged_file_is_to_be_downloaded_again(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "small.gguf").write_bytes(b"GGUF\x03")
    with pytest.raises(ConfigError, match="cannot be read as a GGUF file") as caught:
        convert_gguf(find_weights(str(tmp_path / "small.gguf")))
    assert caught.value.hint == "download it again"


def as_llama_cpp(weights: Mapping[str, Any], heads: int) -> dict[str, Any]:
    """By llama.cpp's names, its way: the rows of queries and keys are kept by pairs."""
    outside = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    made: dict[str, Any] = {}
    for name, array in weights.items():
        if name in outside:
            made[outside[name]] = array
            continue
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        theirs = _LAYER[rest.removesuffix(".weight")]
        if theirs in ("attn_q", "attn_k"):
            half = len(array) // heads // 2
            head = [
                [2 * half * h + at + half * n for at in range(half) for n in (0, 1)]
                for h in range(heads)
            ]
            array = array[np.concatenate(head)]
        made[f"blk.{layer}.{theirs}.weight"] = array
    return made


def in_gguf(model: Path, path: Path) -> Weights:
    """The tiny model as llama.cpp would write it, in 32 bits."""
    from safetensors.numpy import load_file

    config = json.loads((model / "config.json").read_text())
    bpe = json.loads((model / "tokenizer.json").read_text())
    words = sorted(bpe["model"]["vocab"], key=bpe["model"]["vocab"].__getitem__)
    special = {each["content"] for each in bpe["added_tokens"]}
    fields = {
        "general.architecture": "llama",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [3 if word in special else 1 for word in words],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in bpe["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": words.index(BEGIN),
        "tokenizer.ggml.eos_token_id": words.index(END),
        "tokenizer.ggml.padding_token_id": words.index(PAD),
        "tokenizer.chat_template": TEMPLATE,
    }
    arrays = as_llama_cpp(load_file(model / "model.safetensors"), config["num_attention_heads"])
    write_gguf(path, fields, {name: (a.shape, a.tobytes()) for name, a in arrays.items()})
    return find_weights(str(path))


@pytest.mark.local
def test_a_model_comes_back_as_it_was(model: Path, tmp_path: Path, cache: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    weights = in_gguf(model, tmp_path / "tiny.gguf")
    folder = convert_gguf(weights)
    assert convert_gguf(weights) == folder and folder.parent == cache / "models"
    before, after = (AutoModelForCausalLM.from_pretrained(each) for each in (model, folder))
    assert after.dtype == torch.bfloat16
    theirs, ours = before.to(torch.bfloat16).state_dict(), after.state_dict()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    assert after.config.rms_norm_eps == pytest.approx(before.config.rms_norm_eps)
    same = ("rope_parameters", "head_dim", "num_key_value_heads", "vocab_size")
    assert [getattr(before.config, x) for x in same] == [getattr(after.config, x) for x in same]
    one, other = (AutoTokenizer.from_pretrained(each) for each in (model, folder))
    turns = [{"role": "user", "content": "What are 12 boats?"}]
    assert [one(x)["input_ids"] for x in _TEXTS] == [other(x)["input_ids"] for x in _TEXTS]
    assert one.apply_chat_template(turns) == other.apply_chat_template(turns)
    assert (one.eos_token_id, one.pad_token_id) == (other.eos_token_id, other.pad_token_id)


@pytest.mark.local
def test_smollm2_reads_what_its_engine_reads_and_knows_as_much() -> None:
    import openvino_genai
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    weights = find_weights("smollm2")
    folder = convert_gguf(weights)
    theirs, ours = openvino_genai.Tokenizer(weights.source), AutoTokenizer.from_pretrained(folder)
    for text in _TEXTS:
        expected = theirs.encode(text, add_special_tokens=False).input_ids.data[0].tolist()
        assert ours(text, add_special_tokens=False)["input_ids"] == expected, text
        assert ours.decode(expected) == text
    assert ours.chat_template == theirs.get_original_chat_template()
    assert ours.eos_token_id == theirs.get_eos_token_id()
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        asked = ours("The capital of France is", return_tensors="pt")
        best = model(**asked).logits[0, -1].argmax()
    assert ours.decode(best) == " Paris"
