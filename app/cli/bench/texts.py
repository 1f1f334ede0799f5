"""Memories and questions of made-up customers, Chinese and English, 20 to 60 tokens a memory; the same every run."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Final

MEMORIES: Final = (
    "客户{zh_name}的订单{code}已于{zh_date}从{city}仓库发出，预计{n}天内送达，他希望工作日晚上{hour}点以后再派送。",
    "{zh_name}说自己对{zh_food}过敏，聚餐之前一定要提前告诉餐厅，上次在{city}就因此住院观察了{n}天。",
    "用户在{zh_date}反映{zh_product}开机{n}分钟后自动重启，已经按照工单{code}的建议升级过固件，问题仍然存在。",
    "{zh_name}计划{zh_date}带父母去{city}旅游，想住在{place}附近的酒店，预算每晚不超过{money}元。",
    "公司在{city}的分部有{n}名员工，今年把客服系统换成了{zh_product}，负责人是{zh_name}，合同编号{code}。",
    "他更喜欢用微信沟通，不喜欢电话；如果确实需要打电话，请在上午{hour}点之前联系助理{zh_name}。",
    "{zh_name}养了一只{n}岁的银渐层猫，平时只吃{zh_food}味的冻干，最近在{city}的宠物医院做了体检。",
    "会员{code}申请把{zh_product}的年度订阅退款，金额{money}元，财务答复需要{n}个工作日原路退回。",
    "客户要求所有报价单都同时提供中文和英文版本，含税价格精确到分，发送到{city}办公室，抄送{zh_name}。",
    "她在{zh_date}参加了{city}马拉松，成绩四小时{n}分，赛后膝盖不舒服，医生建议停跑{hour}周。",
    "Customer {en_name} reported that order {code} came damaged on {en_month} {day} and wants a refund in {n} days.",
    "{en_name} is allergic to {en_food}; at dinner in {en_city} on {en_month} {day} the kitchen had to be warned.",
    "The {en_product} in the {en_city} office restarts every {n} minutes, although firmware {code} was installed.",
    "{en_name} prefers e-mail to calls and is never available before {hour} o'clock because of school runs.",
    "On {en_month} {day} the contract {code} with the {en_city} branch was extended by {n} months for {money} dollars.",
    "{en_name} moved from {en_city} to {en_city2} last spring and now works as a nurse on {n} night shifts a month.",
    "Ticket {code}: the {en_product} loses its network connection whenever {en_name} opens more than {n} reports.",
    "She plans to visit {en_city} with {n} colleagues on {en_month} {day} and wants a hotel under {money} dollars.",
    "{en_name} asked us to send invoices to the finance team in {en_city} and to quote purchase order {code}.",
    "After {n} weeks of training {en_name} ran the {en_city} half marathon, and wants {en_food} free meal plans.",
)

QUESTIONS: Final = (
    "{zh_name}的订单{code}什么时候能送到？",
    "{zh_name}在{city}吃饭有什么忌口，能吃{zh_food}吗？",
    "工单{code}里的{zh_product}最后怎么处理的？",
    "去{city}住{place}附近，{zh_name}的预算是多少？",
    "会员{code}的退款{money}元到账了没有？",
    "Where did {en_name} want order {code} to be delivered?",
    "Can {en_name} eat {en_food} at the dinner in {en_city}?",
    "What was wrong with the {en_product} in ticket {code}?",
    "How should we contact {en_name} about the {en_city} contract?",
    "Which hotel budget did {en_name} mention for {en_city} with {n} colleagues?",
)

_WORDS: Final = {
    "zh_name": "李明|王芳|张伟|刘洋|陈静|杨帆|赵敏|黄磊|周婷|吴昊|徐佳|孙鹏|马丽|朱琳|胡军|郭涛|何雪|高远|林悦|罗丹",
    "en_name": "Alice|Bob|Carol|David|Emma|Frank|Grace|Henry|Irene|Jack|Karen|Leo|Maria|Noah|Olivia|Peter|Rosa|Sam",
    "city": "杭州|成都|深圳|西安|武汉|南京|重庆|青岛|厦门|长沙|苏州|昆明|大连|哈尔滨|广州",
    "en_city": "Berlin|Lisbon|Toronto|Austin|Dublin|Oslo|Madrid|Prague|Denver|Boston|Lyon|Milan|Seattle",
    "en_city2": "Vienna|Zurich|Chicago|Helsinki|Porto|Leeds|Geneva|Atlanta",
    "place": "西湖|宽窄巷子|世界之窗|大雁塔|黄鹤楼|夫子庙|洪崖洞|栈桥|鼓浪屿|橘子洲",
    "zh_food": "芒果|花生|海鲜|牛奶|鸡蛋|小麦|芝麻|大豆|菠萝|桃子",
    "en_food": "peanuts|shellfish|mango|gluten|dairy|sesame|soy|eggs|walnuts|strawberries",
    "zh_product": "智能门锁|扫地机器人|会议平板|考勤系统|云客服|数据看板|打印机|路由器",
    "en_product": "laser printer|door lock|meeting panel|badge reader|cloud desk|label scanner|router",
    "en_month": "January|February|March|April|May|June|July|August|September|October|November|December",
}
_SLOTS: Final[Mapping[str, Sequence[str]]] = {name: words.split("|") for name, words in _WORDS.items()}


def memories(seed: str) -> Iterator[str]:
    """Endless distinct memories."""
    return _distinct(MEMORIES, seed)


def questions(seed: str) -> Iterator[str]:
    """Endless distinct questions."""
    return _distinct(QUESTIONS, seed)


def _distinct(templates: Sequence[str], seed: str) -> Iterator[str]:
    random = Random(seed)  # noqa: S311 - the same texts every run
    seen: set[str] = set()
    while True:
        text = random.choice(templates).format_map(_filling(random))
        if text not in seen:
            seen.add(text)
            yield text


def _filling(random: Random) -> dict[str, object]:
    return {name: random.choice(words) for name, words in _SLOTS.items()} | {
        "code": f"{random.choice('ABCDEFGH')}-{random.randint(1000, 99999)}",
        "zh_date": f"{random.randint(1, 12)}月{random.randint(1, 28)}日",
        "day": random.randint(1, 28),
        "n": random.randint(2, 60),
        "hour": random.randint(7, 11),
        "money": random.randint(20, 90) * 10,
    }
