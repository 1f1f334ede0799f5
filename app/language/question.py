"""A query that asks several things: 「A 是什么？另外，B 呢？」 is searched as a whole and question by question."""

import re

QUESTIONS_MAX = 3

_QUESTION = re.compile(r"[^。！？!?；;\n]+[?？]")
_LEADING = re.compile(r"^[\s，,、:：\"”’)）]+")
_HAN = re.compile(r"[\u3400-\u9fff]")


def questions(text: str) -> tuple[str, ...]:
    """The questions of a text that holds at least two (the last three, small talk tends to come first); else empty."""
    found = [_LEADING.sub("", question) for question in _QUESTION.findall(text)]
    long_enough = [q for q in found if len(q) > (4 if _HAN.search(q) else 8)]
    return tuple(long_enough[-QUESTIONS_MAX:]) if len(long_enough) > 1 else ()
