"""How much a memory matters when its writer does not say: 1 (small talk) to 5 (never to be forgotten); pure.

Invariant: base by kind + 2 if it is an order or an explicit request + at most ½ for what it speaks of, within [1, 5].
"""

import re
from typing import Final

from app.extract.customers import CUSTOMERS
from app.extract.sentences import asked_to_keep, sentences
from app.extract.triggers import TRIGGERS
from app.kinds import KINDS
from app.language import fold

LEAST_IMPORTANCE: Final = 1.0
REQUESTED: Final = 2.0
"""Who says "remember this" or "always do that" has judged already: a preference (3) so asked for is a 5."""

ADDITION: Final = 0.25
ADDITIONS_MAX: Final = 0.5
"""A topic decides between memories that match alike; more would put it before what matches better (measured)."""

SUBJECTS_OF_WEIGHT: Final = {
    "money": r"[￥¥$€£]\s*\d|\d\s*(?:元|块钱|万元|亿|美元|欧元|usd|rmb|cny|eur|dollars?|euros?|yuan)\b"
    r"|(?:退款|付款|支付|工资|薪水|预算|价格|发票|押金|赔偿|欠款|贷款|账单)"
    r"|\b(?:refund|payment|salary|budget|invoice|deposit|loan|debt|price|bill|compensation)s?\b",
    "date": r"\d{4}[-/.年]\d{1,2}|\d{1,2}\s*月\s*\d{1,2}\s*[日号]|(?:截止|到期|期限|之前完成|生日|纪念日)"
    r"|\b(?:deadline|due (?:on|by|date)|expires?|birthday|anniversary)\b"
    r"|\b(?:january|february|march|april|june|july|august|september|october|november|december)\s+\d{1,2}\b",
    "health and safety": r"过敏|忌口|疾病|高血压|糖尿病|哮喘|心脏病|癫痫|怀孕|孕妇|手术|服药|吃药|药物|急救|血型|残疾"
    r"|抑郁|安全|危险|报警|中毒"
    r"|\b(?:allerg(?:y|ies|ic)|diabet(?:es|ic)|asthma(?:tic)?|epilep\w+|pregnan\w+|surgery|medication|medicine)\b"
    r"|\b(?:blood (?:type|pressure)|disab\w+|heart (?:disease|condition)|emergency|danger(?:ous)?|poison\w*)\b",
    "contract": r"合同|协议|违约|条款|保修|质保|授权|法律|律师|起诉|投诉|保密|承诺|签约|续约"
    r"|\b(?:contracts?|agreements?|clauses?|warrant(?:y|ies)|liab\w+|lawyer|lawsuit|legal(?:ly)?|complaints?|nda"
    r"|sla)\b",
}
"""What a memory may speak of that makes it weigh more."""

_WEIGHTY = {name: re.compile(pattern) for name, pattern in SUBJECTS_OF_WEIGHT.items()}
_ORDERS = [row.words.pattern for row in (*TRIGGERS, *CUSTOMERS) if row.order]
_MAY_ASK = re.compile(
    r"记|忘|备注|提醒|以后|今后|往后|从现在|从今|下次|每次|一律|务必|必须|千万|永远|平时|请|你|您|别|不要|送|寄|放"
    r"|联系|通知|沟通"
    r"|[发打汇退转付]|不用|叫|称呼"
    r"|remember|note|mind|memori|write|forget|remind|future|from now|next time|always|never|don't|do not|stop|me\b"
    r"|leave|drop|put|deliver|ship|mail|send|post|forward|charge|bill"
)
"""Most texts hold none of the words of orders: one look instead of taking the text apart."""


def importance_of(kind: str, text: str, *, requested: bool | None = None) -> float:
    """From 1 to 5 in steps of a quarter. `requested`: whether the speaker asked to keep it; None: look in the text."""
    folded = fold(text)
    asked = _asks(text, folded) if requested is None else requested
    topics = sum(bool(pattern.search(folded)) for pattern in _WEIGHTY.values())
    score = KINDS[kind].default_importance + REQUESTED * asked + min(ADDITION * topics, ADDITIONS_MAX)
    return min(max(score, LEAST_IMPORTANCE), 5.0)


def _asks(text: str, folded: str) -> bool:
    """Whether a text of one or two sentences, or the first of several, asks to be remembered or orders something."""
    if not _MAY_ASK.search(folded):
        return False
    parts = sentences(text)
    return any(
        asked_to_keep(part) is not None or any(order.search(fold(part)) for order in _ORDERS)
        for part in (parts if len(parts) <= 2 else parts[:1])
    )
