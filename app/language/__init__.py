"""Words of Chinese and English text: one tokenizer, the normal form, and keyword weights as sparse vectors."""

from app.language.dates import DayMention, NamedDays, day_mentions, named_days
from app.language.question import questions
from app.language.tokens import TOKENIZER_VERSION, comes_again, fold, fold_aligned, grams, normalise, stem, words
from app.language.weights import (
    DIMENSIONS,
    KeywordQuery,
    KeywordVector,
    QueryCode,
    keyword_arrays,
    keyword_query,
    keyword_vector,
    term_id,
    word_ids,
)
from app.language.zones import zone_of

__all__ = [
    "DIMENSIONS",
    "TOKENIZER_VERSION",
    "DayMention",
    "KeywordQuery",
    "KeywordVector",
    "NamedDays",
    "QueryCode",
    "comes_again",
    "day_mentions",
    "fold",
    "fold_aligned",
    "grams",
    "keyword_arrays",
    "keyword_query",
    "keyword_vector",
    "named_days",
    "normalise",
    "questions",
    "stem",
    "term_id",
    "word_ids",
    "words",
    "zone_of",
]
