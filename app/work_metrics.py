"""What operations sees of slow work and of what was done again: every Prometheus metric of theirs as an object.

Invariant: as in app.telemetry, no label holds text, and bounded label sets start at zero.
"""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from app.telemetry import LATENCY_SECONDS

WORK_REPEATED = Counter(
    "mneme_db_work_repeated_total",
    "Requests and runs done again, because the database undid them (deadlock) or an index was damaged.",
    ["reason"],
)
OPERATIONS_SUBMITTED = Counter("mneme_operations_submitted_total", "Operations accepted.", ["kind"])
OPERATION_ATTEMPTS = Counter(
    "mneme_operation_attempts_total", "Attempts at operations; `retried` will be tried again.", ["kind", "outcome"]
)
OPERATION_SECONDS = Histogram(
    "mneme_operation_attempt_seconds",
    "Time of one attempt.",
    ["kind"],
    buckets=(0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300),
)
OPERATIONS_WAITING = Gauge(
    "mneme_operations",
    "Operations that have not ended, in the whole database: use max(), never sum().",
    ["state"],
    multiprocess_mode="livemax",
)
OPERATIONS_OLDEST_SECONDS = Gauge(
    "mneme_operations_oldest_queued_seconds",
    "Age of the oldest queued operation: use max(), never sum().",
    multiprocess_mode="livemax",
)
EXTRACTIONS = Counter(
    "mneme_extractions_total", "Conversations read, by what was found; failed is never no_facts.", ["outcome"]
)
EXTRACTED_MEMORIES = Counter(
    "mneme_extracted_memories_total", "Facts of conversations that were offered as memories.", ["outcome"]
)

NLI_REQUESTS = Counter("mneme_nli_requests_total", "Writes that asked whether they contradict a memory.", ["outcome"])
NLI_QUEUE_DEPTH = Gauge("mneme_nli_queue_depth", "Pairs waiting for the model.", multiprocess_mode="livesum")
NLI_QUEUE_WAIT_SECONDS = Histogram(
    "mneme_nli_queue_wait_seconds", "Time a pair waited for the model.", buckets=LATENCY_SECONDS
)
NLI_DURATION_SECONDS = Histogram(
    "mneme_nli_duration_seconds", "Time of one batch in the model.", buckets=LATENCY_SECONDS
)
NLI_BATCH_SIZE = Histogram("mneme_nli_batch_size", "Pairs in one batch.", buckets=(1, 2, 4, 8, 16, 32, 64))
JUDGEMENT_DEGRADED = Counter(
    "mneme_judgement_degraded_total", "Writes judged without a source of conflicts that is configured.", ["reason"]
)

WEBHOOK_DELIVERIES = Counter(
    "mneme_webhook_deliveries_total", "Attempts to tell a webhook; `retried` will be tried again.", ["outcome"]
)
WEBHOOK_DURATION_SECONDS = Histogram("mneme_webhook_duration_seconds", "Time of one attempt.", buckets=LATENCY_SECONDS)
WEBHOOKS_DISABLED = Counter("mneme_webhooks_disabled_total", "Webhooks switched off, by why.", ["reason"])
WEBHOOKS_PENDING = Gauge(
    "mneme_webhook_pending",
    "Deliveries that wait, in the whole database: use max(), never sum().",
    multiprocess_mode="livemax",
)
WEBHOOKS_OLDEST_SECONDS = Gauge(
    "mneme_webhook_oldest_pending_seconds",
    "Age of the oldest event not told yet: use max(), never sum().",
    multiprocess_mode="livemax",
)

MEMORIES_FORGOTTEN = Counter("mneme_memories_forgotten_total", "Memories archived by a rule.", ["rule"])
MEMORIES_CONSOLIDATED = Counter(
    "mneme_memories_consolidated_total", "Memories merged, overruled or told in a summary, by the job or why.", ["job"]
)
PAIRS_APART = Counter("mneme_pairs_apart_total", "Pairs that were candidates for the same, and are not.")
SUMMARIES = Counter("mneme_summaries_total", "Summaries made of old memories, by whom.", ["by"])
CONSOLIDATION_DEGRADED = Counter(
    "mneme_consolidation_degraded_total", "What a run of consolidation could not ask, embed or believe.", ["reason"]
)
WRITES_REFUSED = Counter("mneme_writes_refused_total", "Writes beyond a quota whose policy refuses them.", ["reason"])
MEMORIES_COOLED = Counter("mneme_memories_cooled_total", "Memories made cold.")
MEMORIES_WARMED = Counter("mneme_memories_warmed_total", "Cold memories that were used and are warm again.")
REEMBEDDED = Counter(
    "mneme_reembedded_total",
    "Memories that were to get their vector of another model; `failed` ones are tried again.",
    ["outcome"],
)
REEMBED_LACKING = Gauge(
    "mneme_reembed_lacking",
    "Memories that lack their vector of the model that the store moves to or has left: use max(), never sum().",
    ["state"],
    multiprocess_mode="livemax",
)
MEMORIES_PURGED = Counter("mneme_memories_purged_total", "Archived memories deleted at the end of their grace time.")
MEMORIES_REINFORCED = Counter("mneme_memories_reinforced_total", "Memories that gained importance by use.")
SUBJECTS_ERASED = Counter("mneme_subjects_erased_total", "Users erased with all that was theirs.")

_BOUNDED: Final = (
    (WRITES_REFUSED, (("subject_quota",), ("tenant_quota",))),
    (NLI_REQUESTS, (("ok",), ("failed",), ("rejected",))),
    (JUDGEMENT_DEGRADED, (("nli_unavailable",), ("llm_unavailable",), ("llm_unusable",))),
    (MEMORIES_CONSOLIDATED, (("dedup",), ("deprecate",), ("validity_ended",), ("summarise",))),
    (REEMBEDDED, (("ok",), ("failed",), ("changed",))),
    (REEMBED_LACKING, (("building",), ("previous",))),
    (SUMMARIES, (("llm",), ("rule",))),
    (CONSOLIDATION_DEGRADED, tuple((reason,) for reason in (
        "llm_unavailable", "llm_unusable", "questions_used_up", "embedder_unavailable", "invented"
    ))),
    (WORK_REPEATED, (("undone",), ("damaged",))),
    (OPERATIONS_SUBMITTED, (("extract",),)),
    (OPERATION_ATTEMPTS, tuple(
        ("extract", outcome) for outcome in ("succeeded", "failed", "retried", "lost", "put_back")
    )),
    (OPERATIONS_WAITING, (("queued",), ("running",))),
    (EXTRACTIONS, (("facts",), ("no_facts",), ("failed",))),
    (EXTRACTED_MEMORIES, (("created",), ("duplicate",), ("superseded",), ("outdated",), ("filtered",))),
    (WEBHOOK_DELIVERIES, (("delivered",), ("failed",), ("retried",), ("lost",))),
    (WEBHOOKS_DISABLED, (("failing",), ("gone",))),
)  # fmt: skip
for _metric, _label_sets in _BOUNDED:
    for _labels in _label_sets:
        _metric.labels(*_labels)
