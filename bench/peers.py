"""One agent, twice: as a workflow of Outlast, and as an executor of the SDK behind its
DefaultRequestHandler.

It obeys the first word of a message. `park`: works, and says nothing, until it is canceled.
`end`: completes. `tick N EVERY DELAY`: begins after DELAY seconds and says N times what time it is,
EVERY seconds apart; then completes. `flood N SIZE DELAY`: begins after DELAY seconds, makes N
artifacts of SIZE characters and parks.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import time
from typing import Any

import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as pb
from pydantic import BaseModel
from starlette.applications import Starlette

from outlast import Agent, Context, Message, Next, Workflow
from outlast.gateway.server import listen

PARKED_S = 3600.0
CONNECTIONS = 5


class Words(BaseModel):
    words: list[str]


class Clock:
    """What a tick says: its number, when it was said, and when the one before it was stored."""

    def __init__(self) -> None:
        self._stored_at = 0.0

    def says(self, number: int) -> str:
        return json.dumps({"n": number, "said": time.time(), "stored": self._stored_at})

    def stored(self) -> None:
        self._stored_at = time.time()


# --- Outlast --------------------------------------------------------------------------------------

obedient = Workflow("obedient", version=1, checkpoint=Words)


@obedient.start
async def begin(message: Message) -> Words:
    return Words(words=message.text.split())


@obedient.step(timeout=None)
async def obey(ctx: Context[Words, None]) -> Next:
    match ctx.checkpoint.words:
        case ["tick", count, every, delay]:
            clock = Clock()
            await asyncio.sleep(float(delay))
            for number in range(int(count)):
                await ctx.commit(clock.says(number))
                clock.stored()
                await asyncio.sleep(float(every))
        case ["flood", count, size, delay]:
            await asyncio.sleep(float(delay))
            for number in range(int(count)):
                await ctx.artifact(f"flood-{number}", "x" * int(size))
                await ctx.commit()
            await asyncio.sleep(PARKED_S)
        case ["park"]:
            await asyncio.sleep(PARKED_S)
        case _:
            pass
    return ctx.complete("done")


agent = Agent("bench", description="Obeys.", skills=[], workflows=[obedient])


# --- the SDK --------------------------------------------------------------------------------------


class Obedient(AgentExecutor):
    """The same, as the SDK wants it."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        task = context.current_task or new_task_from_user_message(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        match context.get_user_input().split():
            case ["tick", count, every, delay]:
                clock = Clock()
                await asyncio.sleep(float(delay))
                for number in range(int(count)):
                    said = new_text_message(clock.says(number))
                    await updater.update_status(pb.TASK_STATE_WORKING, message=said)
                    clock.stored()
                    await asyncio.sleep(float(every))
            case ["flood", count, size, delay]:
                await asyncio.sleep(float(delay))
                for number in range(int(count)):
                    await updater.add_artifact(
                        [new_text_part("x" * int(size))], artifact_id=f"flood-{number}"
                    )
                await asyncio.sleep(PARKED_S)
            case ["park"]:
                await updater.start_work()
                await asyncio.sleep(PARKED_S)
            case _:
                pass
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


async def _stores(kind: str, url: str) -> dict[str, Any]:
    """What the SDK's handler keeps its tasks in."""
    if kind == "memory":
        return {"task_store": InMemoryTaskStore()}
    from a2a.server.cluster import DatabaseTaskEventStream, VersionedDatabaseTaskStore
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url, pool_size=CONNECTIONS, max_overflow=0)
    store, stream = VersionedDatabaseTaskStore(engine), DatabaseTaskEventStream(engine)
    await store.initialize()
    await stream.initialize()
    return {"task_store": store, "event_stream": stream}


def has_database_store() -> bool:
    """Whether the SDK's database stores can be used here: they need packages of their own."""
    return all(importlib.util.find_spec(name) for name in ("sqlalchemy", "asyncpg"))


async def serve(kind: str, url: str = "") -> None:
    listener = listen("127.0.0.1", 0)
    place = f"http://127.0.0.1:{listener.getsockname()[1]}"
    card = pb.AgentCard(
        name="bench",
        description="Obeys.",
        version="1",
        supported_interfaces=[
            pb.AgentInterface(url=place, protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=pb.AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[pb.AgentSkill(id="obey", name="Obey", description="Obeys.", tags=["bench"])],
    )
    handler = DefaultRequestHandler(
        agent_executor=Obedient(), agent_card=card, **await _stores(kind, url)
    )
    app = Starlette(routes=create_jsonrpc_routes(handler, rpc_url="/"))
    config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off")
    print(f"listening on {place}", flush=True)
    await uvicorn.Server(config).serve(sockets=[listener])


def main() -> None:
    """`memory`, or `database` and its URL."""
    asyncio.run(serve(sys.argv[1], *sys.argv[2:]))
