"""A local model as packed.py and the tokenizer read it, kept in the data directory, so that a start imports no torch.

Invariant: what is opened has the checksums of its manifest and gives, on this processor and in this arithmetic, the
vectors that torch gave when it was written; else it is made again, or torch computes.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ValidationError

from app.embed import bundled, folders, packed
from app.embed.embedder import Vectors
from app.embed.packed import PackedEncoder
from app.embed.processor import processor_flags
from app.embed.source import Source
from app.embed.torch_model import Facts, PaddedEncoder, commit_of, facts_of, prepare_torch, read, tokenizer_of
from app.errors import EXIT_CONFIGURATION, EXIT_DEPENDENCY, StartupRefused
from app.telemetry import SHARED_DIRECTORY, log

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

ALIKE: Final = {"float32": 0.9999, "int8": 0.99}
"""Smallest cosine to torch's float32 at which packed.py has understood a model; int8 of the bundled one keeps 0.998."""

LAYOUT: Final = 1
"""Of the folder, and of what packed.py understands: raise it when either changes."""

_MANIFEST: Final = "manifest.json"
_TOKENIZER: Final = "tokenizer.json"
_EXPECTED: Final = "expected.npy"
_PROBES: Final = [list(range(5, 5 + length)) for length in (3, 11, 24)]
_UNSAFE: Final = re.compile(r"[^\w.-]+")


class Manifest(BaseModel, frozen=True, extra="forbid"):
    """What a folder holds. `pooling` None: packed.py does not understand the model, and nothing else is there."""

    layout: int
    engine: str
    identity: str
    facts: Facts
    pooling: Literal["mean", "cls"] | None
    files: dict[str, tuple[int, str]]


class Damaged(Exception):
    """A folder is not there, was made by another program, or is not what its manifest says."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An opened folder: everything of the model but torch. `encoder` None: only torch can compute it, says `reason`."""

    facts: Facts
    tokenizer: Any
    encoder: PackedEncoder | None
    reason: str = ""


def folder_of(source: Source, identity: str, shelf: Path) -> Path:
    """Where a model is kept."""
    return shelf / f"{_UNSAFE.sub('-', source.name.rpartition('/')[2])}-{identity[:12]}-packed"


def find(source: Source, shelf: Path, arithmetic: Literal["float32", "int8"], threads: int) -> Kept | None:
    """The kept model, made first by a process of its own if need be; None, with a warning, where that cannot be.

    Raises StartupRefused when the model cannot be loaded at all.
    """
    kept = _open(source, shelf, arithmetic, threads)
    if kept is None and make_apart(source, shelf):
        kept = _open(source, shelf, arithmetic, threads)
        if kept is None:
            log().warning("embedding_model_not_kept", model=source.name, error="what was written cannot be read")
    return kept


def is_there(source: Source, shelf: Path) -> bool:
    """Whether a start will find the model, judged by sizes, without reading it."""
    identity = source.identity()
    return identity is not None and _has_sizes(folder_of(source, identity, shelf), identity)


def make_apart(source: Source, shelf: Path) -> bool:
    """Write the folder in a process of its own, because torch would stay in this one; False, with a warning: it failed.

    Raises StartupRefused when the model cannot be loaded at all.
    """
    environment = {name: value for name, value in os.environ.items() if name != SHARED_DIRECTORY}
    try:
        folders.lock_file(shelf).open("a").close()  # before torch is imported for nothing
        made = subprocess.run(
            [sys.executable, "-m", "app.embed"],
            input=json.dumps({"shelf": str(shelf), "source": asdict(source)}),
            stdout=subprocess.PIPE, encoding="utf-8", env=environment, check=False,
        )  # fmt: skip
    except OSError as error:
        log().warning("embedding_model_not_kept", model=source.name, error=error.strerror)
        return False
    if made.returncode in {EXIT_CONFIGURATION, EXIT_DEPENDENCY}:
        raise StartupRefused(made.stdout.strip(), dependency=made.returncode == EXIT_DEPENDENCY)
    if made.returncode != 0:
        log().warning("embedding_model_not_kept", model=source.name, error=f"exit code {made.returncode}")
    return made.returncode == 0


def make(source: Source, shelf: Path) -> None:
    """Write the folder unless it is there and whole; imports torch. Raises StartupRefused, OSError."""
    if source.data_dir is not None:
        bundled.prepare(Path(source.data_dir))  # before the lock below, which it takes, too
    identity, model = source.identity(), None
    if identity is None:
        model = _read(source)
        identity = commit_of(model)
    known = identity

    def write_into(folder: Path) -> None:
        sys.stderr.write(f"mneme: preparing the model {source.name} for quick starts (once)\n")
        write(model or _read(source), source, known, folder)

    folders.appear(folder_of(source, known, shelf), write_into, lambda folder: _is_whole(folder, known))


def write(model: "SentenceTransformer", source: Source, identity: str, folder: Path) -> None:
    """Fill `folder` with what `open_folder` needs of a model loaded in float32; the manifest last."""
    pooling = packed.pooling_of(model)
    if pooling is not None:
        packed.save(model, folder)
        tokenizer_of(model).save(str(folder / _TOKENIZER), pretty=False)
        np.save(folder / _EXPECTED, PaddedEncoder(model)(_PROBES))
    manifest = Manifest(
        layout=LAYOUT,
        engine=version("ctranslate2"),
        identity=identity,
        facts=facts_of(model, source),
        pooling=pooling,
        files={path.name: (path.stat().st_size, _checksum(path)) for path in folder.iterdir()},
    )
    (folder / _MANIFEST).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")


def open_once(
    model: "SentenceTransformer", source: Source, arithmetic: Literal["float32", "int8"], threads: int
) -> Kept:
    """What `find` gives, of a loaded model and for this process alone; the library reads models from files only.

    Raises StartupRefused when there is no temporary folder with room for its weights.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="mneme-model-") as name:
            folder = Path(name)
            write(model, source, "", folder)
            return open_folder(folder, _manifest(folder), arithmetic, threads)
    except (OSError, Damaged) as error:
        reason = getattr(error, "strerror", None) or "it is damaged"
        raise StartupRefused(
            f"the embedding model cannot be written to the temporary folder ({reason}): set TMPDIR", dependency=True
        ) from error


def checked(folder: Path, identity: str) -> Manifest:
    """The manifest of a folder whose files are what it says; reads them all. Raises Damaged."""
    if not _has_sizes(folder, identity):
        raise Damaged
    manifest = _manifest(folder)
    try:
        if any(_checksum(folder / name) != checksum for name, (_, checksum) in manifest.files.items()):
            raise Damaged
    except OSError as error:
        raise Damaged from error
    return manifest


def open_folder(folder: Path, manifest: Manifest, arithmetic: Literal["float32", "int8"], threads: int) -> Kept:
    """Load what is in a checked folder, without torch, and compare it with what torch gave; a model whose vectors int8
    does not keep is read in float32. Raises Damaged."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - only local models need it

    if manifest.pooling is None:
        return Kept(manifest.facts, None, None, "unknown architecture or pooling")
    packed.choose_kernels(processor_flags())
    try:
        for kind in dict.fromkeys((arithmetic, "float32")):
            encoder = PackedEncoder(str(folder), mean=manifest.pooling == "mean", compute_type=kind, threads=threads)
            if _alike(encoder(_PROBES), np.load(folder / _EXPECTED)) >= ALIKE[kind]:  # NaN is not
                return Kept(manifest.facts, Tokenizer.from_file(str(folder / _TOKENIZER)), encoder)
        return Kept(manifest.facts, None, None, "other vectors than torch")
    except (OSError, RuntimeError, ValueError) as error:
        raise Damaged from error


def _open(source: Source, shelf: Path, arithmetic: Literal["float32", "int8"], threads: int) -> Kept | None:
    identity = source.identity()
    if identity is None:
        return None
    folder = folder_of(source, identity, shelf)
    try:
        return open_folder(folder, checked(folder, identity), arithmetic, threads)
    except Damaged:
        return None


def _read(source: Source) -> "SentenceTransformer":
    _, dtype = prepare_torch(None, "float32")
    return read(source, dtype)


def _alike(one: Vectors, other: Vectors) -> float:
    """The smallest cosine between two ways to compute the same texts."""
    return float(
        (np.einsum("td,td->t", one, other) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)).min()
    )


def _manifest(folder: Path) -> Manifest:
    try:
        return Manifest.model_validate_json((folder / _MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        raise Damaged from error


def _has_sizes(folder: Path, identity: str) -> bool:
    try:
        manifest = _manifest(folder)
        made_for = (manifest.layout, manifest.engine, manifest.identity)
        return made_for == (LAYOUT, version("ctranslate2"), identity) and all(
            (folder / name).stat().st_size == size for name, (size, _) in manifest.files.items()
        )
    except (Damaged, OSError):
        return False


def _is_whole(folder: Path, identity: str) -> bool:
    try:
        checked(folder, identity)
    except Damaged:
        return False
    return True


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
