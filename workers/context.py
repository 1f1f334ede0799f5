"""What a job may ask for; the model is loaded by the first job that needs it, so that a worker starts light."""

import asyncio
from dataclasses import dataclass, field
from functools import partial

from app.clock import now
from app.database import Database
from app.embed import Embedder, claim_generation, load_embedder
from app.guard import load_pepper
from app.language import TOKENIZER_VERSION
from app.remember import Filler
from app.settings import Settings
from app.webhooks import Courier, secret_of


@dataclass(slots=True)
class Context:
    """The services of one worker process."""

    settings: Settings
    database: Database
    _embedder: Embedder | None = None
    _filler: Filler | None = None
    _courier: Courier | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def filler(self) -> Filler:
        """Return the worker's side of the write path; the first call loads the model.

        Raises StartupRefused when the model is another one than the stored vectors were made with.
        """
        async with self._lock:
            if self._filler is None:
                embedder = load_embedder(self.settings.embed, self.settings.data_dir)
                generation = await claim_generation(self.database, embedder.spec, TOKENIZER_VERSION, now())
                await embedder.start()
                self._embedder = embedder
                self._filler = Filler(self.database, embedder, generation, self.settings.remember)
            return self._filler

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

    async def close(self) -> None:
        if self._courier is not None:
            await self._courier.close()
        if self._embedder is not None:
            await self._embedder.close()
