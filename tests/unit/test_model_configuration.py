"""The configuration of a process: every bad setting is refused by its name."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import pytest

from outlast.configuration import Configuration, configuration
from outlast.model.errors import ConfigError

BAD: dict[str, list[str]] = {
    "database_pool": ["0", "201", "many", "1.5"],
    "database_pooler": ["perhaps"],
    "database_timeout": ["0", "-1", "soon"],
    "open_to_all": ["perhaps"],
    "api_keys": ["perhaps"],
    "proxy_header": ["X-Client-Name"],
    "proxies": ["10.0.0.1"],
    "jwt_issuer": ["https://login.example.com"],
    "jwt_audience": ["https://agent.example.com"],
    "jwt_jwks_url": ["https://login.example.com/keys"],
    "jwt_algorithms": ["ES256"],
    "jwt_leeway": ["-1", "301", "1.5", "some"],
    "jwt_subject_claim": ["", "sub"],
    "jwt_tenant_claim": ["", "tenant"],
    "jwt_scope_claim": ["", "scope"],
    "jwt_shown_claims": ["email"],
    "tenant_from_request": ["perhaps"],
    "port": ["-1", "65536", "http"],
    "grpc_port": ["-1", "65536", "h2"],
    "concurrency": ["0", "all"],
    "beat": ["0", "-1", "fast"],
    "lease": ["0", "2.9", "long"],
    "grace": ["-0.1", "some"],
    "poll": ["0", "often"],
    "recovery": ["0", "never"],
    "retention": ["0", "for ever"],
    "resume_window": ["-1", "for ever"],
    "tombstone": ["0", "for ever"],
    "idempotency": ["required", "AUTO"],
    "idempotency_window": ["0", "2592001", "for ever"],
    "crash_limit": ["0", "three"],
    "compat_0_3": ["perhaps"],
    "push_notifications": ["perhaps"],
    "webhook_targets": ["https://x", "hooks.internal, 10.0.0.1/8"],
    "crash_backoff": ["-1", "long"],
    "blocking_cap": ["0", "none"],
    "owner_tasks": ["-1", "many"],
    "owner_calls": ["-1", "many"],
    "owner_sends": ["-1", "many"],
    "max_body": ["0", "8MiB"],
    "max_message": ["0", "4MiB"],
    "max_part": ["0", "1MiB"],
    "max_parts": ["0", "many"],
    "max_depth": ["3", "25", "deep"],
    "log_level": ["loud", "INFO"],
    "log_style": ["pretty"],
}
ANY_TEXT = {"database", "grpc_tls_cert", "grpc_tls_key", "grpc_url", "host", "url"}
"""Settings that take any text here; what is wrong with it shows when it is used."""


def test_without_anything_the_defaults_hold() -> None:
    assert configuration({}) == Configuration()


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_a_bad_setting_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configuration({f"OUTLAST_{name.upper()}": value})
    told = str(refused.value)
    assert name in told
    assert "pydantic" not in told
    assert "\n" not in told


def test_no_setting_is_left_out_above() -> None:
    assert set(Configuration.model_fields) == set(BAD) | ANY_TEXT


def test_all_bad_settings_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        configuration({"OUTLAST_PORT": "x", "OUTLAST_BEAT": "y", "OUTLAST_GRACE": "1"})
    assert "port: " in str(refused.value)
    assert "beat: " in str(refused.value)
    assert "grace" not in str(refused.value)


def test_a_setting_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match="no setting OUTLAST_CONCURENCY") as refused:
        configuration({"OUTLAST_CONCURENCY": "7"})
    assert "concurrency" in str(refused.value)


def test_targets_of_webhooks_are_given_with_commas_between_them() -> None:
    said = configuration({"OUTLAST_WEBHOOK_TARGETS": "hooks.internal, 10.1.0.0/16,"})
    assert said.webhook_targets == ("hooks.internal", "10.1.0.0/16")


def test_a_lease_outlasts_at_least_three_beats() -> None:
    assert configuration({}, lease=3.0, beat=1.0).lease == 3
    with pytest.raises(ConfigError, match=r"a lease of 2.9 s must outlast .* beats of 1 s"):
        configuration({}, lease=2.9, beat=1.0)


def test_the_environment_is_read_by_names_in_capitals() -> None:
    read = configuration({"OUTLAST_PORT": "0", "OUTLAST_DATABASE": "sqlite:///a.db", "HOME": "/"})
    assert (read.port, read.database) == (0, "sqlite:///a.db")


def test_what_belongs_to_the_tests_is_no_setting() -> None:
    assert configuration({"OUTLAST_TEST_POSTGRES_BIN": "/usr/lib"}) == Configuration()


def test_the_command_line_wins_and_what_it_leaves_out_does_not() -> None:
    read = configuration({"OUTLAST_PORT": "1", "OUTLAST_HOST": "::1"}, port=2, host=None)
    assert (read.port, read.host) == (2, "::1")


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_POLL", "0.25")
    assert configuration().poll == 0.25


def test_no_setting_changes_once_it_was_checked() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Configuration().__setattr__("beat", 2)


@pytest.mark.parametrize("name", sorted(Configuration.model_fields))
def test_every_default_is_of_its_type(name: str) -> None:
    field = Configuration.model_fields[name]
    annotation: Any = field.annotation
    kinds = tuple(kind for kind in get_args(annotation) or (annotation,) if isinstance(kind, type))
    if get_origin(annotation) is tuple:
        kinds = (tuple,)
    assert field.default is None or not kinds or isinstance(field.default, kinds)


def test_a_callers_token_in_the_environment_is_no_setting() -> None:
    assert configuration({"OUTLAST_TOKEN": "secret"}) == configuration({})
