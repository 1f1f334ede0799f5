"""Wire shapes of requests, with their limits, and how they become what the rooms take.

Invariant: nothing is silently ignored or cut: an unknown field, a blank scope or a text over its limit is refused.
"""

import math
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from fastapi import Query as Parameter
from pydantic import AfterValidator, Field, JsonValue, field_validator, model_validator
from pydantic_core import PydanticCustomError

from app.api.body import Identifier, Moment, Wire
from app.language import zone_of
from app.memory import ContentType, Kind
from app.recall import Clock, Filters, Fusion, TimeDecay
from app.remember import DEFAULT_KIND, IfTrivial, NewMemory

CONTENT_CHARACTERS = 8_000
QUERY_CHARACTERS = 4_000
TAGS_MAX = 64
METADATA_MEMBERS = 64
LONGEST_NAME = 128
METADATA_DEPTH = 8
BATCH_ITEMS = 500
TOKENS_MAX = 32_000
WHY_NOT_MAX = 20


def not_blank(text: str) -> str:
    if text and text.isprintable() and not text.isspace():
        return text
    if not any(character.isprintable() and not character.isspace() for character in text):
        raise PydanticCustomError("blank", "must not be blank")
    return text


def _depth(value: JsonValue) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _flat_enough(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if len(value) > METADATA_MEMBERS or "" in value or max(map(len, value), default=0) > LONGEST_NAME:
        raise PydanticCustomError("metadata", "at most 64 members with names of 1 to 128 characters")
    if _depth(value) > METADATA_DEPTH:
        raise PydanticCustomError("metadata", "at most 8 levels deep")
    return value


def _zone_name(name: str) -> str:
    try:
        zone_of(name)
    except ValueError:
        raise PydanticCustomError("timezone", "must be like Asia/Shanghai or +08:00") from None
    return name


Content = Annotated[str, Field(max_length=CONTENT_CHARACTERS), AfterValidator(not_blank)]
QueryText = Annotated[str, Field(max_length=QUERY_CHARACTERS), AfterValidator(not_blank)]
Tags = Annotated[list[Identifier], Field(max_length=TAGS_MAX)]
Metadata = Annotated[dict[str, JsonValue], AfterValidator(_flat_enough)]
Importance = Annotated[float, Field(ge=1, le=5)]
Share = Annotated[float, Field(ge=0, le=1)]
MemoryId = Annotated[UUID, Field(strict=False)]
ZoneName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_zone_name)]


class Validity(Wire):
    """When a memory holds."""

    valid_from: Moment | None = None
    valid_to: Moment | None = None

    @model_validator(mode="after")
    def ordered(self) -> Self:
        if self.valid_from is not None and self.valid_to is not None and self.valid_from >= self.valid_to:
            raise PydanticCustomError("range", "valid_from must be before valid_to")
        return self


class MemoryIn(Validity):
    """A memory to store. Limits count characters, the same for every language."""

    user_id: Identifier | None = Field(None, description="Whom it is about; null: the tenant's shared subject.")
    agent_id: Identifier | None = Field(None, description="Null: for all agents; else private to this agent.")
    content: Content = Field(examples=["我对芒果过敏，不能吃任何芒果相关的食物"])
    content_type: ContentType = "text"
    kind: Kind = DEFAULT_KIND  # type: ignore[assignment]
    key: Identifier | None = Field(None, examples=["profile.company_name"])
    importance: Importance | None = Field(
        None, description="1 to 5; default by kind and by what the text says; what is kept at 1 expires after 7 days."
    )
    tags: Tags = Field(default=[])
    metadata: Metadata = Field(default={})
    source: Identifier | None = None
    session_id: Identifier | None = None
    event_at: Moment | None = None
    expires_at: Moment | None = None
    pinned: bool = False
    if_trivial: IfTrivial = Field(
        "filter",
        description="What becomes of small talk (greetings, thanks, fillers, sums on the way): `filter` leaves it out; "
        "`expire` stores it, at importance 1 unless one is given, and what has importance 1 expires; `keep` stores it "
        "for good.",
    )

    def to_new(self, user_id: str | None, agent_id: str | None) -> NewMemory:
        return NewMemory(
            user_id=user_id, agent_id=agent_id, content=self.content, content_type=self.content_type, kind=self.kind,
            key=self.key, importance=self.importance, tags=tuple(dict.fromkeys(self.tags)), metadata=self.metadata,
            source=self.source, session_id=self.session_id, event_at=self.event_at, valid_from=self.valid_from,
            valid_to=self.valid_to, expires_at=self.expires_at, pinned=self.pinned, if_trivial=self.if_trivial,
        )  # fmt: skip


class BatchIn(Wire):
    """Up to 500 memories; each stands or falls alone, so items are validated one by one."""

    items: list[Any] = Field(
        min_length=1, max_length=BATCH_ITEMS, json_schema_extra={"items": {"$ref": "#/components/schemas/MemoryIn"}}
    )


class MemoryPatch(Validity):
    """Fields to change; those left out stay as they are, null clears."""

    content: Content | None = None
    kind: Kind | None = None
    key: Identifier | None = None
    importance: Importance | None = None
    tags: Tags | None = None
    metadata: Metadata | None = None
    source: Identifier | None = None
    event_at: Moment | None = None
    expires_at: Moment | None = None
    pinned: bool | None = None

    @model_validator(mode="after")
    def sensible(self) -> Self:
        if not self.model_fields_set:
            raise PydanticCustomError("empty", "name at least one field")
        for name in ("content", "kind", "importance", "tags", "metadata", "pinned"):
            if name in self.model_fields_set and getattr(self, name) is None:
                raise PydanticCustomError("null", "{name} cannot be null", {"name": name})
        return self

    def changes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.model_fields_set}


class TagFilter(Wire):
    """Tags of which a hit has any, and tags of which it has all."""

    any: Tags = Field(default=[])
    all: Tags = Field(default=[])


class Range(Wire):
    """A time range with its start, without its end; each with its zone."""

    from_: Moment | None = Field(None, alias="from")
    to: Moment | None = None

    @model_validator(mode="after")
    def ordered(self) -> Self:
        if self.from_ is not None and self.to is not None and self.from_ >= self.to:
            raise PydanticCustomError("range", "from must be before to")
        return self


Scalar = str | bool | int | float | None


class FiltersIn(Wire):
    """Conditions that every hit meets."""

    tags: TagFilter = TagFilter()
    kinds: list[Kind] = Field(default=[])
    content_types: list[ContentType] = Field(default=[])
    created: Range = Range()
    event: Range = Range()
    metadata: dict[str, Scalar] = Field({}, max_length=16, description='Equality, by JSON type: 2 is not "2".')
    session_id: Identifier | None = None
    min_trust: int = Field(0, ge=0, le=100, description="Least trust: 0 to 100, of the key it was written with.")

    @field_validator("metadata")
    @classmethod
    def named(cls, value: dict[str, Scalar]) -> dict[str, Scalar]:
        if any(not 1 <= len(name) <= 128 for name in value):
            raise PydanticCustomError("metadata", "names have 1 to 128 characters")
        return value

    def to_filters(self) -> Filters:
        return Filters(
            tags_any=tuple(self.tags.any), tags_all=tuple(self.tags.all), kinds=tuple(self.kinds),
            content_types=tuple(self.content_types), created_from=self.created.from_, created_to=self.created.to,
            event_from=self.event.from_, event_to=self.event.to, metadata=self.metadata, session_id=self.session_id,
            min_trust=self.min_trust,
        )  # fmt: skip


def _some_weight(weights: Wire) -> Wire:
    if not math.fsum(weights.model_dump().values()) > 0:
        raise PydanticCustomError("weights", "at least one weight must be above 0")
    return weights


class WeightsIn(Wire):
    """Share of each signal in the score; they are scaled to sum 1."""

    similarity: Share = 0.4
    time: Share = 0.2
    importance: Share = 0.2
    keyword: Share = 0.2

    some = model_validator(mode="after")(_some_weight)


class TimeDecayIn(Wire):
    """How the time signal falls with the hours that a clock shows: exp(-per_hour · hours)."""

    per_hour: float = Field(0.01, ge=0, description="0: all memories are equally fresh.")
    clock: Clock = Field(
        "created", description="Hours since it was written, of its event, or last recalled; without these: written."
    )

    def to_decay(self) -> TimeDecay:
        return TimeDecay(self.per_hour, self.clock)


class SearchIn(Wire):
    """A question about one user (and the tenant's shared memories)."""

    query: QueryText = Field(examples=["国庆去杭州要注意什么？"])
    user_id: Identifier | None = Field(None, description="Null: only the tenant's shared memories.")
    agent_id: Identifier | None = Field(
        None, description="Only memories for all agents and those of this one; null: those of every agent."
    )
    top_k: int = Field(10, ge=1, le=100)
    weights: WeightsIn = WeightsIn()
    fusion: Fusion = "weighted"
    similarity_threshold: Share = Field(0.0, description="Least calibrated similarity of a hit.")
    filters: FiltersIn = FiltersIn()
    include_shared: bool = True
    include_deprecated: bool = False
    include_cold: bool = Field(False, description="Also what was not used for so long that it is cold; slower.")
    as_of: Moment | None = Field(
        None, description="Ask as if at this moment: of what was valid and known then. Null: now."
    )
    time_decay: TimeDecayIn = TimeDecayIn()
    diversity: Share | None = Field(
        None, description="How much near-equal hits give way to others; 0: not at all. Null: as configured."
    )
    max_share_per_source: float | None = Field(
        None, gt=0, le=1, description="Largest share of top_k that hits of one source may have. Null: as configured."
    )
    rerank: bool | None = Field(None, description="Let the reranker order the best hits. Null: as configured.")
    explain: bool = False
    why_not: list[MemoryId] = Field(
        [], max_length=WHY_NOT_MAX, description="Ids of which the answer says where they are, and why."
    )


class ContextIn(Wire):
    """What a conversation is about: at least a user or a query."""

    query: QueryText | None = Field(None, description="Null: nothing is searched.", examples=["国庆去杭州要注意什么？"])
    user_id: Identifier | None = Field(None, description="Null: only the tenant's shared memories.")
    agent_id: Identifier | None = None
    session_id: Identifier | None = Field(None, description="Adds the session's window, else what was stored of it.")
    max_memory_tokens: int = Field(2_000, ge=1, le=TOKENS_MAX, description="Most tokens of the whole text.")
    format: Literal["block", "brief"] = Field("block", description="For a model's prompt, or for a colleague.")
    language: Literal["auto", "zh", "en"] = Field("auto", description="Of labels and headings; auto: as the query.")
    timezone: ZoneName = Field("UTC", description="Zone of the text's times.", examples=["Asia/Shanghai", "+08:00"])
    top_k: int = Field(20, ge=1, le=100, description="Most hits for the query.")
    similarity_threshold: Share = 0.0
    filters: FiltersIn = Field(FiltersIn(), description="Conditions on the hits for the query.")
    include_shared: bool = True

    @model_validator(mode="after")
    def about_something(self) -> Self:
        if self.query is None and self.user_id is None:
            raise PydanticCustomError("empty", "name a user_id or a query")
        return self


class ProfileParameters(Wire):
    """Size and looks of a profile."""

    max_tokens: Annotated[int, Field(strict=False, ge=1, le=TOKENS_MAX)] = 1_000
    agent_id: Identifier | None = None
    language: Literal["auto", "zh", "en"] = "auto"
    timezone: ZoneName = "UTC"


ProfileQuery = Annotated[ProfileParameters, Parameter()]


class FeedbackIn(Wire):
    """A verdict on a memory that was shown."""

    verdict: Literal["useful", "wrong", "outdated"]
    query: QueryText | None = Field(None, description="What it was shown for; neither stored nor logged.")


class UndoFeedbackIn(Wire):
    """Which verdict to take back."""

    feedback_id: Annotated[UUID, Field(strict=False)]


class ListParameters(Wire):
    """Conditions and page of a list."""

    user_id: Identifier | None = None
    shared: Annotated[bool, Field(strict=False)] = Field(False, description="Only the tenant's shared memories.")
    agent_id: Identifier | None = None
    kind: Kind | None = None
    key: Identifier | None = None
    tag: Identifier | None = None
    session_id: Identifier | None = None
    status: Literal["active", "deprecated", "duplicate", "quarantined"] = "active"
    created_from: Moment | None = None
    created_to: Moment | None = None
    limit: Annotated[int, Field(strict=False, ge=1, le=200)] = 50
    cursor: Annotated[str, Field(max_length=512)] | None = None


ListQuery = Annotated[ListParameters, Parameter()]


class TutorialWeights(Wire):
    """Weights by the tutorial's names."""

    sim: Share = 0.4
    time: Share = 0.2
    importance: Share = 0.2
    bm25: Share = 0.2

    some = model_validator(mode="after")(_some_weight)


class TutorialAdd(Wire):
    """`POST /memory/add`."""

    user_id: Identifier
    content: Content
    content_type: ContentType = "text"
    importance: Importance = 1.0
    tags: Tags = Field(default=[])
    source: Identifier | None = None


class TutorialRetrieve(Wire):
    """`POST /memory/retrieve`."""

    user_id: Identifier
    query: QueryText
    top_k: int = Field(5, ge=1, le=100)
    weights: TutorialWeights = TutorialWeights()
