"""`python -m outlast`."""

from outlast.cli import app

app(prog_name="outlast")
