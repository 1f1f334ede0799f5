"""Where a local model comes from, and what tells it from every other.

Invariant: equal identities mean equal weights, tokenizer, prompts and pooling, wherever the folder is.
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_WEIGHTS: Final = frozenset({".safetensors", ".bin"})
_DESCRIPTIONS: Final = frozenset({".json", ".txt", ".model"})
_ORGANISATION: Final = "sentence-transformers"
"""Whose models the library finds by their last name."""


@dataclass(frozen=True, slots=True)
class Source:
    """`path`: a folder or a name of the hub, of which `revision` is asked.

    The bundled model's identity is known without reading, and its folder is made under `data_dir` when it is needed.
    """

    path: str
    name: str
    revision: str | None = None
    known_identity: str | None = None
    data_dir: str | None = None

    def identity(self) -> str | None:
        """The known one, a folder's digest, or the commit that the hub's cache holds; None: not here yet.

        What is in the cache counts: a model that moves on at the hub does not change under a running service.
        """
        if self.known_identity is not None:
            return self.known_identity
        if Path(self.path).is_dir():
            return _digest(_files(Path(self.path), _WEIGHTS | _DESCRIPTIONS), Path(self.path))
        return self._cached_commit()

    def weights(self) -> str | None:
        """The digest of a folder's weights, 12 digits: names stay the same when models are trained on; else None."""
        folder = Path(self.path)
        return _digest(_files(folder, _WEIGHTS), None)[:12] if folder.is_dir() else None

    def _cached_commit(self) -> str | None:
        from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - most starts do without
        from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

        name = self.path if "/" in self.path else f"{_ORGANISATION}/{self.path}"
        home = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
        try:
            found = try_to_load_from_cache(name, "config.json", cache_dir=home, revision=self.revision)
        except HFValidationError:  # a path that is not there
            return None
        return Path(found).parent.name if isinstance(found, str) else None


def _files(folder: Path, suffixes: frozenset[str]) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.suffix in suffixes and path.is_file()]


def _digest(paths: Iterable[Path], folder: Path | None) -> str:
    """SHA-256 of the digests of files, with their names in `folder`."""
    digest = hashlib.sha256()
    for path in paths:
        if folder is not None:
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
