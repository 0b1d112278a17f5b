"""Artifacts that are written piece by piece, while readers look on."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pydantic import ValidationError

from outlast.model.content import Artifact, Part, as_part, joined
from outlast.model.errors import AuthorError
from outlast.model.ledger import Kept, LedgerKind, LedgerWrite
from outlast.workflow.artifacts import artifact_head
from outlast.workflow.jsontype import JsonType, fault_of
from outlast.workflow.limits import check_key
from outlast.workflow.outbox import ArtifactJson
from outlast.workflow.parts import body_size, check_artifact_size, part_json
from outlast.workflow.requests import encode_result
from outlast.workflow.rules import calling, verb
from outlast.workflow.run import Run

_PARTS: JsonType[list[Any]] = JsonType(list[Any], what="the parts of a stream")


class Stream:
    """An artifact that is being written. What it holds is provisional until the next commit."""

    def __init__(self, run: Run[Any], head: ArtifactJson, added_to: int | None) -> None:
        """added_to: the bytes that the chunks are added to; None: they replace what there is."""
        self._run = run
        self._head = head
        self._append = added_to is not None
        self._size = added_to or 0
        self._is_open = True

    async def write(self, chunk: str | Part) -> None:
        """Add to the artifact; readers see it within about 100 ms. Empty text adds nothing.

        Raises AuthorError for what is no part, for more than an artifact may hold, and after the
        stream was closed.
        """
        with verb(self._run.session):
            if not self._is_open:
                raise AuthorError(
                    f"Artifact {self._head['artifactId']} is written after its stream has ended.",
                    "write inside `async with ctx.open_stream(…)`.",
                )
            if chunk != "":
                await self._post(chunk, last=False)

    async def close(self, ledger: tuple[LedgerWrite, ...] = ()) -> None:
        """Tell readers that nothing follows, together with what the ledger keeps."""
        self._is_open = False
        if not ledger:
            await self._post("", last=True)
            return
        await self._run.outbox.close_chunks(
            self._with(""), append=self._append, size=self._size, ledger=ledger
        )

    async def _post(self, chunk: str | Part, *, last: bool) -> None:
        body, append = self._with(chunk), self._append
        # At once: a second writer of this stream shall not begin the artifact anew.
        self._append = True
        await self._run.outbox.post_chunk(body, append=append, last=last, size=self._size)

    def _with(self, chunk: str | Part) -> ArtifactJson:
        name = self._head["artifactId"]
        part = part_json(chunk, what=f"artifact {name}")
        self._size += body_size(part)
        check_artifact_size(self._size, artifact=name)
        # Name and description travel with the first chunk alone.
        head = {"artifactId": name} if self._append else self._head
        return {**head, "parts": [part]}


@asynccontextmanager
async def open_stream(run: Run[Any], artifact: str | Artifact) -> AsyncIterator[Stream]:
    """The artifact, open for chunks, which are added to what it held at the last commit.

    It is closed when the block ends; not when the block is left by an error, for then the next
    run goes on with it.
    """
    with verb(run.session):
        head = artifact_head(artifact)
        stream = Stream(run, head, await _size_of_current(run, head["artifactId"]))
    yield stream
    with verb(run.session):
        await stream.close()


async def _size_of_current(run: Run[Any], artifact_id: str) -> int | None:
    """The bytes of what this run or the last commit has put there; None: there is nothing."""
    written = run.outbox.size_of_provisional(artifact_id)
    if written is not None:
        return written
    committed = (await run.session.committed_artifacts()).get(artifact_id)
    return None if committed is None else sum(map(body_size, committed["parts"]))


async def stream(
    run: Run[Any],
    artifact: str | Artifact,
    chunks: Callable[[], Any],
    *,
    key: str | None,
    result: Any,
) -> Any:
    """The whole text of a stream, sent to readers as it comes and kept when it ends.

    It replaces what the artifact held. A run that finds it kept emits nothing and rewinds nothing
    of it; if it has rewound it already, the kept content goes out at once. Raises AuthorError for
    `chunks` that is no function of an async iterator.
    """
    head = artifact_head(artifact)
    name = head["artifactId"] if key is None else check_key(key, verb="stream")
    ledger_key = run.key("stream", name)
    type_ = None if result is None else JsonType(result, what=f"the result of stream {name!r}")
    with run.using("stream", name, ledger_key):
        entry = await run.session.entry(ledger_key)
        if entry is not None and entry.result is not None:
            parts = json.loads(entry.result)
            await _found(run, head, parts)
            return _value_of(parts, type_, name=name)
        out = Stream(run, head, None)
        parts = await _poured(out, chunks, name=name)
        value = _value_of(parts, type_, name=name)  # what does not fit is not kept
        kept = encode_result(parts, _PARTS, what=f"stream {name!r}")
        await out.close((Kept(key=ledger_key, kind=LedgerKind.MEMO, result=kept),))
        return value


async def _found(run: Run[Any], head: ArtifactJson, parts: list[dict[str, Any]]) -> None:
    if not run.outbox.has_taken_back(head["artifactId"]):
        run.outbox.keep(head["artifactId"])
        return
    # A commit or another stream of this run came first, and did not know yet that it was kept.
    whole = {**head, "parts": parts or [{"text": ""}]}
    size = sum(map(body_size, parts))
    await run.outbox.post_chunk(whole, append=False, last=True, size=size)


async def _poured(out: Stream, chunks: Callable[[], Any], *, name: str) -> list[dict[str, Any]]:
    """What came, as parts: neighbouring texts are one."""
    if not callable(chunks):
        raise AuthorError(
            f"stream {name!r} got {type(chunks).__name__}, which has begun already.",
            "pass the function that begins it: a run that finds the text does not call it.",
        )
    parts: list[Part] = []
    with calling("stream"):
        source = chunks()
        if inspect.isawaitable(source):
            source = await source
        if not hasattr(source, "__aiter__"):
            raise AuthorError(
                f"stream {name!r} got a function that gives {type(source).__name__}.",
                "give it one that returns an async iterator: an async generator function.",
            )
        try:
            async for chunk in source:
                await out.write(chunk)
                if chunk != "":
                    parts.append(as_part(chunk))
        finally:
            if hasattr(source, "aclose"):
                await source.aclose()
    return [part.to_json() for part in joined(parts)]


def _value_of(parts: list[dict[str, Any]], type_: JsonType[Any] | None, *, name: str) -> Any:
    """The text, or what it says as JSON. Raises ValueError when that does not fit the type: a
    model may do better the next time."""
    text = "".join(part.get("text", "") for part in parts)
    if type_ is None:
        return text
    try:
        return type_.decode(text)
    except ValidationError as error:
        raise ValueError(f"the text of stream {name!r} does not fit: {fault_of(error)}") from None
