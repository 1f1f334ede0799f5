"""One JSON endpoint of a model server over HTTP: retries what may pass within one deadline.

Invariant: no error quotes what was sent or answered.
"""

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx2
import orjson
import stamina
from prometheus_client import Histogram
from pydantic import SecretStr

ATTEMPTS: Final = 4
FIRST_WAIT_SECONDS: Final = 0.1
CONNECT_SECONDS: Final = 3.0
LIMIT_BYTES: Final = 64 << 20
"""Of an answer; 512 vectors of 4,000 dimensions are about 40 MB of JSON."""
RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})


class Refused(Exception):
    """The endpoint answered with an error status."""

    def __init__(self, status: int, retry_after_seconds: float | None) -> None:
        super().__init__(f"the endpoint answered {status}")
        self.status, self.retry_after_seconds = status, retry_after_seconds


class Oversized(Exception):
    """The endpoint answered more than anybody asked for; what came was thrown away."""

    def __init__(self) -> None:
        super().__init__("the endpoint's answer is too long")


class Endpoint:
    """POST of JSON to one URL; `duration_seconds` observes each call that was answered."""

    def __init__(
        self,
        url: str,
        api_key: SecretStr | None,
        *,
        timeout_seconds: float,
        duration_seconds: Histogram,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        headers = {"content-type": "application/json"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key.get_secret_value()}"
        self._url, self._timeout_seconds, self._duration_seconds = url, timeout_seconds, duration_seconds
        self._limit_bytes = limit_bytes
        self._client = httpx2.AsyncClient(
            headers=headers, timeout=httpx2.Timeout(timeout_seconds, connect=CONNECT_SECONDS)
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def post(self, body: Mapping[str, Any]) -> bytes:
        """The answer's body; raises Refused, Oversized or httpx2.HTTPError when no attempt in time got one."""
        content = orjson.dumps(body)
        async for attempt in stamina.retry_context(
            on=self._may_pass,
            attempts=ATTEMPTS,
            timeout=self._timeout_seconds,
            wait_initial=FIRST_WAIT_SECONDS,
            wait_max=2.0,
            wait_jitter=2 * FIRST_WAIT_SECONDS,
        ):
            with attempt:
                started = time.perf_counter()
                answer = await self._read(content)
                self._duration_seconds.observe(time.perf_counter() - started)
                return answer
        raise AssertionError("stamina gives at least one attempt")

    async def _read(self, content: bytes) -> bytes:
        answer = bytearray()
        async with self._client.stream("POST", self._url, content=content) as response:
            if response.status_code != 200:
                raise Refused(response.status_code, _retry_after_seconds(response.headers))
            async for chunk in response.aiter_bytes():
                answer += chunk
                if len(answer) > self._limit_bytes:
                    raise Oversized
        return bytes(answer)

    def _may_pass(self, error: Exception) -> bool | float:
        """Whether a retry is worth it, or how many seconds the endpoint asked for."""
        if isinstance(error, Refused):
            wait_seconds = error.retry_after_seconds
            if error.status not in RETRIED or (wait_seconds or 0) >= self._timeout_seconds:
                return False
            return True if wait_seconds is None else wait_seconds
        return isinstance(error, httpx2.TransportError)


def _retry_after_seconds(headers: httpx2.Headers) -> float | None:
    """Retry-After in seconds; a date is read against the answer's own Date, so no clock of ours matters."""
    value = headers.get("retry-after", "")
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        until, at = parsedate_to_datetime(value), parsedate_to_datetime(headers.get("date", ""))
        return max((until - at).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None
