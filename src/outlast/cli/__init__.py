"""The command line: `outlast --help`."""

from outlast.cli.main import app

__all__ = ["app"]
