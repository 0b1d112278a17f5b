"""The probe's language: commands joined by `;`, each read into a small value.

| command | what it does |
|---|---|
| `emit N [every T]` | append N numbered chunks to one artifact, T apart |
| `effect K` | POST to the counter sink under key K, once |
| `ask [Q] [within T]` | pause for input, with a deadline T |
| `auth [Q]` | pause for authorisation |
| `sleep T` | a durable timer |
| `wait T` | await inside the step |
| `block T` | block the worker's thread |
| `raise` | fail the step for good |
| `flaky N` | fail N times, then go on |
| `exit` | end the process |
| `say TEXT` | report progress |
| `reject` | refuse the task |

T is a number of seconds, or has a unit: `500ms`, `1s`, `2m`, `1h`, `1d`. In K and TEXT, `{answer}`
stands for the text of the latest answer: `ask; effect {answer}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Emit:
    count: int
    every: timedelta


@dataclass(frozen=True)
class Effect:
    key: str


@dataclass(frozen=True)
class Ask:
    question: str
    within: timedelta | None


@dataclass(frozen=True)
class Auth:
    question: str


@dataclass(frozen=True)
class Sleep:
    delay: timedelta


@dataclass(frozen=True)
class Wait:
    delay: timedelta


@dataclass(frozen=True)
class Block:
    delay: timedelta


@dataclass(frozen=True)
class Raise:
    pass


@dataclass(frozen=True)
class Flaky:
    failures: int


@dataclass(frozen=True)
class Exit:
    pass


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class Reject:
    pass


Command = Emit | Effect | Ask | Auth | Sleep | Wait | Block | Raise | Flaky | Exit | Say | Reject


class NotACommand(ValueError):
    """The text is none of the commands; says which, for the caller."""


def split(script: str) -> list[str]:
    """Return the commands of a script, each as its own text."""
    return [text for text in (part.strip() for part in script.split(";")) if text]


def parse(text: str) -> Command:
    """Read one command. Raises `NotACommand`."""
    verb, _, rest = text.strip().partition(" ")
    rule = _GRAMMAR.get(verb)
    if rule and (match := rule.pattern.fullmatch(rest.strip())):
        return rule.build(match)
    raise NotACommand(f"not a command: {text!r}")


@dataclass(frozen=True)
class _Rule:
    """What may follow a verb, and the command that it makes."""

    pattern: re.Pattern[str]
    build: Callable[[re.Match[str]], Command]


_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_TIME = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?"


def _time(number: str, unit: str | None) -> timedelta:
    return _UNITS[unit or ""] * float(number)


def _optional_time(number: str | None, unit: str | None) -> timedelta | None:
    return None if number is None else _time(number, unit)


_NOTHING = re.compile("")
_NUMBER = re.compile(r"(\d+)")
_DELAY = re.compile(_TIME)
_GRAMMAR: Mapping[str, _Rule] = {
    "emit": _Rule(
        re.compile(rf"(\d+)(?:\s+every\s+{_TIME})?"),
        lambda m: Emit(int(m[1]), _optional_time(m[2], m[3]) or timedelta(0)),
    ),
    "effect": _Rule(re.compile(r"(\S+)"), lambda m: Effect(m[1])),
    "ask": _Rule(
        re.compile(rf"(.*?)(?:\s*\bwithin\s+{_TIME})?"),
        lambda m: Ask(m[1] or "Go on?", _optional_time(m[2], m[3])),
    ),
    "auth": _Rule(re.compile(r"(.*)"), lambda m: Auth(m[1] or "Authorize?")),
    "sleep": _Rule(_DELAY, lambda m: Sleep(_time(m[1], m[2]))),
    "wait": _Rule(_DELAY, lambda m: Wait(_time(m[1], m[2]))),
    "block": _Rule(_DELAY, lambda m: Block(_time(m[1], m[2]))),
    "raise": _Rule(_NOTHING, lambda m: Raise()),
    "flaky": _Rule(_NUMBER, lambda m: Flaky(int(m[1]))),
    "exit": _Rule(_NOTHING, lambda m: Exit()),
    "say": _Rule(re.compile(r"(.+)"), lambda m: Say(m[1])),
    "reject": _Rule(_NOTHING, lambda m: Reject()),
}
