"""What made-up customers say of themselves, in Chinese and English: each fact in three wordings, and the question.

Each wording shares a word with its question: the hashing embedder knows no synonyms, and models are measured elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Tongue = Literal["zh", "en"]


@dataclass(frozen=True, slots=True)
class Wordings:
    """A slot in one language: its values, statements with a {v}, and what an agent asks to learn the value."""

    values: Sequence[str]
    statements: Sequence[str]
    question: str


@dataclass(frozen=True, slots=True)
class Slot:
    """One thing that is true of a customer, in one value at a time."""

    kind: str
    wordings: MappingProxyType[Tongue, Wordings]


def _slot(kind: str, zh: tuple[str, str, str], en: tuple[str, str, str]) -> Slot:
    def wordings(values: str, statements: str, question: str) -> Wordings:
        return Wordings(values.split("|"), statements.split("|"), question)

    return Slot(kind, MappingProxyType({"zh": wordings(*zh), "en": wordings(*en)}))


SLOTS: Final = MappingProxyType(
    {
        "home": _slot(
            "profile",
            (
                "杭州|成都|深圳|西安|武汉|南京|苏州|厦门",
                "我现在住在{v}|我住的城市是{v}|我搬家了，现在住{v}",
                "用户住在哪个城市？",
            ),
            (
                "Berlin|Lisbon|Toronto|Austin|Dublin|Oslo|Madrid|Prague",
                "I live in {v} now|My home city is {v}|I moved and live in {v} now",
                "In which city does the customer live?",
            ),
        ),
        "work": _slot(
            "profile",
            (
                "云启科技|蓝湖软件|远山物流|青禾教育|星河医疗|北辰银行",
                "我在{v}上班|我的公司是{v}|我换了公司，现在在{v}",
                "用户在哪家公司上班？",
            ),
            (
                "Northwind|Contoso|Initech|Globex|Umbrella|Hooli",
                "I work at {v}|My employer is {v}|I changed jobs and work at {v} now",
                "Who is the employer, where does the customer work?",
            ),
        ),
        "allergy": _slot(
            "profile",
            (
                "芒果|花生|海鲜|牛奶|鸡蛋|芝麻",
                "我对{v}过敏|我不能吃{v}，会过敏|我吃{v}就过敏",
                "用户对什么食物过敏？",
            ),
            (
                "peanuts|shellfish|mango|gluten|dairy|sesame",
                "I am allergic to {v}|I cannot eat {v}, I get a rash|I have an allergic reaction to {v}",
                "Which food is the customer allergic to and cannot eat?",
            ),
        ),
        "contact": _slot(
            "user_preference",
            (
                "微信|邮件|电话|短信|企业微信",
                "请用{v}联系我|我希望用{v}联系|用{v}联系我最方便",
                "应该用什么方式联系用户？",
            ),
            (
                "e-mail|phone|chat|text message|letter",
                "Please contact me by {v}|I prefer to be reached by {v}|The best way to contact me is by {v}",
                "How does the customer prefer to be contacted or reached?",
            ),
        ),
        "car": _slot(
            "profile",
            (
                "比亚迪海豹|特斯拉Model 3|大众朗逸|丰田凯美瑞|蔚来ET5",
                "我开的车是{v}|我的车是{v}|我换了一辆{v}",
                "用户开什么车？",
            ),
            (
                "Volvo V60|Tesla Model 3|Honda Civic|Toyota Camry|Audi A4",
                "I drive a {v}|My car is a {v}|I bought a new car, a {v}",
                "What car does the customer drive?",
            ),
        ),
        "plan": _slot(
            "profile",
            (
                "基础版|专业版|企业版|旗舰版|试用版",
                "我订阅的套餐是{v}|我在用{v}套餐|我的套餐换成{v}了",
                "用户订阅的是哪个套餐？",
            ),
            (
                "Basic|Pro|Enterprise|Ultimate|Trial",
                "I am on the {v} plan|My subscription is the {v} plan|I switched to the {v} plan",
                "Which subscription plan is the customer on?",
            ),
        ),
        "pet": _slot(
            "profile",
            (
                "金毛犬|银渐层猫|柯基犬|布偶猫|荷兰猪|鹦鹉",
                "我家养了一只{v}|我的宠物是{v}|我现在养的宠物是{v}",
                "用户养了什么宠物？",
            ),
            (
                "beagle|tabby cat|poodle|parrot|hamster|rabbit",
                "I have a pet at home, a {v}|My pet is a {v}|The new pet is a {v}",
                "Which pet does the customer have?",
            ),
        ),
        "drink": _slot(
            "user_preference",
            (
                "美式咖啡|拿铁|绿茶|乌龙茶|豆浆|苏打水",
                "我最喜欢喝{v}|我平时只喝{v}|给我喝{v}就好",
                "用户喜欢喝什么？",
            ),
            (
                "black coffee|latte|green tea|oolong|oat milk|soda water",
                "My favourite drink is {v}|I usually drink {v}|The drink I want is {v}",
                "What does the customer like to drink?",
            ),
        ),
        "sport": _slot(
            "user_preference",
            (
                "羽毛球|游泳|跑步|攀岩|瑜伽|篮球",
                "我最喜欢的运动是{v}|我周末做的运动是{v}|我在坚持{v}这项运动",
                "用户喜欢什么运动？",
            ),
            (
                "badminton|swimming|running|climbing|yoga|tennis",
                "My favourite sport is {v}|The sport I do on weekends is {v}|The sport I practise is {v}",
                "Which sport does the customer like?",
            ),
        ),
        "phone": _slot(
            "profile",
            (
                "华为Mate 70|小米15|iPhone 16|荣耀Magic 7|OPPO Find X8",
                "我用的手机是{v}|我的手机型号是{v}|我刚换了{v}手机",
                "用户用的是什么手机？",
            ),
            (
                "Pixel 9|iPhone 16|Galaxy S25|Fairphone 5|Xperia 1",
                "My phone is a {v}|The phone I use is a {v}|I got a new phone, a {v}",
                "Which phone does the customer use?",
            ),
        ),
        "delivery": _slot(
            "user_preference",
            (
                "工作日上午|工作日晚上|周六上午|周六下午|周日全天",
                "请在{v}派送|{v}派送快递最方便|我希望快递{v}送到",
                "用户希望什么时候派送快递？",
            ),
            (
                "weekday mornings|weekday evenings|Saturday mornings|Saturday afternoons|Sundays",
                "Please deliver parcels on {v}|I want parcels delivered on {v}|My parcels should come on {v}",
                "When does the customer want parcels delivered?",
            ),
        ),
        "language": _slot(
            "user_preference",
            ("日语|法语|西班牙语|德语|韩语", "我在学{v}|我在学的外语是{v}|我的外语课是{v}课", "用户在学哪门外语？"),
            (
                "Japanese|French|Spanish|German|Korean",
                "I am learning {v}|I take {v} language classes|The language I study is {v}",
                "Which language is the customer learning?",
            ),
        ),
    }
)

SMALL_TALK: Final[MappingProxyType[Tongue, Sequence[str]]] = MappingProxyType(
    {
        "zh": ("好的，谢谢你", "你好，在吗？", "没问题，明白了", "哈哈，太好了", "辛苦了，再见"),
        "en": (
            "Okay, thank you so much!",
            "Hello, are you there?",
            "Sounds good, got it",
            "Haha, great",
            "Thanks, bye",
        ),
    }
)

CASES: Final[MappingProxyType[Tongue, Sequence[str]]] = MappingProxyType(
    {
        "zh": (
            "工单{code}：{thing}无法联网，等待工程师回复",
            "工单{code}：已寄出{thing}的备件，预计{n}天到",
            "工单{code}已解决，{thing}恢复正常",
        ),
        "en": (
            "Case {code}: the {thing} is offline, waiting for the engineer",
            "Case {code}: a spare part for the {thing} is under way, {n} days",
            "Case {code} is resolved, the {thing} works again",
        ),
    }
)
"""A case as it is opened, goes on and is closed."""

THINGS: Final[MappingProxyType[Tongue, Sequence[str]]] = MappingProxyType(
    {
        "zh": ("路由器", "打印机", "智能门锁", "会议平板", "扫地机器人"),
        "en": ("router", "laser printer", "door lock", "meeting panel", "badge reader"),
    }
)
