"""The calls of `bench/run peers`, made by openai or litellm: peers.py LIBRARY URL WHOLE STREAMS MANY prints the times in
nanoseconds of one call, of one stream and of 200 calls side by side, as JSON lists."""

import asyncio
import json
import os
import sys
import time

library, url = sys.argv[1:3]
counts = [int(n) for n in sys.argv[3:6]]
QUESTION = [{"role": "user", "content": "What is 21 times 2?"}]

if library == "openai":
    from openai import AsyncOpenAI

    client = None

    async def ask(stream):
        global client
        # A client belongs to the loop that it is first used on.
        client = client or AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        return await client.chat.completions.create(model="scripted", messages=QUESTION, stream=stream)

else:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    litellm.telemetry = False

    async def ask(stream):
        return await litellm.acompletion(
            model="openai/scripted", messages=QUESTION, api_base=url, api_key="none", stream=stream, num_retries=0
        )


async def whole():
    answer = await ask(False)
    assert answer.choices[0].message.content


async def stream():
    length = 0
    async for piece in await ask(True):
        if piece.choices:
            length += len(piece.choices[0].delta.content or "")
    assert length


async def many():
    await asyncio.gather(*(whole() for _ in range(200)))


async def main():
    times = []
    for case, count in zip((whole, stream, many), counts):
        taken = []
        for n in range(count + 1):
            start = time.perf_counter_ns()
            await case()
            if n:
                taken.append(time.perf_counter_ns() - start)
        times.append(taken)
    print(json.dumps(times))


asyncio.run(main())
