"""Where events may go: to public addresses over TLS, and to nothing that only looks like one."""

import pytest

from app.errors import Invalid
from app.webhooks.target import Refused, checked_url, is_public, resolve

INSIDE = [
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.5.4", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "224.0.0.1", "255.255.255.255", "240.0.0.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "no address",
]  # fmt: skip


@pytest.mark.parametrize("address", INSIDE)
def test_what_is_inside_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:1"])
def test_what_is_outside_is(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/", "ftp://example.com/", "https://", "https:///path", "//example.com/", "example.com",
        "https://amy:secret@example.com/", "https://example.com/#part", "https://exa mple.com/", "https://例子.com/",
        "https://example.com:0/", "https://example.com:99999/", "https://[::1/", "javascript:alert(1)",
        "https://example.com/" + "x" * 2_000,
    ],
)  # fmt: skip
def test_what_is_no_https_url_is_refused(url: str) -> None:
    with pytest.raises(Invalid):
        checked_url(url, allow_private=False)


async def test_a_name_gives_way_to_its_address_once_it_is_checked() -> None:
    url, headers, name = await resolve("https://localhost:8443/hook?a=1", allow_private=True)
    assert url.partition("/hook")[0] in ("https://127.0.0.1:8443", "https://[::1]:8443")
    assert (headers, name) == ({"host": "localhost:8443"}, "localhost")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "2130706433", "0x7f.1", "[::1]", "169.254.169.254"])
async def test_a_name_of_the_inside_is_refused_in_every_dress(host: str) -> None:
    with pytest.raises(Refused, match=r"private_target|dns"):
        await resolve(f"https://{host}/", allow_private=False)


async def test_an_unknown_name_is_refused_as_unknown() -> None:
    with pytest.raises(Refused, match="dns"):
        await resolve("https://does-not-exist.invalid/", allow_private=True)
