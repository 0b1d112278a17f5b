"""The report, as Markdown for people and as CSV for the next system.

What goes in comes from outside: names are escaped, so that none can break a table or become a
formula in a spreadsheet.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime

from examples.access_review.analysis import Finding

COLUMNS = ("grant", "system", "user", "role", "reasons", "explanation", "revoked_at")


def render_markdown(
    *,
    as_of: date,
    systems: int,
    findings: Sequence[Finding],
    revoked: Mapping[str, datetime],
) -> str:
    """Render the review. `revoked` says when, by grant id; a finding without it was declined."""
    reasons = Counter(reason for finding in findings for reason in finding.reasons)
    lines = [
        f"# Access review as of {as_of}",
        "",
        f"{systems} systems, {len(findings)} findings, {len(revoked)} revoked.",
        "",
        *_table(("Reason", "Findings"), sorted((str(key), str(n)) for key, n in reasons.items())),
        "",
        *_table(
            ("Grant", "User", "Role", "Why", "Outcome"),
            (
                (
                    finding.grant.id,
                    finding.grant.user,
                    finding.grant.qualified_role,
                    finding.explanation,
                    _outcome(revoked.get(finding.grant.id)),
                )
                for finding in findings
            ),
        ),
    ]
    return "\n".join(lines) + "\n"


def render_csv(findings: Iterable[Finding], revoked: Mapping[str, datetime]) -> str:
    """Render what was revoked, one row per grant, with lines ended as RFC 4180 has them."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for finding in findings:
        if revoked_at := revoked.get(finding.grant.id):
            grant = finding.grant
            reasons = " ".join(finding.reasons)
            row = (grant.id, grant.system, grant.user, grant.role, reasons, finding.explanation)
            writer.writerow([*map(_inert, row), revoked_at.isoformat()])
    return out.getvalue()


def escape_markdown(text: str) -> str:
    """Make a text that stands for itself in one cell of a table."""
    return re.sub(r"([\\`*_\[\]<>|~#&])", r"\\\1", " ".join(text.split()))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    body = [[escape_markdown(cell) for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]


def _outcome(revoked_at: datetime | None) -> str:
    return f"revoked {revoked_at:%Y-%m-%d %H:%M} UTC" if revoked_at else "kept: not approved"


def _inert(cell: str) -> str:
    """Keep a spreadsheet from running a cell as a formula."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
