"""What operations sees: every Prometheus metric as an object (mneme_db_errors_total is DB_ERRORS), and JSON log lines.

Invariant: neither a label nor a log field ever holds memory text, query text or a secret. Label sets are bounded and
start at zero; errors are logged as type and frames, because messages of drivers quote the data.
"""

import logging
import os
import sys
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Final, TypedDict, Unpack
from uuid import UUID

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from pydantic_core import to_json

LATENCY_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
"""Buckets of OpenTelemetry's http.server.request.duration, with two finer ones because a search takes milliseconds."""

OPERATIONS: Final = (
    "write", "write_batch", "read", "list", "history", "update", "delete", "search", "context", "profile", "feedback",
    "lineage", "restore", "review", "session", "extract", "operation", "webhook", "settings", "policy", "hold", "erase",
    "job",
)  # fmt: skip
OUTCOMES: Final = ("ok", "refused", "failed")
SEARCH_STAGES: Final = ("embed", "query", "resident", "measure", "cold", "database", "ranking", "hydrate", "rerank")
PURPOSES: Final = ("extract", "judge", "summarise")
DEGRADATIONS: Final = ("embedding_unavailable", "embedding_pending", "rerank_unavailable")

BUILD_INFO = Gauge(
    "mneme_build_info",
    "1: what is running; 0: a model that this process left for another.",
    ["version", "python", "embedding_model"],
    multiprocess_mode="livemax",
)

HTTP_REQUESTS = Counter("mneme_http_requests_total", "Requests answered.", ["method", "route", "status_class"])
HTTP_REQUEST_DURATION_SECONDS = Histogram(
    "mneme_http_request_duration_seconds",
    "Time from the request's first byte to the answer's last.",
    ["method", "route"],
    buckets=LATENCY_SECONDS,
)
HTTP_REQUESTS_IN_PROGRESS = Gauge(
    "mneme_http_requests_in_progress", "Requests being answered now.", multiprocess_mode="livesum"
)
AUTH_FAILURES = Counter(
    "mneme_auth_failures_total", "Requests refused at the door.", ["reason"]
)  # malformed, unknown, revoked, expired, missing, scope

OPERATION_DURATION_SECONDS = Histogram(
    "mneme_operation_duration_seconds",
    "Time of one use case.",
    ["operation", "outcome"],
    buckets=LATENCY_SECONDS,
)
WRITE_OUTCOMES: Final = ("created", "duplicate", "superseded", "outdated", "filtered", "quarantined")
MEMORY_WRITES = Counter("mneme_memory_writes_total", "Memories offered, by what became of them.", ["outcome"])
CONFLICT_SOURCES: Final = ("key", "same_text", "update_words", "opposite", "nli", "llm")
CONFLICT_VERDICTS: Final = ("retired", "review", "accepted", "rejected")
CONFLICTS = Counter(
    "mneme_conflicts_total",
    "Memories that a new one overruled, or would have overruled: then what somebody decided, too.",
    ["source", "verdict"],
)
MEMORIES_RESTORED = Counter("mneme_memories_restored_total", "Memories brought back by hand.", ["status"])
WRITE_GROUP_SIZE = Histogram(
    "mneme_write_group_size", "Writes that shared one transaction.", buckets=(1, 2, 4, 8, 16, 32, 64)
)
WRITE_GROUP_LEFT = Counter(
    "mneme_write_group_left_total", "Writes put out of their group, to be tried alone.", ["reason"]
)
FEEDBACK = Counter("mneme_feedback_total", "Verdicts on memories that had an effect.", ["verdict"])
IDEMPOTENCY_REPLAYS = Counter("mneme_idempotency_replays_total", "Stored answers given again.")

SESSION_MESSAGES = Counter("mneme_session_messages_total", "Messages taken into session windows.", ["role"])
SESSION_EVICTIONS = Counter("mneme_session_evictions_total", "Messages that gave way to newer ones.")
SESSIONS_ENDED = Counter("mneme_sessions_ended_total", "Conversations forgotten, by why.", ["reason"])

SEARCH_STAGE_DURATION_SECONDS = Histogram(
    "mneme_search_stage_duration_seconds", "Time of one stage of a search.", ["stage"], buckets=LATENCY_SECONDS
)
SEARCH_RESULTS = Histogram("mneme_search_results", "Hits returned by a search.", buckets=(0, 1, 2, 5, 10, 20, 50, 100))
SEARCH_UNDERFILLED = Counter("mneme_search_underfilled_total", "Searches that an index limit cut short.", ["reason"])
INDEX_FAULTS = Gauge("mneme_index_faults", "Indexes that are missing or invalid: use max(), never sum().", ["state"])
RECALL_PROBES = Counter(
    "mneme_recall_probes_total", "Searches by vector index compared with an exact scan.", ["outcome"]
)
RECALL_PROBE_RATIO = Histogram(
    "mneme_recall_probe_ratio",
    "Share of the truly nearest ten that the vector index found.",
    buckets=(0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0),
)
SEARCH_RESIDENT = Counter("mneme_search_resident_total", "Searches of subjects that are held in memory.", ["outcome"])
RESIDENT_BYTES = Gauge(
    "mneme_resident_bytes", "What the subjects held in memory take, about.", multiprocess_mode="livesum"
)
SEARCH_REPLICA = Counter("mneme_search_replica_total", "Searches put to the read replica.", ["outcome"])
SEARCH_DEGRADED = Counter("mneme_search_degraded_total", "Searches answered without one arm.", ["reason"])
USAGE_HITS = Counter("mneme_usage_hits_total", "Hits noted for access counts.", ["outcome"])

EMBEDDING_REQUESTS = Counter("mneme_embedding_requests_total", "Texts that asked for a vector.", ["kind", "outcome"])
EMBEDDING_DURATION_SECONDS = Histogram(
    "mneme_embedding_duration_seconds", "Time of one batch in the model.", buckets=LATENCY_SECONDS
)
EMBEDDING_BATCH_SIZE = Histogram("mneme_embedding_batch_size", "Texts in one batch.", buckets=(1, 2, 4, 8, 16, 32, 64))
EMBEDDING_QUEUE_DEPTH = Gauge(
    "mneme_embedding_queue_depth", "Texts waiting for the model.", multiprocess_mode="livesum"
)
EMBEDDING_QUEUE_WAIT_SECONDS = Histogram(
    "mneme_embedding_queue_wait_seconds", "Time a text waited for the model.", buckets=LATENCY_SECONDS
)
EMBEDDING_CACHE = Counter("mneme_embedding_cache_total", "Query vectors looked up in the cache.", ["result"])
EMBEDDING_DEFERRED = Counter(
    "mneme_embedding_deferred_total", "Memories accepted without a vector because the embedder was away or slow."
)
EMBEDDING_TRUNCATED = Counter("mneme_embedding_truncated_total", "Queries too long even for several windows.")
EMBEDDING_GENERATION = Gauge(
    "mneme_embedding_generation", "Number of the generation that this process serves.", multiprocess_mode="livemax"
)
EMBEDDING_PENDING = Gauge(
    "mneme_embedding_pending", "Memories without a vector, in the whole database: use max(), never sum()."
)
EMBEDDING_OLDEST_PENDING_SECONDS = Gauge(
    "mneme_embedding_oldest_pending_seconds", "Age of the oldest memory without a vector: use max(), never sum()."
)
RERANK_REQUESTS = Counter("mneme_rerank_requests_total", "Searches that asked for a reranked order.", ["outcome"])
RERANK_DURATION_SECONDS = Histogram(
    "mneme_rerank_duration_seconds", "Time of one batch in the reranker.", buckets=LATENCY_SECONDS
)
RERANK_BATCH_SIZE = Histogram("mneme_rerank_batch_size", "Pairs in one batch.", buckets=(1, 2, 4, 8, 16, 32, 64))
RERANK_QUEUE_DEPTH = Gauge(
    "mneme_rerank_queue_depth", "Pairs waiting for a local reranker.", multiprocess_mode="livesum"
)
RERANK_QUEUE_WAIT_SECONDS = Histogram(
    "mneme_rerank_queue_wait_seconds", "Time a pair waited for a local reranker.", buckets=LATENCY_SECONDS
)
RERANK_TRUNCATED = Counter("mneme_rerank_truncated_total", "Pairs whose query was too long for a local reranker.")
LLM_REQUESTS = Counter("mneme_llm_requests_total", "Questions to the language model.", ["purpose", "outcome"])
LLM_DURATION_SECONDS = Histogram(
    "mneme_llm_duration_seconds", "Time of one answered call.", buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80)
)
LLM_TOKENS = Counter("mneme_llm_tokens_total", "Tokens as the endpoint counts them.", ["purpose", "direction"])
LLM_COST = Counter("mneme_llm_cost_total", "What the tokens cost, in the currency of the configured prices.")
LLM_ANSWERS = Counter("mneme_llm_answers_total", "Answers read, by what was wrong with them.", ["fault"])
EXTRACTION_FACTS = Counter("mneme_extraction_facts_total", "Facts read out of conversations, by who.", ["source"])
EXTRACTION_DEGRADED = Counter(
    "mneme_extraction_degraded_total", "Extractions without all that is configured.", ["reason"]
)
CIRCUIT_BREAKER_STATE = Gauge(
    "mneme_circuit_breaker_state", "0 closed, 1 half open, 2 open.", ["name"], multiprocess_mode="livemax"
)
CIRCUIT_BREAKER_TRANSITIONS = Counter(
    "mneme_circuit_breaker_transitions_total", "Changes of a breaker's state.", ["name", "state"]
)

DB_POOL_CONNECTIONS = Gauge(
    "mneme_db_pool_connections", "Connections of the pool.", ["state"], multiprocess_mode="livesum"
)
DB_POOL_ACQUIRE_SECONDS = Histogram(
    "mneme_db_pool_acquire_seconds", "Time to get a connection.", buckets=LATENCY_SECONDS
)
DB_POOL_TIMEOUTS = Counter("mneme_db_pool_timeouts_total", "Requests that got no connection in time.")
DB_ERRORS = Counter("mneme_db_errors_total", "Errors of the database by SQLSTATE class.", ["sqlstate_class"])

EVENT_LOOP_LAG_SECONDS = Histogram(
    "mneme_event_loop_lag_seconds",
    "How much later than asked the event loop ran a sampler.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
EVENT_LOOP_STALLS = Counter("mneme_event_loop_stalls_total", "Lags of more than 250 ms.")

JOB_RUNS = Counter("mneme_job_runs_total", "Runs of a job.", ["job", "outcome"])
JOB_DURATION_SECONDS = Histogram(
    "mneme_job_duration_seconds", "Time of one run.", ["job"], buckets=(0.01, 0.1, 1, 10, 60, 300, 1800, 7200)
)
JOB_ROWS = Counter("mneme_job_rows_total", "Rows that a job changed.", ["job"])
JOB_LAST_SUCCESS_TIMESTAMP_SECONDS = Gauge(
    "mneme_job_last_success_timestamp_seconds", "When the job last ended well.", ["job"]
)
JOB_LEASE_LOST = Counter("mneme_job_lease_lost_total", "Runs that lost their lease to another process.", ["job"])

_BOUNDED: Final = (
    (AUTH_FAILURES, (("missing",), ("malformed",), ("unknown",), ("revoked",), ("expired",), ("scope",))),
    (OPERATION_DURATION_SECONDS, tuple((op, outcome) for op in OPERATIONS for outcome in OUTCOMES)),
    (MEMORY_WRITES, tuple((outcome,) for outcome in WRITE_OUTCOMES)),
    (CONFLICTS, tuple((source, verdict) for source in CONFLICT_SOURCES for verdict in CONFLICT_VERDICTS)),
    (MEMORIES_RESTORED, (("deprecated",), ("duplicate",), ("archived",))),
    (WRITE_GROUP_LEFT, (("locked",), ("failed",))),
    (FEEDBACK, (("useful",), ("wrong",), ("outdated",))),
    (SESSION_MESSAGES, (("user",), ("assistant",), ("tool",), ("system",))),
    (SESSIONS_ENDED, (("asked",), ("idle",))),
    (SEARCH_STAGE_DURATION_SECONDS, tuple((stage,) for stage in SEARCH_STAGES)),
    (SEARCH_UNDERFILLED, (("ann_budget",), ("timeout",), ("index_damaged",))),
    (INDEX_FAULTS, (("missing",), ("invalid",))),
    (SEARCH_DEGRADED, tuple((reason,) for reason in DEGRADATIONS)),
    (SEARCH_RESIDENT, (("held",), ("busy",))),
    (SEARCH_REPLICA, (("used",), ("behind",), ("failed",), ("open",))),
    (RECALL_PROBES, (("ok",), ("failed",))),
    (USAGE_HITS, (("flushed",), ("dropped",))),
    (EMBEDDING_REQUESTS, tuple(
        (kind, outcome)
        for kind in ("query", "document")
        for outcome in ("ok", "failed", "rejected", "cancelled")
    )),
    (EMBEDDING_CACHE, (("hit",), ("miss",))),
    (RERANK_REQUESTS, (("ok",), ("failed",), ("rejected",), ("cancelled",))),
    (LLM_REQUESTS, tuple(
        (purpose, outcome)
        for purpose in PURPOSES
        for outcome in ("ok", "unusable", "unavailable", "rejected", "cancelled")
    )),
    (LLM_TOKENS, tuple((purpose, direction) for purpose in PURPOSES for direction in ("input", "output"))),
    (LLM_ANSWERS, tuple((fault,) for fault in ("none", "wrapped", "empty", "cut_off", "not_json", "wrong_shape"))),
    (EXTRACTION_FACTS, (("rules",), ("model",), ("rejected",))),
    (EXTRACTION_DEGRADED, (("llm_unavailable",),)),
    (CIRCUIT_BREAKER_STATE, (("embedding",), ("rerank",), ("llm",), ("replica",))),
    (CIRCUIT_BREAKER_TRANSITIONS, tuple(
        (name, state) for name in ("embedding", "rerank", "llm", "replica") for state in ("closed", "half_open", "open")
    )),
    (DB_POOL_CONNECTIONS, (("checked_out",), ("idle",))),
    (DB_ERRORS, tuple((code,) for code in (
        "connection", "08", "22", "23", "40", "42", "53", "55", "57", "58", "XX", "other"
    ))),
)  # fmt: skip
for _metric, _label_sets in _BOUNDED:
    for _labels in _label_sets:
        _metric.labels(*_labels)

_request: ContextVar[dict[str, Any]] = ContextVar("mneme_request")
_process: dict[str, str] = {"service": "mneme", "version": "unknown"}


SHARED_DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable with which processes that answer together count together."""


def exposition() -> bytes:
    """What this process counts, or all that answer together, as Prometheus reads it."""
    registry = REGISTRY
    if SHARED_DIRECTORY in os.environ:
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def forget_process(process_id: int, directory: str) -> None:
    """Take the gauges of a process that ended out of what those of `directory` show together."""
    multiprocess.mark_process_dead(process_id, directory)  # type: ignore[no-untyped-call]


def begin_request(request_id: str) -> dict[str, Any]:
    """Open the note of one request; whatever is logged in its task carries it, and the access line prints it."""
    note: dict[str, Any] = {"request_id": request_id}
    _request.set(note)
    return note


def request_id() -> str | None:
    """The id of the request that this task answers, or None outside of one."""
    note = _request.get(None)
    return None if note is None else str(note["request_id"])


class Facts(TypedDict, total=False):
    """What an access line may say besides the request itself: ids, counts and codes, never text."""

    operation: str
    memory_id: UUID
    tenant_id: UUID
    key_id: UUID | None
    outcome: str
    hits: int
    items: int
    degraded: str
    error_code: str


def annotate(**facts: Unpack[Facts]) -> None:
    """Put facts about this request on its access line.

    `operation` is one of OPERATIONS and also names the request in mneme_operation_duration_seconds.
    """
    if (note := _request.get(None)) is not None:
        note.update(facts)


class search_stage:  # noqa: N801 - reads as the context manager it is
    """Time one of SEARCH_STAGES, also when it fails: `with search_stage("query"):`."""

    __slots__ = ("_histogram", "_started")

    def __init__(self, stage: str) -> None:
        self._histogram = _STAGES[stage]

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._histogram.observe(perf_counter() - self._started)


_STAGES: Final = {stage: SEARCH_STAGE_DURATION_SECONDS.labels(stage) for stage in SEARCH_STAGES}


def write_line(fields: MutableMapping[str, Any]) -> None:
    """Print one JSON line on stdout; a broken stdout never fails a request."""
    with suppress(OSError, ValueError):
        sys.stdout.write(to_json(fields, fallback=lambda value: type(value).__name__).decode() + "\n")
        sys.stdout.flush()


def timestamp() -> str:
    """Now in RFC 3339 with milliseconds and Z, for log lines."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"  # noqa: TID251 - a log line says when


def stamp(event: str, level: str = "info") -> dict[str, Any]:
    """The fields that every line begins with."""
    return {"ts": timestamp(), "level": level, "event": event, **_process}


def configure_logging(*, service: str, version: str, level: str = "INFO") -> None:
    """Send structlog and the standard library's loggers to stdout as JSON lines of `level` and above."""
    _process.update(service=service, version=version)
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[_finish],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=_LineLogger,
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[_StandardHandler()], level=max(threshold, logging.WARNING), force=True)
    for name in ("uvicorn", "uvicorn.error", "alembic", "workers", "app"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
        logger.setLevel(threshold)


def log() -> Any:
    """The logger of the process: `log().info("event", field=value)`."""
    return structlog.get_logger()


def frames(error: BaseException) -> dict[str, Any]:
    """An error as its type and where it was raised, without its message."""
    stack = traceback.extract_tb(error.__traceback__)[-12:]
    return {
        "error": f"{type(error).__module__}.{type(error).__qualname__}",
        "frames": [f"{'/'.join(frame.filename.split('/')[-3:])}:{frame.lineno} {frame.name}" for frame in stack],
    }


class _LineLogger:
    """Where structlog hands over a finished line."""

    def __init__(self, *_: Any) -> None:
        pass

    def msg(self, **fields: Any) -> None:
        write_line(fields)

    debug = info = warning = error = critical = exception = msg


class _StandardHandler(logging.Handler):
    """Records of other libraries: the first line, and their arguments only where we know what these are."""

    trusted: Final = ("uvicorn", "alembic", "apscheduler", "workers", "app")

    def emit(self, record: logging.LogRecord) -> None:
        trusted = record.name.split(".")[0] in self.trusted
        try:
            text = record.getMessage() if trusted else str(record.msg)
        except (TypeError, ValueError):
            text = str(record.msg)
        fields = stamp(text.split("\n")[0].strip(), record.levelname.lower()) | {"logger": record.name}
        if record.exc_info and record.exc_info[1]:
            fields |= frames(record.exc_info[1])
        write_line(fields)


def _finish(_: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    fields = stamp(event.pop("event"), "error" if method == "exception" else method)
    error = event.pop("exc_info", None)
    error = sys.exc_info()[1] if error is True else error
    if (request := request_id()) is not None:
        fields["request_id"] = request
    fields |= event
    return fields | frames(error) if isinstance(error, BaseException) else fields
