"""Recognise what Mneme itself put into a prompt, so that it never comes back as something that somebody said.

Invariant: a text without a served block or line comes back as it is; the time is linear in its length.
"""

import re
from bisect import bisect_left

from app.errors import FieldError
from app.memory import SERVED_LABEL, SERVED_TAG

SERVED = "served_memory"
NOTHING_SAID = FieldError("/content", SERVED, "holds nothing but memories that were served from here")
# As an HTML comment it hides in Markdown (the brief); some tools escape the brackets.
_TAG = rf"(?:<!--\s{{0,9}})?(?:<|&lt;)SLASH{SERVED_TAG}\s{{0,9}}(?:>|&gt;)(?:\s{{0,9}}-->)?"
_OPENING = re.compile(_TAG.replace("SLASH", ""), re.IGNORECASE)
_CLOSING = re.compile(_TAG.replace("SLASH", "/"), re.IGNORECASE)
_LINE = re.compile(rf"^[ \t>*•-]*{SERVED_LABEL.pattern}.*$", re.MULTILINE)


def without_served(text: str) -> str:
    """The text without what was served: `<memory>` blocks, and single lines that begin with a served label.

    A block is ours if its opening tag ends a line or a label stands in it, so that `<memory>16GB</memory>` in a
    configuration stays. One that was cut off ends with its last labelled line. If no letter or digit is left, the
    answer is empty; a text that loses something loses its outer blanks, too.
    """
    if SERVED_TAG not in text.casefold() and "|" not in text:
        return text
    labels = [label.start() for label in SERVED_LABEL.finditer(text)]
    closings = [closing.span() for closing in _CLOSING.finditer(text)]
    kept, at = [], 0
    for opening in _OPENING.finditer(text):
        start, inside = opening.span()
        n = bisect_left(labels, inside)
        label = labels[n] if n < len(labels) else len(text)
        n = bisect_left(closings, (inside, 0))
        if n < len(closings):
            until, end = closings[n]
            ours = text[inside] in "\r\n" or label < until
        else:
            ours = label < len(text)
            end = text.find("\n", labels[-1]) if ours else 0
        if ours and start >= at:
            kept.append(text[at:start])
            at = end if end >= 0 else len(text)
    rest = "".join([*kept, text[at:]])
    rest = _LINE.sub("", rest) if labels else rest
    if rest == text:
        return text
    return rest.strip() if any(character.isalnum() for character in rest) else ""
