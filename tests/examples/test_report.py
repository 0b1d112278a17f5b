"""The report: what comes from outside stays text."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime

from examples.access_review.analysis import Finding, Reason
from examples.access_review.records import Grant
from examples.access_review.report import (
    COLUMNS,
    escape_markdown,
    render_csv,
    render_markdown,
)

DAY = date(2025, 9, 30)
NOW = datetime(2025, 10, 1, 12, 30, tzinfo=UTC)


def finding(grant_id: str, *, user: str = "u0001", role: str = "clerk", why: str = "w") -> Finding:
    return Finding(
        grant=Grant(id=grant_id, system="ledger", user=user, role=role, granted_at=DAY),
        reasons=(Reason.LEAVER, Reason.UNUSED),
        explanation=why,
    )


def test_markdown_tells_what_was_revoked_and_what_was_kept() -> None:
    text = render_markdown(
        as_of=DAY,
        systems=40,
        findings=[finding("ledger-0001"), finding("ledger-0002")],
        revoked={"ledger-0001": NOW},
    )
    assert "# Access review as of 2025-09-30" in text
    assert "40 systems, 2 findings, 1 revoked." in text
    assert "| ledger-0001 | u0001 | ledger:clerk | w | revoked 2025-10-01 12:30 UTC |" in text
    assert "| ledger-0002 | u0001 | ledger:clerk | w | kept: not approved |" in text


def test_markdown_cells_cannot_break_out() -> None:
    assert escape_markdown("a|b\nc") == r"a\|b c"
    assert escape_markdown("[x](javascript:1) <b> `c` \\") == (
        r"\[x\](javascript:1) \<b\> \`c\` " + "\\\\"
    )
    hostile = finding("ledger-0001", user="u|0001\n# Title")
    text = render_markdown(as_of=DAY, systems=1, findings=[hostile], revoked={})
    assert "\n# Title" not in text
    # Every row of the findings' table has its five cells and no more.
    rows = [line for line in text.splitlines() if "ledger" in line]
    assert [row.replace(r"\|", "").count("|") for row in rows] == [6]


def test_csv_has_the_revoked_grants_and_no_others() -> None:
    rows = _rows(render_csv([finding("ledger-0001"), finding("ledger-0002")], {"ledger-0002": NOW}))
    assert rows[0] == list(COLUMNS)
    assert rows[1:] == [
        ["ledger-0002", "ledger", "u0001", "clerk", "leaver unused", "w", NOW.isoformat()]
    ]


def test_csv_cells_survive_quotes_commas_and_lines() -> None:
    why = 'said "no", and\nleft'
    assert _rows(render_csv([finding("g-1", why=why)], {"g-1": NOW}))[1][5] == why


def test_csv_cells_are_no_formulas() -> None:
    for start in ("=", "+", "-", "@", "\t", "\r"):
        cell = f"{start}HYPERLINK(1)"
        assert _rows(render_csv([finding("g-1", role=cell)], {"g-1": NOW}))[1][3] == f"'{cell}"


def _rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))
