"""Embeddings of a GGUF model: the mean of its last hidden states.

A model that reads from left to right knows nothing yet of a text's end where it reads its start. So
a text is read twice, and the states of the second reading are averaged ("echo embeddings",
Springer et al. 2024, arXiv:2402.15449). On training messages of `houserules` that told topics
apart better than one reading did: 0.76 against 0.68 (ridge, four folds).

openvino-genai gives no states, but saves the graph that it makes of a GGUF file; its last product,
of states and vocabulary, is cut off here, and the rest is loaded a second time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from promptcodebook.errors import RequestRefused, import_extra
from promptcodebook.lm.spec import SMOLLM2
from promptcodebook.local.engine import Embedding

_WHAT = "an embedding"


class HiddenStates:
    """The states of one model file, loaded at the first text. Threads take turns; one text at a
    time, so that its vector does not hang on its neighbours."""

    def __init__(self, source: str, model: str, context_length: int) -> None:
        self._source = source
        self._model = model
        self._context_length = context_length
        self._turn = threading.Lock()
        self._graph: Any = None

    def embed(
        self, texts: Sequence[str], encode: Callable[[str], list[int]]
    ) -> Sequence[Embedding]:
        """Raises RequestRefused for an empty text, one that is too long to be read twice, and for
        a model of another build than a GGUF file's usual one; MissingExtra."""
        with self._turn:
            return [self._embedding(encode(text)) for text in texts]

    def close(self) -> None:
        with self._turn:
            self._graph = None

    def _embedding(self, tokens: list[int]) -> Embedding:
        numpy = import_extra("numpy", _WHAT, SMOLLM2)
        twice = 2 * len(tokens)
        if not 0 < twice <= self._context_length:
            raise RequestRefused(
                f"the text has {len(tokens)} tokens, and an embedding of {self._model} takes 1 to "
                f"{self._context_length // 2}",
                hint="embed a shorter text",
                model=self._model,
            )
        if self._graph is None:
            self._graph = self._load()
        self._graph.reset_state()
        states = self._graph.infer(
            {
                "input_ids": numpy.array([tokens + tokens], dtype=numpy.int64),
                "attention_mask": numpy.ones((1, twice), dtype=numpy.int64),
                "position_ids": numpy.arange(twice, dtype=numpy.int64)[None],
                "beam_idx": numpy.zeros(1, dtype=numpy.int32),
            }
        )[0][0, len(tokens) :]
        mean = states.astype(numpy.float64).mean(0)
        return Embedding(tuple((mean / numpy.linalg.norm(mean)).tolist()), twice)

    def _load(self) -> Any:
        openvino = import_extra("openvino", _WHAT, SMOLLM2)
        core = openvino.Core()
        # What was mapped of the files stays readable where they may be deleted at all.
        with tempfile.TemporaryDirectory(prefix="pco-", ignore_cleanup_errors=True) as folder:
            return self._cut(core, core.read_model(self._saved(Path(folder))))

    def _cut(self, core: Any, graph: Any) -> Any:
        """The graph without its last product, ready to run."""
        product = graph.get_results()[0].input_value(0).get_node()
        if product.get_type_name() != "MatMul":
            raise RequestRefused(
                f"{self._model} makes no embeddings here: its graph ends in another way",
                hint="name another model for them: roles.encoder.model",
                model=self._model,
            )
        graph.add_outputs([product.input_value(0)])
        graph.remove_result(graph.get_results()[0])
        return core.compile_model(graph, "CPU").create_infer_request()

    def _saved(self, folder: Path) -> Path:
        """The graph of the file, beside a link to it: where the file itself lies nothing is
        written."""
        genai = import_extra("openvino_genai", _WHAT, SMOLLM2)
        link = folder / "model.gguf"
        try:
            os.symlink(os.path.abspath(self._source), link)
        except OSError:  # not everybody may make one on Windows
            shutil.copyfile(self._source, link)
        genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
        return folder / "openvino_model.xml"
