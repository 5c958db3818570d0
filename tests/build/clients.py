"""What litellm, gepa and dspy get from a served model, as JSON: `python clients.py URL MODEL`.

Run as a program of its own, since they read the address from the environment as they are imported.
Nothing in them is changed, and nothing but the address is told to them.
"""

import json
import os
import sys
from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["Paris", "London", "Rome"]}},
    "required": ["answer"],
    "additionalProperties": False,
}
ENFORCED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
QUESTION = "What is the capital of France?"


def by_litellm(model: str) -> dict[str, Any]:
    import litellm

    asked = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "seed": 1}
    whole = litellm.completion(**asked, max_tokens=12, temperature=0)
    stream = litellm.completion(**asked, max_tokens=12, temperature=0, stream=True)
    typed = litellm.completion(**asked, max_tokens=40, response_format=ENFORCED)
    return {
        "text": whole.choices[0].message.content,
        "finish": whole.choices[0].finish_reason,
        "tokens": whole.usage.total_tokens,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in stream),
        "typed": json.loads(typed.choices[0].message.content),
    }


def by_dspy(model: str) -> dict[str, Any]:
    import dspy

    lm = dspy.LM(model, max_tokens=40, temperature=0.0, cache=False, response_format=ENFORCED)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        typed = dspy.Predict("question -> answer")(question=QUESTION).answer
    plain = dspy.LM(model, max_tokens=40, temperature=0.0, cache=False)
    with dspy.context(lm=plain, adapter=dspy.ChatAdapter()):
        [text] = plain(QUESTION)
    return {"typed": typed, "text": text}


def by_gepa(model: str) -> dict[str, Any]:
    import gepa
    from gepa.adapters.default_adapter.default_adapter import DefaultAdapter

    rows: list[Any] = [
        {"input": f"What is {a} plus 1?", "additional_context": {}, "answer": f"{a + 1}"}
        for a in range(4)
    ]
    found = gepa.optimize(
        seed_candidate={"system_prompt": "Answer with a number."},
        trainset=rows[:2],
        valset=rows[2:],
        adapter=DefaultAdapter(model, litellm_batch_completion_kwargs={"max_tokens": 8}),
        reflection_lm=model,
        reflection_lm_kwargs={"max_tokens": 60},
        reflection_minibatch_size=2,
        skip_perfect_score=False,
        max_metric_calls=6,
        seed=0,
        raise_on_exception=True,
    )
    return {"calls": found.total_metric_calls, "candidates": len(found.candidates)}


if __name__ == "__main__":
    os.environ |= {
        "OPENAI_API_BASE": sys.argv[1],
        "OPENAI_BASE_URL": sys.argv[1],
        "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    name = f"openai/{sys.argv[2]}"
    told = {"litellm": by_litellm(name), "dspy": by_dspy(name), "gepa": by_gepa(name)}
    sys.stdout.write(json.dumps(told))
