"""What the work of operations may use."""

from dataclasses import dataclass

from app.extract import ExtractConfig
from app.llm import LanguageModel
from app.remember import Rememberer


@dataclass(frozen=True, slots=True)
class Tools:
    """The services of a process; without a language model the rules work alone."""

    rememberer: Rememberer
    language_model: LanguageModel | None
    extract: ExtractConfig
