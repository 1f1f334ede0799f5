"""How much a memory matters when its writer does not say: 1 (small talk) to 5 (never to be forgotten); pure.

Invariant: base by kind + 2 if it is an order or an explicit request + at most 1 for what it speaks of, within [1, 5].
"""

import re
from typing import Final

from app.kinds import KINDS
from app.language import fold

LEAST_IMPORTANCE: Final = 1.0
REQUESTED: Final = 2.0
"""Who says "remember this" or "always do that" has judged already: a preference (3) so asked for is a 5."""

ADDITION: Final = 0.5
ADDITIONS_MAX: Final = 1.0
"""One topic lifts above the rest of its kind, two put a memory on the next step; more topics are not more important."""

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
    r"|\b(?:contracts?|agreements?|clauses?|warrant(?:y|ies)|liab\w+|lawyer|lawsuit|legal(?:ly)?|complaints?|nda|sla)\b",
}
"""What a memory may speak of that makes it weigh more."""

ORDERS: Final = (
    r"记住|记下|记一下|记好|牢记|别忘|不要忘|勿忘|务必|必须|千万(?:别|不要)|绝对不|一律|"
    r"(?:以后|今后|往后|从现在起|从今以后|永远|每次)[^。，,]{0,8}(?:都|请|别|不要|只|用|先|叫)"
    r"|^(?:please )?(?:remember|note that|keep in mind|make sure)\b|\bplease (?:remember|note)\b"
    r"|\b(?:do not|don't|never) forget\b|\bfrom now on\b|\byou must\b|\bnever (?:call|send|use|share|contact)\b"
    r"|\balways (?:use|call|send|answer|reply)\b"
)
"""Orders and explicit requests, wherever they stand in the text."""

_WEIGHTY = {name: re.compile(pattern) for name, pattern in SUBJECTS_OF_WEIGHT.items()}
_ORDERS = re.compile(ORDERS)


def importance(kind: str, text: str, *, requested: bool | None = None) -> float:
    """From 1 to 5 in steps of a half. `requested`: whether the speaker asked to keep it; None: look in the text."""
    folded = fold(text)
    asked = bool(_ORDERS.search(folded)) if requested is None else requested
    topics = sum(bool(pattern.search(folded)) for pattern in _WEIGHTY.values())
    score = KINDS[kind].default_importance + REQUESTED * asked + min(ADDITION * topics, ADDITIONS_MAX)
    return min(max(score, LEAST_IMPORTANCE), 5.0)
