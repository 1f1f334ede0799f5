"""What a job may ask for; the model is loaded by the first job that needs it, so that a worker starts light."""

import asyncio
from dataclasses import dataclass, field
from functools import partial

from app import consolidate
from app.backup import Backups
from app.clock import now
from app.database import Database
from app.embed import Embedder, Generation, Known, active_generation_id, open_embedder, open_other
from app.errors import EmbeddingUnavailable
from app.forget import Centre
from app.guard import load_pepper
from app.language import TOKENIZER_VERSION
from app.llm import LanguageModel, load_language_model
from app.operations import Operator, Queue, Tools
from app.recall import SmallTalk
from app.remember import Filler, Rememberer
from app.settings import Settings
from app.webhooks import Courier, secret_of


@dataclass(slots=True)
class Context:
    """The services of one worker process."""

    settings: Settings
    database: Database
    _embedder: Embedder | None = None
    _generation: Generation | None = None
    _centre: Centre | None = None
    _other: tuple[int, Embedder] | None = None
    _courier: Courier | None = None
    _rememberer: Rememberer | None = None
    _operator: Operator | None = None
    _language_model: LanguageModel | None = None
    _backups: Backups | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def _embedding(self) -> tuple[Embedder, Generation]:
        """The model of the generation that is active: after a switch another one than before."""
        active = await active_generation_id(self.database)
        if self._embedder is None or self._generation is None or self._generation.generation_id != active:
            await self._let_go()
            embedder, self._generation = await open_embedder(
                self.database, self.settings.embed, self.settings.data_dir, TOKENIZER_VERSION, now()
            )
            await embedder.start()
            self._embedder = embedder
        return self._embedder, self._generation

    async def _let_go(self) -> None:
        """Of the model that is served, and of what works with it: what it has in hand is put back."""
        operator, embedder = self._operator, self._embedder
        self._operator = self._rememberer = self._embedder = None
        for service in (operator, embedder):
            if service is not None:
                await service.close()

    async def filler(self) -> Filler:
        """Return the worker's side of the write path; the first call loads the model.

        Raises StartupRefused when the model is another one than the stored vectors were made with.
        """
        async with self._lock:
            return Filler(self.database, *await self._embedding(), self.settings.remember)

    async def centre(self) -> Centre:
        """Return what all vectors have in common. Raises EmbeddingUnavailable, and StartupRefused as `filler` does."""
        async with self._lock:
            embedder, generation = await self._embedding()
            if self._centre is None or self._centre.generation_id != generation.generation_id:
                small_talk = SmallTalk(embedder)
                await small_talk.make()
                if small_talk.mean is None:
                    raise EmbeddingUnavailable("no vector of small talk")
                self._centre = Centre(generation.generation_id, small_talk.mean)
        return self._centre

    async def rememberer(self) -> Rememberer:
        """Return the write path; the first call loads the model. Raises StartupRefused as `filler` does."""
        async with self._lock:
            embedding = await self._embedding()
            if self._rememberer is None:
                self._rememberer = Rememberer(self.database, *embedding, self.settings.remember)
            return self._rememberer

    async def model_of(self, generation: Known) -> Embedder:
        """Return the model of the active generation or of the one beside it, loaded by the first call.

        Raises StartupRefused when it is not to be had.
        """
        async with self._lock:
            if generation.state == "active":
                return (await self._embedding())[0]
            if self._other is None or self._other[0] != generation.generation_id:
                await self.let_other_go()
                other = await open_other(self.database, self.settings.embed, self.settings.data_dir, generation)
                await other.start()
                self._other = generation.generation_id, other
            return self._other[1]

    async def let_other_go(self) -> None:
        """Free the model beside the one that is served."""
        other, self._other = self._other, None
        if other is not None:
            await other[1].close()

    def language_model(self) -> LanguageModel | None:
        """Return the language model, if one is configured. Raises StartupRefused when it is named by half."""
        if self._language_model is None:
            self._language_model = load_language_model(self.settings.llm)
        return self._language_model

    async def operator(self) -> Operator:
        """Return what works off operations; the first call loads the model. Raises StartupRefused as `filler` does."""
        rememberer = await self.rememberer()
        if self._operator is None:
            self._operator = Operator(
                Queue(self.database, rememberer.subscriptions, self.settings.operations),
                Tools(rememberer, self.language_model(), self.settings.extract), self.settings.operations, clock=now,
            )  # fmt: skip
        return self._operator

    def consolidation(self) -> consolidate.Tools:
        """Return what consolidation works with; the embedding model is loaded when there is something to do."""
        return consolidate.Tools(
            self.database, self.settings.consolidate, self.rememberer, self.language_model()
        )  # fmt: skip

    async def courier(self) -> Courier:
        """Return what sends events; the first call reads the pepper. Raises StartupRefused when there is none."""
        async with self._lock:
            if self._courier is None:
                configured = self.settings.auth.pepper
                pepper = load_pepper(
                    configured.get_secret_value() if configured else None,
                    self.settings.data_dir,
                    production=self.settings.env == "production",
                )
                self._courier = Courier(self.database, partial(secret_of, pepper), self.settings.webhooks)
            return self._courier

    def backups(self) -> Backups:
        """Return the backups of this database. Raises StartupRefused for wrong settings of theirs."""
        if self._backups is None:
            owner = self.settings.database.owner_url
            url = owner.get_secret_value() if owner else None
            self._backups = Backups.open(self.settings.backup, self.settings.data_dir, url)
        return self._backups

    async def close(self) -> None:
        await self._let_go()
        await self.let_other_go()
        for service in (self._language_model, self._courier):
            if service is not None:
                await service.close()
