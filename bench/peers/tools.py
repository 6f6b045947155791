"""The calls of `bench/run tools`, made by pydantic-ai: tools.py CALLS TIMES prints the nanoseconds that so many calls of a
tool that does nothing took, so many times, as a JSON list. The calls go through the manager of tools to which an agent's
run hands the calls of a model."""

import asyncio
import json
import sys
import time

from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.test import TestModel
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import RunUsage

calls, times = (int(n) for n in sys.argv[1:3])


def noop(text: str, count: int = 1) -> str:
    """Does nothing."""
    return "done"


async def main():
    context = RunContext(deps=None, model=TestModel(), usage=RunUsage(), run_step=1)
    manager = await ToolManager(toolset=FunctionToolset([noop])).for_run_step(context)
    taken = []
    for turn in range(times + 1):
        start = time.perf_counter_ns()
        for n in range(calls):
            call = ToolCallPart("noop", '{"text":"some words","count":3}', f"call_{n}")
            assert await manager.handle_call(call) == "done"
        if turn:
            taken.append(time.perf_counter_ns() - start)
    print(json.dumps(taken))


asyncio.run(main())
