"""What a job may ask for; the model is loaded by the first job that needs it, so that a worker starts light."""

import asyncio
from dataclasses import dataclass, field

from app.clock import now
from app.database import Database
from app.embed import Embedder, claim_generation, load_embedder
from app.language import TOKENIZER_VERSION
from app.remember import Filler
from app.settings import Settings


@dataclass(slots=True)
class Context:
    """The services of one worker process."""

    settings: Settings
    database: Database
    _embedder: Embedder | None = None
    _filler: Filler | None = None
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

    async def close(self) -> None:
        if self._embedder is not None:
            await self._embedder.close()
