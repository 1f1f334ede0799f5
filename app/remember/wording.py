"""Words of everyday statements, Chinese and English: which mean the same, which carry no fact, which tie or turn one.

Invariant: Chinese words are written as the tokenizer cuts them and English ones as its stems; the first of a row of
SYNONYMS stands for the others.
"""

import re
from collections.abc import Iterable
from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SYNONYMS: Final = tuple(
    tuple(row.split())
    for row in (
        "爸爸 父亲 爸 老爸",
        "妈妈 母亲 妈 老妈",
        "老婆 妻子 太太",
        "老公 丈夫",
        "爷爷 祖父",
        "奶奶 祖母",
        "喜欢 爱 喜爱 热爱 爱好 偏好 钟爱 喜好 偏爱",
        "讨厌 厌恶 反感",
        "老家 家乡 故乡 籍贯 家",
        "单位 公司 企业",
        "上班 工作 任职 供职 就职 工作地 干活",
        "电话 手机 电话号 电话号码 手机号 手机号码 号码 联系电话",
        "邮箱 邮件 电子邮箱 邮箱地址",
        "名字 姓名 名叫 叫 叫做 叫作",
        "身高 个子 个头 个头儿",
        "日 号",
        "生日 出生",
        "学历 教育 文凭 毕业 母校 毕业于",
        "职位 职务 岗位 职业",
        "地方 地点 位置 地址 地",
        "从事 干 做 当 担任",
        "住 住在 居住 家住",
        "年纪 年龄 岁数 岁",
        "会议 开会 会",
        "买 购买 购入",
        "想要 要 希望 想 想让",
        "看书 阅读 读书",
        "写作 东西",
        "登山 爬山",
        "做菜 烹饪 做饭 下厨",
        "厨师 大厨",
        "绘画 画画",
        "旅行 旅游",
        "外语 语言",
        "上午 早上 早晨",
        "回答 回复 答复",
        "教师 讲师 老师",
        "帐号 账号 账户",
        "怎么 怎样 如何 怎么样 咋",
        "什么 啥",
        "哪里 哪儿 哪 何处",
        "为什么 为何 为啥",
        "多少 几",
        "like love enjoy prefer ador fond",
        "mom mother mum",
        "dad father",
        "job work employ",
        "live resid",
        "phone telephon mobil cell",
        "e-mail email mail",
        "buy purchas",
        "film movi",
        "kid child children",
        "allerg allergi",
    )
)
STANDS_FOR: Final = {word: row[0] for row in reversed(SYNONYMS) for word in reversed(row)}

FUNCTION: Final = _words(
    """
    a about am an and any are as at be been being by did do does for from had has have i if in into is it its of on
    or so some that the their them then there these they this those to too was were will with would s what which who
    whom 的 地 得 了 着 过 是 在 有 和 与 及 也 都 就 还 又 而 但 把 被 对 为 于 之 所 以 这 那 其 此 他 她 它 他们
    她们 它们 自己 吗 呢 啊 吧 呀 嘛 哦 哈 嗯 啦 么 哎 挺 很 好 非常 特别 特 真 太 可 才 个 位 名 只 今年 现在 目前
    已经 平时 一个 那个 这个 一下 请问 请 能 可以 就是 那边 人
    """
)
"""Words that carry no fact of their own."""

FRAME: Final = _words(
    """
    喜欢 老家 单位 上班 电话 邮箱 名字 身高 日 月 号 生日 学历 职位 地方 从事 住 年纪 会议 兴趣 有 学位 读 上 念
    念到 上到 读到 只有 来自 过生日 程度 背景 人 活儿 送 厘米 公斤 高 地儿 习惯 打算 计划 准备 想要 要求 家里 养 用
    使用 正在 最近 学习 学 安排 感兴趣 兴趣爱好 事儿 说 觉得 认为 属于 位于 负责 处于 需要 当中 里 那儿 大约 大概
    左右 一直 经常 常常 常 每天 总是 通常 一般 比较 更 最 超级 超 尤其 十分 相当 确实 其实 好像 进行 感到 拥有 带 去
    来 会 让 给 到 从 当初 大学 种 件 份 场 次 条 员 由 作为 正好 块儿 团队 些 供职于 任职于 毕业于 have own live
    work use take handl respons studi learn start plan travel go trip current realli veri much quit best employ home
    like job drive care charg
    """
)
"""How something is said and not what: verbs and nouns of attributes, degrees, measures."""

LONE_CHARACTERS: Final = frozenset("我你他她它的是在有就也还都这那个位名字单职喜欢爱学于由些样月日号岁家人过行师地只")
"""What is left of a word that was cut differently in two texts, and means nothing alone."""

KIN_AND_ROLES: Final = _words(
    """
    爸爸 妈妈 老婆 老公 爷爷 奶奶 外公 外婆 姥姥 姥爷 哥哥 姐姐 弟弟 妹妹 表哥 表姐 表弟 表妹 堂哥 堂姐 堂弟 堂妹
    叔叔 婶婶 舅舅 舅妈 姑姑 姑妈 姑父 阿姨 姨妈 姨父 伯伯 伯父 伯母 大伯 侄子 侄女 外甥 外甥女 儿子 女儿 孙子 孙女
    岳父 岳母 公公 婆婆 上司 下属 同事 领导 老板 经理 主管 同学 朋友 邻居 室友 教师 学生 客户 助理 秘书 男朋友
    女朋友 男友 女友 前任 闺蜜 师傅 徒弟 男人 女人 男孩 女孩 男生 女生 孩子 宝宝 dad mom wife husband son daughter
    brother sister uncl aunt cousin niec nephew grandmoth grandfath grandma grandpa boss manag colleagu cowork
    friend neighbor neighbour roommat teacher student client man woman men women boy girl
    """
)
CUT_OUT: Final = "父亲|母亲|妻子|丈夫|老爸|老妈|老师|讲师|用户|我们|咱们|你们|您们|我(?<!自我)|你|您"

PERSONS: Final = {
    **dict.fromkeys(_words("我 我们 咱们 咱 i my me we our us mine 用户 user"), "@1"),
    **dict.fromkeys(_words("你 您 你们 您们 you your"), "@2"),
}
"""Whoever speaks, and whoever is spoken to. A memory about `the user` is in the user's own words a memory about me."""

ASKING: Final = {
    "怎么": "?how", "how": "?how", "什么": "?what", "what": "?what", "哪里": "?where", "where": "?where",
    "为什么": "?why", "why": "?why", "多少": "?many", "谁": "?who", "who": "?who", "whom": "?who", "which": "?which",
    "吗": "?if", "是不是": "?if", "能不能": "?if", "whether": "?if",
}  # fmt: skip


class Either:
    """A choice of patterns of both languages; a text in ASCII is searched only for those that it can hold.

    Each pattern that is not in ASCII needs one of its Chinese characters to be found. No two overlap."""

    __slots__ = ("_ascii", "_inside", "_whole")

    def __init__(self, *patterns: str) -> None:
        self._whole = re.compile("|".join(patterns))
        english = [pattern for pattern in patterns if pattern.isascii()]
        # Apart, because each of the two is looked for at a glance: what begins a word, and what begins with a letter.
        inside = [pattern for pattern in english if not pattern.startswith(r"\b")]
        self._ascii = re.compile("|".join(pattern for pattern in english if pattern.startswith(r"\b")) or "(?!)")
        self._inside = re.compile("|".join(inside)) if inside else None

    def search(self, text: str) -> re.Match[str] | None:
        """One of them, not always the first."""
        if not text.isascii():
            return self._whole.search(text)
        return (self._inside and self._inside.search(text)) or self._ascii.search(text)

    def count(self, text: str) -> int:
        """How often one is found."""
        if not text.isascii():
            return len(self._whole.findall(text))
        return len(self._ascii.findall(text)) + (len(self._inside.findall(text)) if self._inside else 0)


# What stands before a word is looked at behind it: a choice whose rows begin with letters is four times faster.
ENDING: Final = re.compile(
    r"离职|辞职|辞去|离开|被裁|被辞退|退休|注销|退订|戒(?![指备律尺])|搬[离出]"
    r"|\b(?:left|leav(?:es?|ing)|resign\w*|quit\w*|(?:give|gave|given|giving) up|mov(?:ed|ing) (?:out|away)|retired"
    r"|used to|laid off|fired)\b"
)
"""What says that something is over: whoever left Acme does not say what one says who works there."""
BUT: Final = "过(?![敏期夜审户问])"
"""Behind 不: 不过 is "but", and 不过敏 is "not allergic"."""
NEGATION: Final = Either(
    r"别(?<![差特分区性级告识判个类辨送离惜]别)(?![人的墅名称致扭号])"
    rf"|不(?<!无不)(?!仅|但|断|同|错|久|管|论|只|{BUT}|少|得不|好意思|客气|用谢)|没(?!关系|事)|无(?!论|锡|线|人机|敌|印)"
    r"|非(?!常|洲|诚|得)|未(?!来|必)|勿|莫(?!名)|禁止|拒绝|取消",
    r"n't\b",
    r"\b(?:not?|cannot|never|without|none|nobody|nothing|neither|nor|refuses?d?|cancell?(?:s|ed)?|stop(?:s|ped)?|quit)\b",
)
EITHER_WAY: Final = re.compile(r"([\u4e00-\u9fff])[不没]\1|有没有|[吗么]?不[?？]|没有?[?？吗]?$|不$")
"""Questions that only look negated: 好不好, 有没有, 去不?"""

QUALIFIERS: Final = re.compile(
    r"和(?![平谐睦气好])|以及|、|但是?|而且|并且|另外|此外|顺便|还(?=[会有要想喜养在])|不过(?!来)|除了?(?!夕|法)|如果|要是(?!你)|例外|以外|之外"
    r"|的时候|可能|也许|偶尔|有时|只(?=[在和跟吃喝用要会能接喜想看听])|仅[在限]|只有(?=.{1,8}[才时])"
    r"|\b(?:and|also|unless|except|only|but|if|when|while|until|during|sometimes|rarely|usually|maybe|probably|perhaps)\b"
)
"""What limits a statement or adds a second one to it."""

OPPOSITES: Final = tuple(
    (frozenset(left.split()), frozenset(right.split()))
    for left, right in (
        ("喜欢 爱 喜爱 热爱 爱吃", "讨厌 恨 厌恶 反感 害怕"),
        ("上午 早上 早晨 凌晨", "下午 晚上 傍晚 夜里"),
        ("上周 上个月 上次 去年 昨天", "下周 下个月 下次 明年 明天"),
        ("开 打开 开启 启用 开始", "关 关闭 停用 禁用 结束"),
        ("同意 接受 批准 通过", "反对 驳回 否决"),
        ("买 买入 购买 收入 存", "卖 卖出 出售 支出 取"),
        ("增加 上升 提高 涨", "减少 下降 降低 跌"),
        ("左 前 里 内", "右 后 外"),
        ("男 爸爸 儿子 老公 哥哥", "女 妈妈 女儿 老婆 姐姐"),
        ("简短 简单", "详细"),
        ("like love enjoy prefer adore ador", "dislike dislik hate detest avoid loath"),
        ("morn am", "afternoon even pm night"),
        ("last previous yesterday", "next tomorrow"),
        ("open enabl start begin on", "close disabl end finish off"),
        ("accept approv agre", "reject declin disagre deni"),
        ("buy bought incom deposit", "sell sold expens withdraw"),
        ("increas rise higher more", "decreas fall lower less"),
        ("left front before first", "right back after last"),
        ("dad son husband brother his he", "mom daughter wife sister her she"),
        ("always alway", "never rare seldom"),
        ("short brief", "long detail"),
    )
)
"""Words that turn a statement round when one text has the left and the other the right."""

STATES: Final = tuple(
    (frozenset(left.split()), frozenset(right.split()))
    for left, right in (
        ("单身 未婚 离婚", "结婚 已婚"),
        ("同意 赞成 赞同", "反对"),
        ("打开 开启 启用 开着", "关闭 关掉 停用 禁用 关着"),
        ("营业", "歇业 停业 打烊"),
        ("在线 上线", "离线 下线"),
        ("通过 批准", "驳回 否决 拒绝"),
        ("成功", "失败"),
        ("singl unmarri divorc", "marri"),
        ("agre accept approv", "disagre reject oppos declin"),
        ("enabl open", "disabl close"),
        ("onlin", "offlin"),
        ("aliv", "dead"),
    )
)
"""Words for states of which one thing has only one at a time; of OPPOSITES one may do both, at different times."""

UNITS: Final = {
    "cm": "厘米", "公分": "厘米", "mm": "毫米", "km": "公里", "千米": "公里", "kg": "公斤", "千克": "公斤", "m": "米",
}  # fmt: skip


class Preferences:
    """Verbs of liking and disliking, and whether a sentence likes, dislikes, or merely states what it states."""

    LIKING: Final = _words("喜欢 爱 爱吃 爱喝 爱看 热衷 享受 like enjoy prefer love ador fond stand bear toler")
    DISLIKING: Final = _words("讨厌 恨 厌恶 反感 害怕 受不了 忍受不了 嫌弃 hate dislik detest avoid loath despis")
    NEGATING: Final = _words(
        "不 没 没有 未 别 不是 从不 not no never cannot don doesn didn t ca wo can doe do isn wasn aren weren hasn"
        " haven hadn"
    )

    _TURNING: Final = LIKING | DISLIKING | NEGATING

    def turn(self, words: tuple[str, ...], negations: int) -> bool:
        """Whether a sentence with these words and so many negations is for what it speaks of."""
        against = any(word in self.DISLIKING for word in words)
        return (negations + against) % 2 == 0

    def without(self, words: Iterable[str]) -> list[str]:
        """The words that neither prefer nor deny."""
        return [word for word in words if word not in self._TURNING]


PREFERENCES: Final = Preferences()
