"""Every way in which Mneme says no. A detail is written by us for the caller: it never holds memory text or input.

MnemeError                      status code
├── Malformed                      400 malformed_body
├── Unauthenticated                401 unauthenticated
├── Forbidden                      403 forbidden
├── NotFound                       404 not_found (also for whatever another tenant or user owns)
├── MethodNotAllowed               405 method_not_allowed
├── Conflict                       409 conflict
│   ├── IdempotencyInProgress      409 idempotency_in_progress
│   ├── DuplicateContent           409 duplicate_content
│   ├── NotRestorable              409 not_restorable
│   ├── KeyTaken                   409 key_taken
│   └── ReviewDecided              409 review_decided
├── VersionConflict                412 version_conflict
├── TooLarge                       413 body_too_large
├── UnsupportedMedia               415 unsupported_media_type
├── Invalid                        422 validation_failed
│   └── IdempotencyReused          422 idempotency_key_reused
├── PreconditionRequired           428 precondition_required
├── LlmUnusable                    502 llm_answer_unusable
├── Unavailable                    503 unavailable, with Retry-After
│   ├── EmbeddingUnavailable       503 embedding_unavailable
│   ├── LlmUnavailable             503 llm_unavailable
│   ├── DatabaseUnavailable        503 database_unavailable
│   │   └── Undone                     503 database_unavailable (the transaction was rolled back whole)
│   ├── PoolExhausted              503 pool_exhausted
│   └── StorageDamaged             503 storage_damaged
├── DeadlineExceeded               504 deadline_exceeded, with Retry-After
│   └── Silent                     504 deadline_exceeded (no answer at all)
└── StorageFull                    507 storage_full, with Retry-After
StartupRefused                  no HTTP: the start stops with its message and exit code
VerificationFailed              no HTTP: a backup is not what it should be; exit code 5
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

EXIT_CONFIGURATION = 3
EXIT_DEPENDENCY = 4
EXIT_VERIFICATION = 5
EXIT_HELD = 75  # what sysexits.h calls a temporary failure


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field: an RFC 6901 pointer into the body, a stable code and a sentence, never the value."""

    pointer: str
    code: str
    detail: str


class MnemeError(Exception):
    """A refusal with a stable code that the API renders as an RFC 9457 problem."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"
    default_retry_after_seconds: ClassVar[float | None] = None

    def __init__(
        self,
        detail: str = "",
        *,
        errors: Iterable[FieldError] = (),
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(detail or self.title)
        self.detail = detail or self.title
        self.errors = tuple(errors)
        self.retry_after_seconds = (
            self.default_retry_after_seconds if retry_after_seconds is None else retry_after_seconds
        )


class Malformed(MnemeError):
    """The body is not JSON that we read: syntax, encoding, depth, numbers or characters."""

    status, code, title = 400, "malformed_body", "The body cannot be read"


class Unauthenticated(MnemeError):
    """No valid key came with the request; the same answer for every cause."""

    status, code, title = 401, "unauthenticated", "A valid API key is required"


class Forbidden(MnemeError):
    """The key is valid but lacks the scope, or is bound to another user or agent than the body names."""

    status, code, title = 403, "forbidden", "The key does not allow this"


class NotFound(MnemeError):
    """Unknown here, whether it does not exist or belongs to somebody else."""

    status, code, title = 404, "not_found", "Not found"


class MethodNotAllowed(MnemeError):
    """The path exists, but not with this method."""

    status, code, title = 405, "method_not_allowed", "This path does not take that method"


class Conflict(MnemeError):
    """The request contradicts what is stored."""

    status, code, title = 409, "conflict", "Conflict with the stored state"


class IdempotencyInProgress(Conflict):
    """The first request with this Idempotency-Key has not been answered yet."""

    code, title = "idempotency_in_progress", "A request with this Idempotency-Key is in progress"
    default_retry_after_seconds = 1.0


class DuplicateContent(Conflict):
    """An edit or a restore would make this memory equal to another active one of its scope."""

    code, title = "duplicate_content", "Another memory already says this"


class NotRestorable(Conflict):
    """A memory whose status cannot be undone by a restore."""

    code, title = "not_restorable", "This memory cannot be restored"


class KeyTaken(Conflict):
    """An edit would put a second active memory into the same slot."""

    code, title = "key_taken", "Another active memory holds this key"


class ReviewDecided(Conflict):
    """A decision against the one that was already taken of the same review."""

    code, title = "review_decided", "This review was decided otherwise"


class QuotaExceeded(Conflict):
    """The user or the tenant has as many active memories as its policy allows, and the policy refuses more."""

    code, title = "quota_exceeded", "The quota of memories is used up"


class VersionConflict(MnemeError):
    """If-Match names a version that is not the current one."""

    status, code, title = 412, "version_conflict", "The memory has changed"


class TooLarge(MnemeError):
    """The body is larger than the route accepts."""

    status, code, title = 413, "body_too_large", "The body is too large"


class UnsupportedMedia(MnemeError):
    """The body is not declared as JSON in UTF-8."""

    status, code, title = 415, "unsupported_media_type", "Only application/json is accepted"


class Invalid(MnemeError):
    """A field is unknown, missing, blank, of the wrong type or out of range; `errors` names each."""

    status, code, title = 422, "validation_failed", "The request is not valid"


class IdempotencyReused(Invalid):
    """The Idempotency-Key was used before with another body."""

    code, title = "idempotency_key_reused", "This Idempotency-Key belongs to another request"


class PreconditionRequired(MnemeError):
    """The configuration demands If-Match for this verb."""

    status, code, title = 428, "precondition_required", "If-Match is required"


class LlmUnusable(MnemeError):
    """The language model answered, but even when asked again with nothing that can be used."""

    status, code, title = 502, "llm_answer_unusable", "The language model gave no usable answer"


class Unavailable(MnemeError):
    """Something that the service needs does not answer now; a retry is worth it."""

    status, code, title = 503, "unavailable", "Temporarily unavailable"
    default_retry_after_seconds = 1.0


class EmbeddingUnavailable(Unavailable):
    """The embedder is full, failing, switched off by its breaker, or gave a vector that cannot be used."""

    code, title = "embedding_unavailable", "The embedder does not answer now"


class LlmUnavailable(Unavailable):
    """The language model is down, busy, switched off by its breaker, or did not answer in time."""

    code, title = "llm_unavailable", "The language model does not answer now"


class DatabaseUnavailable(Unavailable):
    """The database cannot be reached or broke the connection; the transaction was not committed for certain."""

    code, title = "database_unavailable", "The database does not answer now"


class Undone(DatabaseUnavailable):
    """The server rolled a transaction back whole for the sake of another (deadlock, serialization): do it again."""


class PoolExhausted(Unavailable):
    """No database connection became free in time."""

    code, title = "pool_exhausted", "All database connections are busy"


class StorageDamaged(Unavailable):
    """The database met pages or files that are not as it wrote them; see `mneme reindex` for a vector index."""

    code, title = "storage_damaged", "The database reports damage"
    default_retry_after_seconds = 60.0  # somebody must repair it


class DeadlineExceeded(MnemeError):
    """The work took longer than its limit and was stopped; nothing was written."""

    status, code, title = 504, "deadline_exceeded", "The request took too long"
    default_retry_after_seconds = 1.0


class Silent(DeadlineExceeded):
    """The server did not answer at all, so nobody who was served with it is to blame."""


class StorageFull(MnemeError):
    """The database has no room left; reads still work."""

    status, code, title = 507, "storage_full", "The storage is full"
    default_retry_after_seconds = 60.0  # somebody must make room


class StartupRefused(Exception):
    """The process must not start; exit code 3 when the configuration is wrong, 4 when a dependency is missing."""

    def __init__(self, message: str, *, dependency: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = EXIT_DEPENDENCY if dependency else EXIT_CONFIGURATION


class VerificationFailed(Exception):
    """A backup is damaged, incomplete, not readable with the keys at hand, or gives back something else; exit code 5.

    `reason` is a short stable code for metrics, `message` a sentence for people.
    """

    exit_code = EXIT_VERIFICATION

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message
