"""Poison on every route with a body: a 4xx problem each time, never a 5xx, and never the poison in the answer."""

import asyncio
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.body import parse_json
from app.errors import Malformed
from tests.api.conftest import UNKNOWN_ID, MakeKey, Service, bearer

MARKER = "秘密marker"
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Poison:
    """Bytes, the statuses that answer them, and headers."""

    name: str
    body: bytes
    statuses: frozenset[int]
    headers: dict[str, str] = field(default_factory=lambda: JSON)


def poisoned(value: str) -> bytes:
    """A plausible body for every route, with raw JSON in the place of a value."""
    return f'{{"content": "{MARKER}", "query": "{MARKER}", "user_id": "amy", "metadata": {{"x": {value}}}}}'.encode()


UNREADABLE, INVALID, UNSUPPORTED = frozenset({400}), frozenset({422}), frozenset({415})
OTHER_TYPES = (
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "json",
    "application/json; charset=gbk",
)
POISONS = [
    Poison("NUL", poisoned('"a\\u0000b"'), UNREADABLE),
    Poison("NUL in a name", b'{"a\\u0000": 1}', UNREADABLE),
    Poison("raw NUL", poisoned('"a\0b"'), UNREADABLE),
    Poison("lone high surrogate", poisoned('"\\ud800"'), UNREADABLE),
    Poison("lone low surrogate", poisoned('"\\udc00x"'), UNREADABLE),
    Poison("surrogate in UTF-8", poisoned('"X"').replace(b"X", b"\xed\xa0\x80"), UNREADABLE),
    Poison("NaN", poisoned("NaN"), UNREADABLE),
    Poison("Infinity", poisoned("-Infinity"), UNREADABLE),
    Poison("1e999", poisoned("1e999"), UNREADABLE),
    Poison("1e400000", poisoned("-1e400000"), UNREADABLE),
    Poison("400 digits and a point", poisoned("9" * 400 + ".0"), UNREADABLE),
    Poison("5,000 digits", poisoned("9" * 5_000), UNREADABLE),
    Poison("65 bits", poisoned(str(1 << 64)), UNREADABLE),
    Poison("depth 100,000 of arrays", b"[" * 100_000 + b"]" * 100_000, UNREADABLE),
    Poison("depth 100,000 of objects", b'{"a":' * 100_000, UNREADABLE),
    Poison("depth 150 in metadata", poisoned("[" * 150 + "]" * 150), UNREADABLE | INVALID),
    Poison("bad UTF-8", poisoned('"X"').replace(b"X", b"\xff\xfe"), UNREADABLE),
    Poison("cut UTF-8", b'{"content": "\xe8\x8a', UNREADABLE),
    Poison("UTF-16", '{"content": "x"}'.encode("utf-16"), UNREADABLE),
    Poison("GBK", '{"content": "芒果"}'.encode("gbk"), UNREADABLE),
    Poison("BOM", b"\xef\xbb\xbf{}", UNREADABLE),
    Poison("a key twice", b'{"content": "a", "content": "b"}', UNREADABLE),
    Poison("a key twice, deep", poisoned('[{"a": 1, "a" : 2}]'), UNREADABLE),
    Poison("a key twice, escaped", b'{"a": ":", "\\u0061": ":"}', UNREADABLE),
    Poison("empty", b"", UNREADABLE),
    Poison("blank", b" \n", UNREADABLE),
    Poison("cut", b'{"content": "x', UNREADABLE),
    Poison("two documents", b"{}{}", UNREADABLE),
    Poison("single quotes", b"{'content': 'x'}", UNREADABLE),
    *(Poison(f"not an object: {body}", body.encode(), INVALID) for body in ("null", "[]", '"x"', "1", "true")),
    Poison("nothing", b"{}", INVALID),
    Poison("unknown field", b'{"tenant_id": "x"}', INVALID),
    Poison("wrong types", b'{"content": {"$ne": 1}, "user_id": ["amy"], "query": true}', INVALID),
    *(
        Poison(f"user {blank!r}", json.dumps({"content": MARKER, "query": MARKER, "user_id": blank}).encode(), INVALID)
        for blank in ("", " ", "\t", "\n", "\u3000", "\u200b", "\xa0", " amy", "x" * 256)
    ),
    Poison("10 MB", b'{"content": "' + b"x" * 10_000_000 + b'"}', frozenset({413})),
    Poison("no content type", b"{}", UNSUPPORTED, {}),
    *(Poison(f"content type {kind}", b"{}", UNSUPPORTED, {"Content-Type": kind}) for kind in OTHER_TYPES),
    Poison("compressed", b"\x1f\x8b", UNSUPPORTED, {**JSON, "Content-Encoding": "gzip"}),
]  # fmt: skip

NOTHING_WILL_DO = {"/v1/sessions/{session_id:path}:extract"}
"""Routes that need no field of their body; what they are asked about is not there."""


@pytest.mark.parametrize("poison", POISONS, ids=lambda poison: poison.name)
async def test_poison_is_refused_everywhere(service: Service, make_key: MakeKey, poison: Poison) -> None:
    key = bearer(await make_key())
    document = service.app.openapi()
    for method, path in service.routes():
        documented = document["paths"].get(path.replace(":path", ""), {})
        if "requestBody" not in documented.get(method.lower(), {}):
            continue
        url = re.sub(r"\{\w+(:path)?\}", UNKNOWN_ID, path)
        response = await service.client.request(method, url, content=poison.body, headers=poison.headers | key)
        statuses = {404} if poison.name == "nothing" and path in NOTHING_WILL_DO else poison.statuses
        assert response.status_code in statuses, (method, path, response.text[:500])
        assert response.headers["Content-Type"] == "application/problem+json"
        problem = response.json()
        assert problem["status"] == response.status_code
        assert problem["type"] == f"urn:mneme:problem:{problem['code']}"
        assert problem["request_id"] == response.headers["X-Request-ID"]
        assert MARKER not in response.text
        assert (problem["code"] == "validation_failed") == ("errors" in problem)


async def test_a_large_body_is_refused_before_it_is_read(service: Service, make_key: MakeKey) -> None:
    """The answer comes while the client still owes the end of the body, whether or not it declared a length."""
    head = (
        f"POST /v1/memories HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-API-Key: {await make_key()}\r\n"
    )
    declared = f"{head}Content-Length: {10**12}\r\n\r\n".encode()
    streamed = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    for beginning, rest in ((declared, b""), (streamed, b"10000\r\n" + b"x" * 65_536 + b"\r\n")):
        reader, writer = await asyncio.open_connection("127.0.0.1", service.client.base_url.port)
        writer.write(beginning + rest * 16)
        assert (await reader.readline()).split()[1] == b"413"
        writer.close()
        await writer.wait_closed()


async def test_a_batch_may_be_larger(service: Service, make_key: MakeKey) -> None:
    items = [{"content": "x" * 7_000, "metadata": {"n": n}, "user_id": "amy"} for n in range(200)]
    response = await service.client.post("/v1/memories:batch", json={"items": items}, headers=bearer(await make_key()))
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/memories?tag=%00", 400),
        ("/v1/memories?user_id=", 422),
        ("/v1/memories?user_id=%20", 422),
        ("/v1/memories?user=amy", 422),
        ("/v1/memories?limit=0", 422),
        ("/v1/memories?limit=1e999", 422),
        ("/v1/memories?limit=NaN", 422),
        (f"/v1/memories?limit={'9' * 5000}", 422),
        ("/v1/memories?tag=%ED%A0%80", 200),  # becomes U+FFFD, which no tag holds
        ("/v1/memories?created_from=2026-03-08T02:30:00", 422),
        ("/v1/memories?created_from=0001-01-01T00:00:00%2B14:00", 422),
        ("/v1/memories?created_from=1700000000", 422),
        ("/v1/memories?cursor=AAAA", 422),
        ("/v1/memories?cursor=%E2%98%83", 422),
        ("/v1/memories/%00", 404),
        ("/v1/memories/1", 422),
        ("/v1/memories/%2e%2e", 422),
        ("/v1/memories/", 404),
        ("/v2/nothing", 404),
    ],
)
async def test_poison_in_the_address(service: Service, make_key: MakeKey, path: str, status: int) -> None:
    response = await service.client.get(path, headers=bearer(await make_key()))
    assert response.status_code == status, response.text
    assert status == 200 or response.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/memories:search", "POST"),
        ("/v1/memories", "GET, POST"),
        (f"/v1/memories/{UNKNOWN_ID}", "DELETE, GET, PATCH"),
        ("/livez", "GET"),
    ],
)
async def test_a_wrong_method_says_which_are_right(service: Service, path: str, methods: str) -> None:
    response = await service.client.put(path)
    assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")
    assert response.headers["Allow"] == methods


@pytest.mark.parametrize("sent", ["x" * 129, "a b", "a;b", "日本", ""])
async def test_a_bad_request_id_is_replaced(service: Service, sent: str) -> None:
    response = await service.client.get("/livez", headers=[(b"X-Request-ID", sent.encode())])
    assert response.headers["X-Request-ID"] != sent
    assert len(response.headers["X-Request-ID"]) == 32


async def test_a_good_request_id_comes_back(service: Service) -> None:
    response = await service.client.get("/nothing", headers={"X-Request-ID": "Az09._-"})
    assert response.headers["X-Request-ID"] == response.json()["request_id"] == "Az09._-"


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=30,
)  # fmt: skip


async def test_an_item_that_no_store_can_keep_takes_no_other_with_it(service: Service, make_key: MakeKey) -> None:
    headers = bearer(await make_key()) | {"Idempotency-Key": "poisoned"}
    items = ["今天\0下雨", "喜欢龙井", {"2": 1 << 70}, "likes tea"]
    body = {"items": [{"user_id": "amy", "content": each} for each in items]}
    body["items"][2] = {"user_id": "amy", "content": "likes numbers", "metadata": items[2]}
    sent = [await service.client.post("/v1/memories:batch", json=body, headers=headers) for _ in range(2)]
    answer = sent[0].json()["items"]
    assert [(item["index"], item["status"]) for item in answer] == [(0, 400), (1, 201), (2, 400), (3, 201)]
    assert {answer[index]["problem"]["code"] for index in (0, 2)} == {"malformed_body"}
    assert sent[1].json() == sent[0].json()
    beside = body | {"note": "a\0b"}
    assert (await service.client.post("/v1/memories:batch", json=beside, headers=headers)).status_code == 400


@given(documents, st.booleans(), st.sampled_from([None, 1]))
def test_every_clean_document_is_read_as_it_is(document: Any, ascii_only: bool, indent: int | None) -> None:
    assert parse_json(json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode()) == document


@given(st.binary())
def test_any_bytes_are_read_or_malformed(body: bytes) -> None:
    with suppress(Malformed):  # and nothing else
        parse_json(body)


@given(
    st.dictionaries(texts, st.text('ab:"\\'), min_size=1),
    st.data(),
)
def test_a_key_twice_is_noticed_wherever_it_stands(members: dict[str, str], data: st.DataObject) -> None:
    again = data.draw(st.sampled_from(sorted(members)))
    pairs = data.draw(st.permutations([*members.items(), (again, "x")]))
    colon = data.draw(st.sampled_from([":", " : ", "\n:"]))
    body = "{" + ",".join(f"{json.dumps(name)}{colon}{json.dumps(value)}" for name, value in pairs) + "}"
    with pytest.raises(Malformed, match="twice"):
        parse_json(body.encode())
