"""The runner's own rules: what matches, what is captured, what a list of faults excuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import acts, faults
from tests.conformance.matching import MISSING, Mismatch, matches, mismatches
from tests.conformance.paths import Unresolved, holds, resolved, value_at, values_at
from tests.conformance.replies import Error
from tests.conformance.report import Failed, Passed
from tests.conformance.streams import differences
from tests.conformance.transports import request_of

TASK: dict[str, Any] = {
    "id": "t",
    "status": {"state": "DONE"},
    "parts": [{"text": "a"}, {"text": "b"}],
    "n": 2,
}


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        ("a", "a"),
        ({"status": {"state": "DONE"}}, TASK),
        ({"type": "array", "count": 2, "count_gte": 1, "count_lte": 2}, TASK["parts"]),
        ({"type": {"type": "string"}, "title": {"exists": True}}, {"type": "x", "title": "y"}),
        ({"items": {"text": {"type": "string"}}}, TASK["parts"]),
        ({"items": [{"text": "a"}]}, TASK["parts"]),
        ([{"text": "a"}], TASK["parts"]),
        ({"any_of": [{"absent": True}, {"type": "null"}]}, MISSING),
        ({"one_of": [{"x": 1}, "a"]}, "a"),
        ({"not": {"contains": "z"}}, "abc"),
        ({"all_of": [{"starts_with": "a"}, {"ends_with": "c"}, {"matches": "^a.c$"}]}, "abc"),
        ({"gte": 2, "lte": 2, "gt": 1, "lt": 3}, 2),
    ],
)
def test_a_value_matches(expected: Any, value: Any) -> None:
    assert list(mismatches(expected, value)) == []


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        (1, True),
        ({"type": "number"}, True),
        ({"type": "string"}, MISSING),
        ({"absent": True}, None),
        ({"exists": True}, MISSING),
        ({"items": {"text": "a"}}, TASK["parts"]),
        ([{}, {}, {"text": "c"}], TASK["parts"]),
        ({"contains": "a"}, MISSING),
        ({"gt": 2}, 2),
        ({"any_of": ["a", {"count": 1}]}, "b"),
        ({"not": {"exists": True}}, "a"),
        ({"status": {"state": "WORKING"}}, TASK),
    ],
)
def test_a_value_does_not_match(expected: Any, value: Any) -> None:
    assert not matches(expected, value)


def test_a_mismatch_names_its_place() -> None:
    found = list(mismatches({"parts": [{"text": "a"}, {"text": "x"}]}, TASK))
    assert found == [Mismatch(path="parts[1].text", expected="x", seen="b")]


def test_paths_reach_into_lists() -> None:
    assert value_at(TASK, "parts[1].text") == "b"
    assert list(values_at(TASK, "parts[*].text")) == ["a", "b"]
    assert value_at(TASK, "parts[2].text") is MISSING


def test_conditions() -> None:
    assert holds("status.state == DONE", TASK)
    assert holds('status.state in ["WORKING", DONE]', TASK)
    assert holds("status.state != WORKING", TASK)
    assert not holds("status.state != DONE", TASK)
    with pytest.raises(ValueError, match="not a condition"):
        holds("status.state", TASK)


def test_variables_keep_their_type_when_they_stand_alone() -> None:
    known = {"send.n": 3, "send.id": "t"}
    assert resolved({"a": ["{{send.n}}", "x-{{send.id}}"]}, known) == {"a": [3, "x-t"]}
    first, second = resolved(["{{$uuid}}", "{{$uuid}}"], {})
    assert first != second
    with pytest.raises(Unresolved, match="send\\.gone"):
        resolved("{{send.gone}}", known)


def test_a_message_gets_an_id_and_what_stands_beside_it() -> None:
    request = request_of("send_message", {"taskId": "t", "message": {"parts": []}})
    assert request["message"].pop("messageId")
    assert request == {"message": {"taskId": "t", "parts": []}}


def test_an_error_is_named_by_its_reason_where_a_status_is_shared() -> None:
    info = {"reason": "TASK_NOT_CANCELABLE"}
    assert Error(code=400, message="", details=[info]).names == "TaskNotCancelableError"
    assert Error(code=-32001, message="").names == "TaskNotFoundError"
    assert Error(code=400, message="").names == "an error without a name (400)"


def _status(state: str) -> dict[str, Any]:
    return {"statusUpdate": {"status": {"state": f"TASK_STATE_{state}"}}}


def test_a_stream_may_not_go_back() -> None:
    rule = {"ordering": "monotonic_state", "min_count": 2}
    good = [_status("SUBMITTED"), _status("WORKING"), _status("WORKING"), _status("COMPLETED")]
    assert list(differences(rule, good)) == []
    assert list(differences(rule, [*good, _status("WORKING")]))
    assert list(differences(rule, good[:1]))
    assert list(differences({"final_event": {"artifact": {"exists": True}}}, good))


def test_an_event_is_found_at_any_place_or_at_its_index() -> None:
    events: list[dict[str, Any]] = [
        {"task": {"id": "t"}},
        {"artifactUpdate": {"artifact": {"artifactId": "a"}}},
    ]
    assert not list(differences({"events": [{"artifact": {"exists": True}}]}, events))
    assert not list(differences({"events": [{"index": 0, "task": {"exists": True}}]}, events))
    assert list(differences({"events": [{"index": 1, "task": {"exists": True}}]}, events))


# --- known faults -------------------------------------------------------------------------------

BODY: dict[str, Any] = {
    "id": "X-1",
    "name": "x",
    "level": "must",
    "steps": [{"id": "s", "operation": "get_task", "params": {"id": "a"}}],
}
TEST = acts.read_test("x.yaml", "suite", BODY)
FAULT = faults.Fault(test="X-1", section="1", why="it errs", step="s", seen="b")


def _failed(seen: str, step: str = "s") -> Failed:
    return Failed(test=TEST, step=step, difference=Mismatch(path="p", expected="a", seen=seen))


def test_a_fault_excuses_only_the_failure_that_it_describes() -> None:
    assert faults.judge(_failed("b"), FAULT, None) is None
    assert "not as its fault says" in str(faults.judge(_failed("c"), FAULT, None))
    assert "not as its fault says" in str(faults.judge(_failed("b", step="t"), FAULT, None))
    assert "unlist it" in str(faults.judge(Passed(test=TEST), FAULT, None))
    assert "mended, and still" in str(faults.judge(_failed("b"), FAULT, _failed("c")))
    assert faults.judge(_failed("b"), None, None) == str(_failed("b"))
    assert faults.judge(Passed(test=TEST), None, None) is None


def test_a_mend_changes_a_copy() -> None:
    fault = faults.Fault(
        test="X-1", section="1", why="", step="s", seen="", mend={"0/params/id": "b"}
    )
    assert faults.mended(TEST, fault).steps[0]["params"] == {"id": "b"}
    assert TEST.steps[0]["params"] == {"id": "a"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"level": "shall"}, "level is shall"),
        ({"transport": ["soap"]}, "unknown transport soap"),
        ({"steps": [{"id": "s"}]}, "of one kind"),
    ],
)
def test_what_the_format_does_not_know_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(acts.Malformed, match=says):
        acts.read_test("x.yaml", "suite", {**BODY, **change})
