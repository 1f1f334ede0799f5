"""What a sentence names that one may ask for later: codes, numbers, addresses, titles, firms, people, foreign names.

Invariant: pure; each entity is a piece of the text as it stands there.
"""

import re
from typing import Final

_HAN = r"\u3400-\u9fff"
_NOT_IN_NAMES = "开我你您他她它们的在是叫去到于从和与跟给为了向被把将对这那个位名家住有及或就也都很"
_NAME = f"[^\\W\\d_a-zA-Z{_NOT_IN_NAMES}]"

PATTERNS: Final = {
    "e-mail": r"[A-Za-z0-9_.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,4}",
    "link": r"https?://[^\s，。；）)]{3,200}",
    # Not a time of day (3pm) nor an ordinal (3rd).
    "code": r"(?!\d{1,2}(?:am|pm|st|nd|rd|th)\b)(?<![A-Za-z0-9_-])"
    r"(?=[A-Za-z0-9_-]{0,30}\d)(?=[A-Za-z0-9_-]{0,30}[A-Za-z])[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*(?![A-Za-z0-9_-])",
    "number": r"(?<![\d.\-:])\d{5,20}(?!\d|[.:]\d)",
    "title": r"[《「『“\"]([^《》「」『』“”\"]{2,30})[》」』”\"]",
    "firm": rf"{_NAME}{{2,12}}(?:公司|集团|科技|大学|学院|医院|银行|酒店|中学|小学|律师事务所|研究院|工作室)",
    "person": rf"(?:叫做?|名叫|名字是|姓名是|主管是|经理是|老板是|联系人是|负责人是|同事|客户)"
    rf"({_NAME}{{2,4}})(?![{_HAN}])",
    "foreign": r"(?<![A-Za-z.!?\n])(?<!^)(?:(?<=[\u3400-\u9fff，、 ])|(?<=[a-z,;:] ))"
    r"([A-Z][\w&'’-]+(?: [A-Z][\w&'’-]+){0,4})",
}
"""A pattern a sort; a group, if there is one, is the entity."""

NEW: Final = ("e-mail", "link", "code", "number")
"""Sorts that by themselves make a statement worth keeping."""

MOST: Final = 16
_PATTERNS = {sort: re.compile(pattern) for sort, pattern in PATTERNS.items()}
_NO_NAME = re.compile(
    r"^(?:I|I['’](?:m|ve|ll|d)|OK|Mr|Mrs|Ms|Dr|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)days?|January|February|March"
    r"|April|May|June"
    r"|July|August|September|October|November|December)$"
)


def entities(text: str, sorts: tuple[str, ...] = tuple(PATTERNS)) -> tuple[str, ...]:
    """The entities of a text in the order of the sorts, each once, at most 16."""
    found: dict[str, None] = {}
    for sort in sorts:
        for match in _PATTERNS[sort].finditer(text):
            entity = match[match.lastindex or 0].strip()
            if not _NO_NAME.match(entity) and not any(entity in other for other in found):
                found[entity] = None
    return tuple(found)[:MOST]
