"""One call: the message first, then the prompt. A small model heeds what is said last."""


async def run(prompt, example, lm):
    reply = await lm(f"{example.input}\n\n{prompt}".strip(), purpose="answer")
    return reply.text
