"""The examples' small servers, each as a real process on a real socket."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Service:
    url: str
    process: subprocess.Popen[str]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Services:
    """Starts modules of the examples as servers; the test's end stops them."""

    stack: ExitStack = field(default_factory=ExitStack)

    def start(self, module: str, *options: str) -> Service:
        process = self.stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", module, "--port", "0", *options],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        self.stack.callback(process.terminate)
        assert process.stdout is not None
        line = process.stdout.readline()
        name, _, url = line.strip().rpartition(" listening on ")
        assert name, f"{module} said {line!r}"
        return Service(url, process)


@pytest.fixture(scope="session")
def shared_services() -> Iterator[Services]:
    """Services that many tests use, one after another."""
    started = Services()
    with started.stack:
        yield started


@pytest.fixture
def services() -> Iterator[Services]:
    """Services of this test's own."""
    started = Services()
    with started.stack:
        yield started


@pytest.fixture(scope="session")
def shared_directory(shared_services: Services) -> Service:
    return shared_services.start("examples.access_review.directory")


@pytest.fixture
def directory(shared_directory: Service) -> Service:
    """A directory that has not been asked anything yet."""
    httpx.post(f"{shared_directory.url}/reset").raise_for_status()
    return shared_directory


@pytest.fixture(scope="session")
def shared_sink(shared_services: Services) -> Service:
    return shared_services.start("examples.probe.sink")


@pytest.fixture
def sink(shared_sink: Service) -> Service:
    """A sink that has counted nothing yet."""
    httpx.post(f"{shared_sink.url}/reset").raise_for_status()
    return shared_sink
