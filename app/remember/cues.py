"""CUES: the words that say that something changed, in Chinese and English, as data."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from app.remember.wording import BUT

Kind = Literal[
    "ended", "replaced", "moved", "renamed", "now", "is_now", "left", "left_home", "jobless", "negated"
]  # fmt: skip


@dataclass(frozen=True)
class Cue:
    """Update words. What stands before them is the topic, behind them the new value; a group `old` is the old one.

    `anywhere` is a pattern of what may stand anywhere (Chinese), `english` one of what begins a word.
    """

    kind: Kind
    anywhere: str
    english: str = ""

    @cached_property
    def words(self) -> re.Pattern[str]:
        return re.compile("|".join(rows([self])))


def rows(cues: Sequence[Cue]) -> list[str]:
    """The patterns of these cues; English ones are one, so that what begins no word is passed over at once."""
    english = "|".join(cue.english for cue in cues if cue.english)
    return [*(cue.anywhere for cue in cues if cue.anywhere), *([rf"\b(?:{english})"] if english else [])]


_PART: Final = "[^，。；,;]"
_ATTRIBUTE_ZH: Final = (
    "手机号码?|手机|电话号码?|电话|号码?|地址|住址|邮箱|微信号?|车牌号?|工号|公司|单位|职位|岗位|老板|截止日期"
)
_ATTRIBUTE_EN: Final = (
    "(?:phone |mobile |cell )?number|phone|mobile|e-?mail(?: address)?|(?:home |work )?address|job(?: title)?|title"
    "|position|role|employer|company|surname|last name|boss|manager|deadline|favou?rite [a-z]{2,20}"
)
_INTO: Final = "(?:改|换|变|替换|更换)[成为]了?"
_SINCE_EN: Final = r"(?=$| (?:last|this|an?|two|three|in|since|yesterday|recently|early|earlier)\b)"
_OVER: Final = rf"(?={_PART}{{1,12}}了[。！!]?$)"
# The first that is found counts, so those that name the old value come first.
CUES: Final = (
    Cue("replaced", rf"[把将](?P<what>[^，。；,;从由]{{1,12}})[从由](?P<old>{_PART}{{1,20}}?){_INTO}"),
    Cue("replaced", rf"[从由](?P<old>{_PART}{{1,20}}?){_INTO}"),
    Cue("replaced", rf"不[是在](?P<old>{_PART}{{1,20}}?)了?[，,]\s?而?[是在]"),
    Cue(
        "replaced",
        "",
        r"(?:changed|switched|moved|migrated|upgraded|went|rescheduled)\s+from\s+(?P<old>.{1,40}?)\s+to\b",
    ),
    Cue("replaced", "", r"replaced\s+(?P<old>.{1,40}?)\s+(?:with|by)\b"),
    Cue(
        "renamed",
        "改名[为叫成]?了?|更名[为成]?了?|现在叫|改叫",
        r"(?:was |is |been )?renamed(?: to)?\b|now called\b",
    ),
    Cue("replaced", "推迟到|提前到|延期到|延后到|改期到|顺延到|改到|挪到|移到"),
    Cue("replaced", "", r"(?:rescheduled|postponed|brought forward|put off) to\b"),
    Cue(
        "replaced",
        "改成|改为|改[用喝吃穿坐]|换[成为]|变[成为]|变更为|更改为|更新为|调整[为到]|升级[到为]|换用|转用",
        r"(?:has |have |been |is |was )*(?:changed|switched|updated|upgraded|migrated|adjusted|set back) to\b",
    ),
    Cue(
        "replaced",
        rf"新的?(?P<what>{_ATTRIBUTE_ZH})(?:是|为|叫|[:：])",
        rf"new (?P<what_en>{_ATTRIBUTE_EN}) (?:is|are)\b",
    ),
    Cue("is_now", "(?:现在|如今)(?:已经)?(?:是|为|变成)(?!不)", r"(?:is|are) now\b(?! (?:that|because))"),
    Cue(
        "left",
        rf"从(?P<old>{_PART}{{1,16}}?)(?:离职|辞职|跳槽|离开)了?|(?:离开|辞去)了?(?P<old_zh>{_PART}{{1,16}})(?:的(?:工作|职务))?",
        r"(?:left|resigned from|was fired from|was laid off (?:by|from)) (?P<old_en>(?!my\b)[^,.;]{1,30}?)"
        r"(?= (?:and|to) join|$)",
    ),
    Cue(
        "jobless",
        "(?:离职|辞职|辞去工作|被裁员?|被辞退|被开除|失业|退休|下岗)了?$",
        rf"(?:(?:quit|left|lost|resigned from) my job|(?:was|been|got|am|'m) (?:laid off|fired|made redundant)"
        rf"|resigned|retired){_SINCE_EN}",
    ),
    Cue(
        "left_home",
        rf"搬[离出](?:了)?(?P<old>{_PART}{{1,16}})",
        r"moved (?:out of|away from) (?P<old_en>[^,.;]{1,30})",
    ),
    Cue("moved", "搬[到去来回进]|搬家到|迁居|移居", r"(?:moved|relocated|moving) (?:back )?to\b"),
    Cue("ended", "再也不|不再|戒掉了?|戒了|戒(?![指备律尺毒不])", r"no longer\b|not anymore\b|no more\b"),
    Cue("ended", "", r"(?:quit|stopped(?! (?:by|in|at|off|over|here|there))|gave up|given up)\b"),
    Cue("negated", rf"不(?!{BUT}|[仅但是]){_OVER}|没有?{_OVER}"),
    Cue("ended", r"n't\b(?=.{1,60}\bany ?more\b)", r"(?:cannot|not|never)\b(?=.{1,60}\bany ?more\b)"),
    Cue(
        "now",
        "(?:现在|如今|终于)(?:能|可以|敢)(?=.{1,12}了$)|跳槽[到去]|入职了?(?![体培材手流时日])|"
        + "|".join(
            f"{now}[是改]?(?=住|在.{{1,16}}(?:工作|上班|任职)|搬|换|的?(?:电话|手机|邮箱|地址|微信))"
            for now in ("现在", "目前", "如今", "已经")
        ),
        r"can (?=.{1,40}\b(?:now|again)$)|(?:now|currently) (?=live|work|can )|(?:live|work)s?\b(?=.{1,40}\bnow$)",
    ),
)
