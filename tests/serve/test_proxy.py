"""A policy behind /v1/chat/completions: what goes up, what comes back, and what is told of it."""

from __future__ import annotations

from tests.serve.proxied import SAID, deployed, one_call, up


async def test_a_request_gets_the_composed_prompt_and_goes_to_the_model() -> None:
    policy = one_call()
    async with up(policy) as served, served.client() as client:
        reply = await client.chat.completions.with_raw_response.create(
            model="pco/tickets", messages=SAID, temperature=0.25
        )
        completion = reply.parse()
        assert completion.choices[0].message.content == "ok"
        [sent] = served.upstream.bodies
        prompt = await deployed(policy).aprompt("My refund is late.")
        assert sent == {
            "model": "m",
            "messages": [{"role": "system", "content": prompt}, *SAID],
            "temperature": 0.25,
        }
        assert reply.headers["x-pco-mode"] == "one-call"
        assert reply.headers["x-pco-version"].startswith("sha256:")
