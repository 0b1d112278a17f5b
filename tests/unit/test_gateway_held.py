"""What a stream holds for its reader: let go of, and read again as it was."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

import pytest
from a2a.types import a2a_pb2 as pb

from outlast.gateway.sse import Cut, Held
from outlast.gateway.stream import Again, Item
from outlast.model.ids import Seq


class Words:
    """Frames that are the ids of Tasks."""

    def of_item(self, item: Item) -> bytes:
        assert isinstance(item.event, pb.Task)
        return item.event.id.encode()

    def of_error(self, error: Exception) -> bytes:
        raise AssertionError(error)


class Log:
    """Streams of words. `opened` says where they were begun; `failure` is raised instead."""

    def __init__(self, *words: str) -> None:
        self.words = list(words)
        self.opened: list[int] = []
        self.closed = 0
        self.open = 0
        self.failure: Exception | None = None

    async def read(self, seq: Seq) -> AsyncGenerator[Item, None]:
        self.opened.append(seq)
        try:
            if self.failure is not None:
                raise self.failure
            for number in range(seq, len(self.words) + 1):
                yield self.item(number)
        finally:
            self.closed += 1

    @contextmanager
    def kept(self) -> Iterator[None]:
        self.open += 1
        yield
        self.open -= 1

    def item(self, number: int) -> Item:
        return Item(
            pb.Task(id=self.words[number - 1]), Seq(number), Again(at=self.read, kept=self.kept)
        )

    async def held(self) -> Held:
        later = self.read(Seq(1))
        return Held(await anext(later), later, Words())


async def test_what_was_let_go_of_is_read_again_from_its_place() -> None:
    log = Log("first", "second", "third")
    held = await log.held()
    assert await held.piece(0) == b"first"
    assert await held.advance()
    held.let_go()
    held.let_go()
    assert (await held.piece(3), log.opened, log.closed) == (b"ond", [1, 2], 1)
    held.let_go()
    assert await held.advance(), "the item is over, and its successor is not"
    assert (await held.piece(0), log.opened) == (b"third", [1, 2, 2])
    held.let_go()
    assert not await held.advance()
    assert log.open == 1, "its owner's stream is open all the while, and once"
    await held.aclose()
    assert log.closed == len(log.opened)
    assert log.open == 0


async def test_a_frame_that_has_become_another_is_not_gone_on_with() -> None:
    log = Log("first", "second")
    held = await log.held()
    held.let_go()
    log.words[0] = "other"
    with pytest.raises(Cut):
        await held.piece(0)
    await held.aclose()
    assert log.closed == 2


@pytest.mark.parametrize(("place", "raised"), [(0, LookupError), (3, Cut)])
async def test_what_goes_wrong_is_told_only_between_frames(
    place: int, raised: type[Exception]
) -> None:
    log = Log("first")
    held = await log.held()
    held.let_go()
    log.failure = LookupError()
    with pytest.raises(raised):
        await held.piece(place)
    await held.aclose()


async def test_a_stream_whose_time_is_over_meanwhile_ends() -> None:
    log = Log("first")
    held = await log.held()
    held.let_go()
    log.words.clear()
    with pytest.raises(Cut):
        await held.advance()
    await held.aclose()


async def test_a_direct_message_is_kept() -> None:
    log = Log("reply")
    later = log.read(Seq(1))
    held = Held(Item((await anext(later)).event), later, Words())
    held.let_go()
    assert await held.piece(0) == b"reply"
    assert not await held.advance()
    await held.aclose()
