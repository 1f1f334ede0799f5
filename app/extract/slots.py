"""SLOTS: what of a user has one value at a time, and the sentences that say it; a new value overrules the old one.

A row is a key and its words, searched in folded text. A sentence fills a slot only if it says that and nothing more;
what may have several values (allergies, pets, languages) has no slot.
"""

import re
from types import MappingProxyType
from typing import Final

from app.extract.triggers import I_ZH, Words

_VALUE = r"(?P<value>[^，,。!！?？;；]{1,40}?)"
_EN_VALUE = r"(?P<en_value>[^,!?;]{1,60}?)"
_END = r"(?:了|哦|啊|呢|哈|的)?[\s。.!！~]*$"
_EN_END = r"[\s.!]*$"
_BEGIN = r"^(?:对了|其实|那个|嗯|哦|另外|还有|现在|目前|以后|今后|请|帮我|把|将|就|你|您|你们)*"
_EN_BEGIN = r"^(?:by the way |also |and |well |now |please |so )*"
_ROWS: Final = {
    "profile.preferred_name": Words(
        rf"(?:叫|称呼){I_ZH}(?:为|作)?",
        r"(?:call|address) me(?: as)?",
    ),
    "profile.name": Words(
        rf"{I_ZH}(?:的)?(?:名字|姓名|全名|大名)(?:是|叫|为|改为|改成)|{I_ZH}(?:的名字)?(?:叫|名叫)(?!了|上|他|她"
        rf"|你|什么|啥|过|车|外卖)",
        r"my (?:full |real )?name(?: is|'s)|i(?:'m| am) called",
    ),
    "profile.company_name": Words(
        rf"{I_ZH}(?:的|所在的|们)?(?:公司|单位|企业)(?:的)?(?:名称|名字|全称|名)?(?:现在)?(?:是|叫|为|改名为"
        rf"|改名叫|更名为|改为|改成|改叫)|公司(?:的)?(?:名称|名字)(?:是|为|改为|改成)|公司(?:改名为|改名叫|更名为"
        rf"|改叫)|{I_ZH}(?:现在)?(?:就职于|任职于|供职于)",
        r"my (?:company|employer)(?:'s name)?(?: is(?: now)?(?: called)?|'s)|the company(?:'s)? name is"
        r"|(?:our|my|the) company (?:is|was|has been)(?: now)? renamed(?: to)?"
        r"|(?:our|my|the) company (?:has )?changed its name to"
        r"|our company is(?: now)?(?: called)?|i(?: now| currently)? work (?:at|for)",
    ),
    "profile.job_title": Words(
        rf"{I_ZH}(?:的)?(?:职业|职位|岗位|职务|工作)(?:是|为)|{I_ZH}(?:现在|目前)?的?职业",
        r"my (?:job(?: title)?|title|position|occupation|profession)(?: is|'s)|i(?: now| currently)? work as"
        r"|i(?:'m| am) (?:now )?employed as",
    ),
    "profile.city": Words(
        rf"{I_ZH}(?:现在|目前|如今|已经|刚)*(?:住在?|居住在?|定居在?|家在|家住|搬到|搬去|搬家到)",
        r"i(?: now| currently)? live in|i(?:'ve| have)?(?: just| recently)? moved to|i(?:'m| am) (?:now )?(?:based"
        r"|living) in",
    ),
    "profile.hometown": Words(
        rf"{I_ZH}(?:的)?(?:老家|家乡|籍贯)(?:是|在|为)?|{I_ZH}来自",
        r"my home ?town is|i(?:'m| am) (?:originally )?from|i come from",
    ),
    "profile.birthday": Words(
        rf"{I_ZH}(?:的)?生日(?:是|在|为)|{I_ZH}(?:出生于|生于|出生在)(?=[\d一二])",
        r"my birthday(?: is|'s)(?: on)?|i was born on",
    ),
    "profile.age": Words(
        rf"{I_ZH}(?:今年|现在|刚满|快|已经)*(?=\d{{1,3}}岁)",
        r"i(?:'m| am)(?: now)?(?= \d{1,3} years? old)",
    ),
    "profile.phone": Words(
        rf"{I_ZH}(?:的|的?新的?)?(?:手机号码?|手机|电话号码?|电话|联系电话|联系方式)(?:是|为|改为|改成|换成|:|：)"
        rf"|(?:{I_ZH}(?:刚|已经)*[换改]了?(?:手机号?码?|电话号?码?|号码?)了?[，,]\s*)?(?:{I_ZH}的?)?"
        r"新(?:的)?(?:手机号码?|号码?|电话号?码?)(?:是|为|:|：)",
        r"my (?:new )?(?:(?:phone|mobile|cell)(?: phone)?(?: number)?|number)(?: is|'s| (?:has been |was )?changed to)"
        r"(?: now)?",
    ),
    "profile.email": Words(
        rf"{I_ZH}(?:的|的?新的?)?(?:电子)?(?:邮箱|邮件)(?:地址)?(?:是|为|改为|改成|换成|:|：)",
        r"my (?:new )?e-?mail(?: address)?(?: is|'s| (?:has been |was )?changed to)(?: now)?",
    ),
    "profile.address": Words(
        rf"{I_ZH}(?:的|家的?)?(?:新的?)?(?:收货|家庭|邮寄|联系|公司)?(?:地址|住址)(?:是|为|在|改为|改成|换成|:|：)",
        r"my (?:new )?(?:home |shipping |delivery |billing |mailing |work )?address"
        r"(?: is|'s| (?:has been |was )?changed to)(?: now)?",
    ),
    "profile.language": Words(
        rf"{I_ZH}(?:的)?母语(?:是|为)",
        r"my (?:native language|mother tongue|first language)(?: is|'s)",
    ),
    "profile.time_zone": Words(
        rf"{I_ZH}(?:的)?(?:所在)?时区(?:是|为)",
        r"my time ?zone(?: is|'s)",
    ),
}

SLOTS: Final = MappingProxyType(
    {
        key: re.compile(f"(?:{_BEGIN}(?:{row.zh}){_VALUE}{_END})|(?:{_EN_BEGIN}(?:{row.en}) {_EN_VALUE}{_EN_END})")
        for key, row in _ROWS.items()
    }
)
"""The pattern of a sentence by the key of its slot; the value is the group `value` or `en_value`."""

DATES: Final = frozenset({"profile.birthday"})
"""Slots whose value is a date: it is what the statement says, and not when that came to be true."""


def slot(sentence: str) -> str | None:
    """The key of the slot that a folded sentence of the speaker fills, or None."""
    for key, pattern in SLOTS.items():
        match = pattern.search(sentence)
        if match is not None:
            value = match["value"] or match["en_value"]
            if not (_NO_VALUE.search(value) or (key in _NAMES and _ARTICLE.search(value))):
                return key
    return None


_NO_VALUE = re.compile(
    r"^(?:这|那|哪|什么|啥|一个|谁)|^(?:my|our|your|his|her|this|that|it|here|there|not|no|what|who)\b"
    r"|\b(?:and|but|because|so|who|which|when|since|to|that|with|for)\b|(?:\S+ ){7}"
)
_NAMES = frozenset(f"profile.{name}" for name in ("preferred_name", "name", "company_name", "city", "hometown"))
_ARTICLE = re.compile(r"^an?\b")
"""'A new city' is no name of one."""
