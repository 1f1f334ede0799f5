"""A language model behind any OpenAI-compatible chat endpoint: a question in, a validated object out.

Invariant: what leaves this room has the shape that was asked for; no log, metric or error quotes a question or answer.
"""

from app.llm.client import LanguageModel, LlmConfig, load_language_model

__all__ = ["LanguageModel", "LlmConfig", "load_language_model"]
