"""One test against one binding: its steps in order, until one of them is not as expected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from tests.conformance import streams
from tests.conformance.acts import Test
from tests.conformance.duties import DUTIES, REFUSED
from tests.conformance.matching import MISSING, Mismatch, matches, mismatches
from tests.conformance.paths import holds, resolved, value_at, values_at
from tests.conformance.replies import Error, Events, Reply
from tests.conformance.report import Failed, Passed, Result, Skipped
from tests.conformance.transports import STREAMING, Transport, operation_named

_ATTEMPTS: Final = 10
_DELAY_MS: Final = 1000
_BACKOFF: Final[Mapping[str, Callable[[int], int]]] = {
    "none": lambda attempt: 1,
    "linear": lambda attempt: attempt,
    "exponential": lambda attempt: int(2 ** (attempt - 1)),
}


class StepFailed(Exception):
    """A step is not as expected."""

    def __init__(self, step: str, difference: Mismatch) -> None:
        super().__init__(f"step {step}: {difference}")
        self.step = step
        self.difference = difference


@dataclass
class Play:
    """A test under way. known: what its variables stand for."""

    test: Test
    transport: Transport
    known: dict[str, Any] = field(default_factory=dict)

    async def run(self) -> None:
        """Raises StepFailed for the first step that is not as expected."""
        for step in self.test.steps:
            await self._step(step)
        self._assert("the test", self.test.assertions)

    async def _step(self, step: Mapping[str, Any]) -> None:
        await asyncio.sleep(step.get("delay_ms", 0) / 1000)
        if "assertion" in step:
            self._assert(step["id"], [step["assertion"]])
            return
        answer = await self._repeated(step)
        found = self._differences(step, answer)
        self._fail_with(step["id"], found)
        body = answer.body if isinstance(answer, Reply) else list(answer.events)
        self.known[f"{step['id']}.response"] = body
        for name, path in step.get("capture", {}).items():
            value = value_at(body, path)
            if value is MISSING:
                raise StepFailed(step["id"], Mismatch(path=path, expected="a value", seen=body))
            self.known[f"{step['id']}.{name}"] = value
        self._assert(step["id"], step.get("assertions", ()))

    async def _repeated(self, step: Mapping[str, Any]) -> Reply | Events:
        answer = await self._asked(step)
        repeat = step.get("repeat")
        if repeat is None:
            return answer
        factor = _BACKOFF[repeat.get("backoff", "none")]
        for attempt in range(1, repeat.get("max_attempts", _ATTEMPTS)):
            if isinstance(answer, Reply) and holds(repeat["until"], answer.body):
                return answer
            await asyncio.sleep(repeat.get("delay_ms", _DELAY_MS) / 1000 * factor(attempt))
            answer = await self._asked(step)
        body = answer.body if isinstance(answer, Reply) else answer.events
        if not holds(repeat["until"], body):
            raise StepFailed(step["id"], Mismatch(path="", expected=repeat["until"], seen=body))
        return answer

    async def _asked(self, step: Mapping[str, Any]) -> Reply | Events:
        if "raw" in step:
            return await self.transport.raw(resolved(step["raw"], self.known))
        params = resolved(step.get("params", {}), self.known)
        operation = operation_named(step["operation"], params)
        if operation not in STREAMING:
            return await self.transport.call(operation, params)
        async with aclosing(self.transport.stream(operation, params)) as replies:
            got = [reply async for reply in replies]
        if len(got) == 1 and got[0].error is not None:
            return got[0]
        return Events(
            events=tuple(reply.body for reply in got), headers=got[-1].headers if got else {}
        )

    def _differences(self, step: Mapping[str, Any], answer: Reply | Events) -> Iterator[Mismatch]:
        if "expect_error" in step:
            yield from _error(resolved(step["expect_error"], self.known), answer)
            return
        expected = resolved(step.get("expect", {}), self.known)
        if REFUSED in (expected.get("status"), expected.get("error")) or "error" in expected:
            # "status: error" and "error: exists": any error will do.
            yield from _error({}, answer)
            return
        if isinstance(answer, Reply) and answer.error is not None:
            yield Mismatch(path="", expected="no error", seen=_told(answer.error))
            return
        if "status" in expected:
            yield from mismatches(expected["status"], answer.status, "status")
        if "expect_stream" in step:
            if isinstance(answer, Reply):
                yield Mismatch(path="", expected="a stream", seen=answer.body)
            else:
                wanted = resolved(step["expect_stream"], self.known)
                yield from streams.differences(wanted, answer.events)
            return
        # The tests leave the body's key out in places.
        body = {key: value for key, value in expected.items() if key not in ("status", "body")}
        seen = answer.body if isinstance(answer, Reply) else list(answer.events)
        if wanted := {**body, **expected.get("body", {})}:
            yield from mismatches(wanted, seen)

    def _assert(self, step: str, assertions: Any) -> None:
        for assertion in assertions:
            self._fail_with(step, self._unmet(assertion))

    def _unmet(self, assertion: Mapping[str, Any]) -> Iterator[Mismatch]:
        source = resolved(assertion["source"], self.known)
        if "match" in assertion:
            place = assertion.get("path", "")
            value = value_at(source, place) if place else source
            yield from mismatches(resolved(assertion["match"], self.known), value, place)
        for how in ("any", "all", "none"):
            if how not in assertion:
                continue
            path, match = assertion[how]["path"], resolved(assertion[how]["match"], self.known)
            values = list(values_at(source, path))
            fits = [matches(match, value) for value in values]
            if not {"any": any(fits), "all": all(fits), "none": not any(fits)}[how]:
                yield Mismatch(path=path, expected={how: match}, seen=values)

    @staticmethod
    def _fail_with(step: str, found: Iterator[Mismatch]) -> None:
        first = next(found, None)
        if first is not None:
            raise StepFailed(step, first)


def _error(expected: Mapping[str, Any], answer: Reply | Events) -> Iterator[Mismatch]:
    if isinstance(answer, Events) or answer.error is None:
        seen = answer.body if isinstance(answer, Reply) else list(answer.events)
        yield Mismatch(path="", expected={"error": dict(expected)}, seen=seen)
        return
    wanted = {"code" if key == "error_type" else key: value for key, value in expected.items()}
    yield from mismatches(wanted, answer.error.view(), "error")


def _told(error: Error) -> str:
    return f"{error.names}: {error.message}"


async def play(
    test: Test, transport: Transport, card: Mapping[str, Any], known: Mapping[str, Any]
) -> Result:
    """What became of the test: passed, failed, or skipped because it does not apply here."""
    began = time.monotonic()
    if reason := _inapplicable(test, transport, card):
        return Skipped(test=test, reason=reason)
    current = Play(test, transport, dict(known))
    try:
        await current.run()
        duty = DUTIES.get(test.id)
        difference = await duty(transport, card) if duty is not None else None
        if difference is not None:
            raise StepFailed("the runner's part", difference)
    except StepFailed as error:
        return Failed(
            test=test,
            step=error.step,
            difference=error.difference,
            seconds=time.monotonic() - began,
        )
    except LookupError as error:
        fault = Mismatch(path="", expected="what the test names", seen=str(error))
        return Failed(test=test, step="", difference=fault, seconds=time.monotonic() - began)
    return Passed(test=test, seconds=time.monotonic() - began)


OF_DELIVERIES = frozenset(
    {"PUSH-DELIV-001", "PUSH-DELIV-002", "PUSH-DELIV-003", "SEC-PUSH-001", "SEC-PUSH-002"}
)
"""Their steps alone would pass: that something comes is for the runner to see."""


def _inapplicable(test: Test, transport: Transport, card: Mapping[str, Any]) -> str | None:
    if transport.name not in test.bindings:
        return f"is for {', '.join(test.bindings)}"
    if test.is_for_clients:
        return "is for a client"
    if test.id in OF_DELIVERIES:
        return "is about what is sent to webhooks, and nothing is yet"
    has = {
        "streaming": False,
        "pushNotifications": False,
        "extendedAgentCard": False,
        "authentication": bool(card.get("securityRequirements")),
        **card.get("capabilities", {}),
    }
    for name, wanted in test.capabilities.items():
        if has.get(name) != wanted:
            return f"needs {name} to be {str(wanted).lower()} in the card"
    return None
