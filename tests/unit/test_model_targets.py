"""Where a webhook may point."""

from __future__ import annotations

import ipaddress

import pytest

from outlast.model.errors import ConfigError, InvalidParams
from outlast.model.targets import LONGEST_URL, Targets

PUBLIC = (
    "https://hooks.example.com",
    "https://hooks.example.com./a2a?b=c",
    "HTTPS://Hooks.Example.Com:443/",
    "https://hooks.example.com:8443/a2a",
    "https://8.8.8.8/",
    "https://[2606:4700::1111]/",
    "https://[::ffff:8.8.8.8]/",
    "https://1password.example/",
    "https://svc.example.com/",
    "https://in-corp.example.com/",
    "https://mycorp.example/",
    "https://ip6.arpa/",
    "https://192.0.1.1/",
    "https://192.88.98.1/",
)
ADDRESSES_INSIDE = (
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.0.9",
    "192.0.0.170",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fc00::1",
    "fd12::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:192.88.99.1",
    "::ffff:a9fe:a9fe",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2001:db8::1",
    "3fff::1",
)
HOSTS_INSIDE = (
    "localhost",
    "LOCALHOST.",
    "a.localhost",
    "metadata",
    "metadata.google.internal",
    "printer.local",
    "router.lan",
    "postgres.default.svc",
    "nas.home.arpa",
    "nas.home",
    "Intranet.Corp.",
    "home.arpa",
)
SPELLED = (
    "2130706433",
    "0177.0.0.1",
    "0x7f000001",
    "0x7f.1",
    "127.1",
    "127.0.0.0x1",
    "1.2.3.4.5",
    "127.0.0.01",
    "127.0.0.1%2e",
    "%6c%6f%63alhost",
    "[fe80::1%25eth0]",
    "[v1.fe]",
    "[v7.hooks.example.com]",
    "[hooks.example.com]",
    "[8.8.8.8]",
    "a..example.com",
    "a_b!.example.com",
)


@pytest.mark.parametrize("url", PUBLIC)
def test_what_is_public_is_taken(url: str) -> None:
    Targets().check_url(url, path="url")


@pytest.mark.parametrize("address", ADDRESSES_INSIDE)
def test_an_address_inside_is_refused(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(InvalidParams, match="public host"):
        Targets().check_url(f"https://{host}/hook", path="url")
    assert not Targets().admits(ipaddress.ip_address(address))


@pytest.mark.parametrize("host", HOSTS_INSIDE)
def test_a_name_that_is_only_known_inside_is_refused(host: str) -> None:
    with pytest.raises(InvalidParams, match="public host"):
        Targets().check_url(f"https://{host}:8443/hook", path="url")


@pytest.mark.parametrize("host", SPELLED)
def test_what_is_an_address_to_some_readers_only_is_refused(host: str) -> None:
    with pytest.raises(InvalidParams):
        Targets().check_url(f"https://{host}/hook", path="url")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.com",
        "//hooks.example.com",
        "file:///etc/passwd",
        "ftp://hooks.example.com",
        "gopher://hooks.example.com",
        "http://hooks.example.com",
        "https://",
        "https:///path",
        "https://user:pass@hooks.example.com",
        "https://hooks.example.com@127.0.0.1",
        "https://hooks.example.com/#s3cret",
        "https://hooks.example.com\\@127.0.0.1/",
        "https://hooks.example.com/\r\nHost: other",
        "https://hooks.example.com/ space",
        "https://hóoks.example.com/",
        "https://\uff11\uff12\uff17.0.0.1/",
        "https://hooks.example.com:0/",
        "https://hooks.example.com:22/",
        "https://hooks.example.com:80/",
        "https://hooks.example.com:65536/",
        "https://hooks.example.com:port/",
        "https://[::1/",
        "https://hooks.example.com/" + "x" * LONGEST_URL,
    ],
)
def test_what_is_no_address_of_a_webhook_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(InvalidParams) as refused:
        Targets().check_url(url, path="url")
    assert refused.value.path == "url"
    assert "example.com" not in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_an_operator_allows_hosts_addresses_and_networks() -> None:
    targets = Targets.allowing(["localhost", "Hooks.Internal", "10.1.0.0/16", "::1"])
    for host in (
        "localhost:9000",
        "hooks.internal",
        "10.1.9.9:25",
        "[::1]:80",
        "[::ffff:10.1.0.1]",
    ):
        targets.check_url(f"http://{host}/hook", path="url")
    for host in ("127.0.0.1", "10.2.0.1", "a.hooks.internal", "[::2]"):
        with pytest.raises(InvalidParams):
            targets.check_url(f"https://{host}/hook", path="url")
    assert targets.admits(ipaddress.ip_address("10.1.0.7"))
    assert not targets.admits(ipaddress.ip_address("10.2.0.7"))


@pytest.mark.parametrize("said", ["https://x", "10.1.0.0/99", "1.2.3", "a b", "10.0.0.1/8"])
def test_what_an_operator_cannot_allow(said: str) -> None:
    with pytest.raises(ConfigError, match="a host, an address or a network"):
        Targets.allowing([said])
