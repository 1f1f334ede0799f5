"""What is too trivial to keep: greetings, thanks, fillers, pleasantries, laughter and sums on the way; pure.

Invariant: only a text that consists of nothing else is trivial. A name, a number outside of a sum, an address or any
word that is not in the tables makes it worth keeping.
"""

import re
from typing import Final, Literal

from app.language import fold

Trivial = Literal["greeting", "thanks", "filler", "pleasantry", "calculation"]

LONGEST: Final = 80
"""Characters; a longer text says something, even if politely."""

PHRASES: Final[dict[Trivial, str]] = {
    "thanks": """
        谢谢 谢了 谢啦 谢谢你 谢谢您 谢谢大家 多谢 感谢 感谢你 感谢您 非常感谢 十分感谢 太感谢了 万分感谢 感激不尽
        辛苦了 辛苦 辛苦你了 辛苦您了 麻烦了 麻烦你了 麻烦您了 感谢您的理解 感谢您的支持 感谢您的配合
        感谢您的耐心等待 感谢您的等待 感谢您的咨询 感谢您的来电 谢谢您的理解 谢谢您的支持
        |thanks|thank you|thank u|thx|ty|tysm|many thanks|thanks a lot|thanks a bunch|thanks again|thank you again
        |cheers|much appreciated|appreciate it|i appreciate it|i really appreciate it|i appreciate that
        |thanks for your help|thank you for your help|thanks for the help|thanks for your time|thank you for your time
        |thanks for asking|thanks for your patience|thank you for your patience|thanks so much|thank you so much
        |thank you very much
    """,
    "greeting": """
        你好 您好 你们好 嗨 嗨喽 哈喽 哈啰 哈罗 早 早上好 早安 上午好 中午好 下午好 晚上好 晚安 大家好 各位好 在吗
        在么 在不在 在不 有人吗 有人在吗 好久不见 你好吗 您好吗 最近怎么样 最近好吗 吃了吗
        |hi|hello|hey|hiya|yo|good morning|morning|good afternoon|good evening|evening|good night|hi there|hello there
        |hey there|how are you|how are you doing|how are you today|how have you been|how is it going|how's it going
        |how are things|what's up|sup|nice to meet you|nice to see you|good to see you|great to see you
        |long time no see|are you there|anyone there|anybody there|it's been a while|good to hear from you
        |great to hear from you
    """,
    "pleasantry": """
        再见 拜拜 拜 拜了 回见 回头见 明天见 下次见 待会见 一会儿见 慢走 保重 加油 祝你好运 祝您好运 周末愉快
        节日快乐 新年快乐 祝您生活愉快 祝您购物愉快 祝您工作顺利 祝你开心 祝您愉快 生活愉快 欢迎下次光临 欢迎光临
        不客气 不用客气 别客气 您客气了 你客气了 客气了 不用谢 没关系 没事 没事的 没事儿 应该的 抱歉 非常抱歉 很抱歉
        实在抱歉 对不起 不好意思 真不好意思 打扰了 打扰一下 请问 请问一下 劳驾 请问有什么可以帮您
        请问有什么可以帮到您 有什么可以帮您 有什么可以帮到您 请问有什么可以帮您的吗 有什么可以帮您的吗
        有什么可以帮到您的吗 请问还有其他可以帮您的吗 请问还有其他可以帮到您的吗 还有其他可以帮到您的吗
        请问还有其他还可以帮到您的吗 请问还有什么可以帮您的吗 还有什么可以帮您的吗 还有其他问题吗 请问还有其他问题吗
        很高兴为您服务 很高兴为你服务 为您服务 有什么问题我可以帮您处理或解决呢 有任何问题随时联系我 请问有什么问题
        请问您有什么问题
        |bye|goodbye|good bye|bye bye|see you|see ya|see you later|see you soon|see you tomorrow|see you then
        |talk later|talk to you later|talk to you soon|talk soon|catch you later|later|take care|take it easy
        |have a nice day|have a good day|have a great day|have a good one|have a nice evening|have a good evening
        |have a great weekend|have a nice weekend|have a good weekend|good luck|best of luck|you're welcome
        |you are welcome|you too|same to you|my pleasure|it's my pleasure|no problem|no problem at all|no worries|np
        |don't mention it|anytime|any time|not at all|sorry|i'm sorry|so sorry|excuse me|pardon|pardon me|glad to help
        |happy to help|glad i could help|welcome|how can i help|how can i help you|how can i help you today
        |how may i help you|how may i help you today|is there anything else i can help you with
        |anything else i can help with|anything else|let me know|if you have any questions let me know
        |feel free to reach out|feel free to ask|best regards|kind regards|regards
    """,
    "filler": """
        嗯 恩 哦 噢 喔 啊 呃 额 诶 哎 唉 呀 哇 哇塞 哟 嗯哼 好 好的 好吧 好滴 好哒 好嘞 好呀 好啊 好哦 好了 行 行吧
        行的 可以 可以的 可以啊 是 是的 是啊 是呀 对 对的 对啊 对呀 没错 知道了 我知道了 知道 明白 明白了 我明白了
        了解 了解了 收到 懂了 我懂了 原来如此 这样啊 原来是这样 是这样啊 那好 那好吧 那行 就这样 就这样吧 没问题 不错
        真不错 很好 太好了 真好 太棒了 真棒 厉害 好厉害 真的 真的吗 真的假的 是吗 这样吗 有道理 哈 哈哈 呵呵 嘿嘿
        嘻嘻 嘿 笑死 笑死我了 请稍等 稍等 稍等一下 请您稍等 您稍等 稍等哦 等一下 等等 等会 等会儿 等我一下 马上
        让我想想 我想想 想一想 怎么说呢 那个 这个 这个嘛 然后 然后呢 还有呢 继续 继续说 接着说 说吧 来吧 走吧 算了
        哎呀 我去 天哪 我的天 不会吧 嗯嗯 就是 就是说 总之 反正 没什么 没啥 没有了 没了 没别的了
        |ok|okay|okey|k|kk|sure|sure thing|yes|yeah|yep|yup|ya|aye|got it|i got it|gotcha|i see|i understand
        |understood|makes sense|that makes sense|sounds good|sounds great|that sounds good|that sounds great
        |that's great|that's good|that's nice|that's awesome|that's cool|that's amazing|that's right|that's true
        |that's fine|alright|all right|fine|it's fine|it's ok|it's okay|great|good|cool|nice|awesome|perfect|wonderful
        |amazing|excellent|fantastic|lovely|right|exactly|indeed|absolutely|definitely|totally|certainly|of course
        |true|agreed|i agree|same here|me too|hm|hmm|um|umm|uh|er|oh|ah|aha|wow|whoa|ooh|lol|haha|hehe|rofl|oh my god
        |omg|oh no|really|for real|no way|let me see|let me think|let me check|one moment|one moment please
        |just a moment|just a sec|one sec|hold on|hang on|wait|please wait|give me a second|you know|well|anyway|so
        |then|and then|interesting|go on|go ahead|continue|please continue|carry on|noted|roger|will do|never mind
        |nevermind|nothing|nothing else|that's all|that's it|i think so|i guess|i guess so|maybe|whatever|yay
        |tell me more
    """,
}
"""Phrases by what they are: Chinese ones divided by blanks, English ones by bars."""

GLUE: Final = """
    啊 呀 哦 哈 吧 呢 啦 了 哒 嘛 哟 噢 亲 亲爱的 亲爱哒 您 你 客服 大家 各位 那 就 先 太 很 真 的 吗 这边 先生 女士
    老师 一下 呵 啦啦
    |so|very|much|a lot|sir|madam|ma'am|dear|all|everyone|everybody|guys|folks|friend|buddy|mate|too|again|and|but
    |please|there|then|now|today|just|really|it|that|to you|for you|as well
"""
"""What may stand between and beside the phrases without saying anything."""

_TOKENS = re.compile(r"[\u3400-\u9fff]|[a-z]+(?:'[a-z]+)*|\d+q?|[^\W_]")
_STRETCHED = re.compile(r"([a-z])\1{2,}")
_LAUGHTER = re.compile(r"(?:ha|he|hi|ho|xi|ja)+h?|l+o+l+|x+d+|h+m+|u+h+|a+h+|o+h+|m+")
_SUM = re.compile(
    r"(?:(?:所以|因此|也就是|即|那么|就是|先算|计算|算一下|中间结果|so|then|thus|hence|first|next|that is|step \d+)"
    r"[\s,，:：]*)*"
    r"(?:[-+]?\(*\d[\d,.]*%?\)*\s*[-+*/×÷x^]\s*)+\(*\d[\d,.]*%?\)*\s*(?:=|等于|equals|is)\s*[-+]?\d?[\d,.]*%?[?.。]?"
)


def trivial(text: str) -> Trivial | None:
    """Why a text is not worth a memory, or None; a text without any letter or digit (「👍」) is a filler."""
    if len(text) > LONGEST:
        return None
    folded = fold(text)
    if _SUM.fullmatch(folded.strip()):
        return "calculation"
    tokens = [_STRETCHED.sub(r"\1", token) for token in _TOKENS.findall(folded)]
    return _reason(tokens) if tokens else "filler"


def _reason(tokens: list[str]) -> Trivial | None:
    """Whether the tokens can be divided into phrases and glue, at least one phrase; the weightiest names the reason."""
    unreachable = len(_ORDER) + 1
    only_glue = len(_ORDER)
    best = [only_glue] + [unreachable] * len(tokens)
    for start in range(len(tokens)):
        if best[start] == unreachable:
            continue
        for end in range(start + 1, min(start + _LONGEST_PHRASE, len(tokens)) + 1):
            part = tuple(tokens[start:end])
            if part in _GLUE_PHRASES:
                best[end] = min(best[end], best[start])
            if (reason := _REASONS.get(part)) is not None:
                best[end] = min(best[end], best[start], reason)
        if _LAUGHTER.fullmatch(tokens[start]):
            best[start + 1] = min(best[start + 1], best[start], _ORDER.index("filler"))
    return _ORDER[best[-1]] if best[-1] < only_glue else None


def _phrases(table: str) -> set[tuple[str, ...]]:
    chinese, *english = table.split("|")
    return {tuple(_TOKENS.findall(fold(phrase))) for phrase in (*chinese.split(), *english)}


_ORDER: Final[tuple[Trivial, ...]] = ("thanks", "greeting", "pleasantry", "filler")
_REASONS = {phrase: _ORDER.index(reason) for reason in reversed(_ORDER) for phrase in _phrases(PHRASES[reason])}
_GLUE_PHRASES = _phrases(GLUE)
_LONGEST_PHRASE = max(map(len, (*_REASONS, *_GLUE_PHRASES)))
