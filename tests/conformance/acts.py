"""The conformance tests as they are written: one YAML file per topic, suites of tests of steps.

The format is ACTS, the draft that the protocol's own project keeps beside the specification. What
its files say beyond its definition is read as they mean it, in `read_test` and `Test`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

Level = Literal["must", "should", "may"]
BindingName = Literal["jsonrpc", "rest", "grpc"]
BINDINGS: tuple[BindingName, ...] = get_args(BindingName)

ROOT = Path(__file__).parents[2]
WHERE = "ACTS"
"""The environment variable that names the folder of the data; it is not part of the project."""


class Malformed(ValueError):
    """A file is not what the format says: the message names the place and what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Test:
    """One scenario. `steps` are as in the file; `bindings` is where it applies."""

    __test__ = False

    id: str
    name: str
    suite: str
    level: Level
    steps: tuple[Mapping[str, Any], ...]
    bindings: tuple[BindingName, ...] = BINDINGS
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    assertions: tuple[Mapping[str, Any], ...] = ()

    @property
    def is_for_clients(self) -> bool:
        """Whether it shows a client what a server answered, and needs no server."""
        return any("client_response" in step for step in self.steps)


def folder() -> Path:
    """Where the data is, or would be: `$ACTS`, else beside the checkout."""
    return (ROOT / os.environ.get(WHERE, "../shared/conformance")).resolve()


def is_here() -> bool:
    return any(_files())


def absence() -> str:
    """What to tell where the data is not."""
    return f"no conformance data in {os.environ.get(WHERE, '../shared/conformance')}: set {WHERE}"


def load() -> list[Test]:
    """Every test there is, in the order of the files. Raises Malformed."""
    tests: dict[str, Test] = {}
    for file in _files():
        for test in read_file(file.name, yaml.safe_load(file.read_text())):
            if test.id in tests:
                raise Malformed(f"{file.name}: a second test {test.id}")
            tests[test.id] = test
    return list(tests.values())


def read_file(name: str, document: Any) -> Iterator[Test]:
    """The tests of one document. Raises Malformed."""
    if not isinstance(document, Mapping) or not {"suites", "include"} & document.keys():
        raise Malformed(f"{name}: needs suites or include")
    for suite in document.get("suites", ()):
        for body in suite["tests"]:
            yield read_test(name, suite["id"], body)


def read_test(file: str, suite: str, body: Mapping[str, Any]) -> Test:
    """One test. Raises Malformed."""
    place = f"{file}: {body.get('id', suite)}"
    if missing := {"id", "name", "level", "steps"} - body.keys():
        raise Malformed(f"{place}: needs {', '.join(sorted(missing))}")
    if body["level"] not in get_args(Level):
        raise Malformed(f"{place}: level is {body['level']}, not must, should or may")
    bindings = body.get("transport", BINDINGS)
    if unknown := set(bindings) - set(BINDINGS):
        raise Malformed(f"{place}: unknown transport {', '.join(sorted(unknown))}")
    for step in body["steps"]:
        kinds = {"operation", "raw", "client_response", "assertion"} & step.keys()
        if len(kinds) != 1:
            raise Malformed(f"{place}: step {step.get('id')} must be of one kind")
    return Test(
        id=body["id"],
        name=body["name"],
        suite=suite,
        level=body["level"],
        steps=tuple(body["steps"]),
        bindings=tuple(bindings),
        capabilities=body.get("preconditions", {}).get("capabilities", {}),
        assertions=tuple(body.get("assertions", ())),
    )


def _files() -> list[Path]:
    return sorted((folder() / "acts").glob("*.acts.yaml"))
