"""What customers of a service say; what belongs to a request and not to the fact; who and when is meant."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from app.extract import Fact, Message, importance_of
from app.extract.conversation import Role
from app.extract.customers import CUSTOMERS
from app.extract.rules import facts_by_rules
from app.extract.sentences import asked_to_keep
from app.language import fold

ZONE = ZoneInfo("Asia/Shanghai")
AT = datetime(2026, 3, 10, 10, tzinfo=ZONE)


def read(*said: str | tuple[Role, str]) -> list[Fact]:
    messages = [Message("user", one, AT) if isinstance(one, str) else Message(one[0], one[1], AT) for one in said]
    return list(facts_by_rules(messages, ZONE).facts)


ORDERS = [
    "快递别放菜鸟驿站，送到门口",
    "师傅白天别来，我要上班",
    "航班别订红眼航班",
    "以后的账单发到我邮箱",
    "赔款打到我建行卡上，尾号6620",
    "微信联系就行",
    "有进展给我发短信",
    "Please send the new card by post, not by courier.",
    "I travel for work, so please don't block my card without texting me first.",
    "Please don't ring the bell, the baby sleeps.",
    "Leave it with my neighbour at number 12.",
    "Ship it to my office.",
]
HABITS = [
    "手机银行我用不惯",
    "我一般去柜台办",
    "我再也不买那个牌子了",
    "我平时穿42码",
    "我只有周三下午有空",
    "I don't use credit cards online.",
    "We can't take calls at work.",
    "I'm only free on Tuesdays and Thursdays.",
    "I travel a lot for work.",
    "We love ryokans.",
]
BODIES = ["我睡眠浅", "我腰不好", "我叫陈静，身份证登记的就是我", "I have a bad back."]
TROUBLES = [
    "我家宽带又断网了，打不开网页",
    "前保险杠撞坏了",
    "洗衣机装好了但是一直漏水",
    "我想把套餐从129降到59",
    "I want to add my son to my car insurance.",
    "居住证上周刚办下来",
    "打算还20万",
    "My internet keeps dropping every evening",
    "The roof is badly damaged.",
    "Our router won't turn on.",
    "We're staying at my sister's place until it is fixed.",
]
NUMBERS = [
    "后四位是8812",
    "保单号PICC20251188，车牌浙A12345",
    "新卡请寄到公司，地址是杭州市文三路90号",
    "发票抬头开杭州云启科技有限公司",
    "我预算每月50以内",
    "昨天已经交了3000块定金",
    "my confirmation code is QX7T2L",
    "We owe 250k on the house.",
    "I pay 45 pounds a month for this",
    "I noticed a charge of $84.20 from Orbit Fitness",
]


@pytest.mark.parametrize("text", ORDERS)
def test_how_somebody_wants_to_be_served_is_a_preference_that_weighs(text: str) -> None:
    facts = read(text)
    assert {fact.kind for fact in facts} == {"user_preference"}
    assert max(fact.importance for fact in facts) == 5
    assert importance_of("user_preference", text) == 5


@pytest.mark.parametrize("text", HABITS)
def test_what_somebody_does_and_cannot_do_is_a_preference(text: str) -> None:
    assert {fact.kind for fact in read(text)} == {"user_preference"}


@pytest.mark.parametrize("text", BODIES)
def test_what_somebody_is_is_their_profile(text: str) -> None:
    assert "profile" in {fact.kind for fact in read(text)}


@pytest.mark.parametrize("text", TROUBLES)
def test_what_is_wrong_or_under_way_is_a_state(text: str) -> None:
    assert {fact.kind for fact in read(text)} == {"task_state"}


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_by_which_something_is_found_and_sums_of_money_are_kept(text: str) -> None:
    assert len(read(text)) == 1


def test_each_row_of_customers_is_met_above() -> None:
    told = [ORDERS, HABITS, BODIES, TROUBLES, NUMBERS]
    for row, texts in zip(CUSTOMERS, told, strict=True):
        for pattern in (row.words.zh, row.words.en):
            assert any(
                row.words.pattern.search(fold(text)) for text in texts if text.isascii() == (pattern == row.words.en)
            )


CHATTER = [
    "别担心，会好的",
    "你别来烦我",
    "可把我吓坏了",
    "我考虑一下，下周再联系你",
    "再想想吧",
    "得好好计划一下",
    "今天天气不错",
    "Don't give up!",
    "We work well together!",
    "I'm staying positive.",
    "I'll think about it and get back to you next week",
    "Is my internet down?",
    "我的订单号是什么？",
]


@pytest.mark.parametrize("text", CHATTER)
def test_chatter_and_what_is_put_off_is_not_kept(text: str) -> None:
    assert read(text) == []


DONE = [
    ("已为您挂失尾号8812的信用卡", True),
    ("I've logged a fault on your line.", True),
    ("好的，已登记。", False),
    ("已经为您办理了", False),
    ("I've cancelled it for you.", False),
    ("Your request was processed.", False),
]


@pytest.mark.parametrize(("text", "kept"), DONE)
def test_r06_what_an_assistant_did_needs_a_word_of_what_it_did_it_to(text: str, kept: bool) -> None:
    assert [fact.role for fact in read(("assistant", text))] == ["assistant"] * kept


WORDS_OF_ONES_OWN = [
    ("别忘了我说的：我对芒果过敏", "我对芒果过敏"),
    ("记住我刚才说的：我对芒果过敏", "我对芒果过敏"),
    ("请记住我说的话，我不吃辣", "我不吃辣"),
    ("请记住我刚刚告诉你的：会员号是VIP88", "会员号是VIP88"),
    ("记住我的话：我只喝无糖的", "我只喝无糖的"),
    ("千万别忘了我刚才说的", ""),
    ("Don't forget what I said: I'm allergic to mangoes", "I'm allergic to mangoes"),
    ("Remember what I told you: I only fly window seats.", "I only fly window seats"),
    ("Keep in mind what I just said, no calls before noon", "no calls before noon"),
    ("Please don't forget what I said.", ""),
    ("请记住我说的语言是粤语", "我说的语言是粤语"),
    ("记住我的话费余额是30元", "我的话费余额是30元"),
]


@pytest.mark.parametrize(("text", "rest"), WORDS_OF_ONES_OWN)
def test_what_somebody_calls_their_words_by_is_no_part_of_them(text: str, rest: str) -> None:
    asked = asked_to_keep(text)
    assert asked is not None
    assert asked.rest == rest


ANSWERS: list[tuple[str, str, str | None]] = [
    ("请提供一下订单号。", "JD8830021，上个月28号买的", "订单号：JD8830021，上个月（2026-02）28号买的"),
    ("请提供您先生的证件号后四位。", "0916", "证件号后四位：0916"),
    ("Could you share your order number?", "It's 55-20918.", "order number: 55-20918."),
    ("What's your booking reference?", "LH7K2Q", "booking reference: LH7K2Q"),
    ("请问有什么可以帮您？", "0916", None),
    ("Anything else?", "LH7K2Q", None),
    ("请输入账号密码", "8839217", None),
    ("请报一下您的手机验证码", "883921", None),
    ("What is the security code of your account?", "883921", None),
    ("Please enter your account password.", "hunter2023", None),
]


@pytest.mark.parametrize(("asked", "answer", "content"), ANSWERS)
def test_a_bare_number_is_called_what_it_was_asked_for(asked: str, answer: str, content: str | None) -> None:
    assert [fact.content for fact in read(("assistant", asked), answer)] == ([] if content is None else [content])


def test_a_sentence_that_points_back_takes_along_what_was_said_before_an_answer() -> None:
    asked: tuple[Role, str] = ("assistant", "请问您父亲有没有既往症？")
    kept = read("我想给我爸买份医疗险", asked, "他有糖尿病十几年了")[-1]
    assert (kept.content, kept.message_index) == ("我想给我爸买份医疗险。他有糖尿病十几年了", 2)
    asked = ("assistant", "Is this on your debit or credit card?")
    kept = read("I noticed a charge of $84.20 on my statement.", asked, "It's my debit card ending in 4471.")[-1]
    assert kept.content == "I noticed a charge of $84.20 on my statement. It's my debit card ending in 4471."


@pytest.mark.parametrize(
    "said",
    [
        ["我妈和我爸都退休了", "他有糖尿病"],  # which of the two?
        ["I like tea.", "He hates football."],  # nobody was named
        ["My dad is 62.", "I live in Leeds.", "He has diabetes."],  # not the sentence before
        ["I ordered a lamp.", "It is nice."],  # says nothing by which it may be found
    ],
)
def test_what_nobody_can_tell_who_is_meant_by_is_not_kept(said: list[str]) -> None:
    assert all(fact.message_index < len(said) - 1 for fact in read(*said))


def test_clauses_of_the_speaker_stand_behind_one_that_points_back() -> None:
    facts = read("She has to call me, my number is 07700 900123.")
    assert [(fact.content, fact.key) for fact in facts] == [("my number is 07700 900123.", "profile.phone")]


@pytest.mark.parametrize(
    "text",
    [
        "I'll be in Zurich from 12 to 19 March.",
        "I'll be in Zurich March 12 - 19.",
        "我3月12日到19日在苏黎世出差",
        "我3月12日至3月19日出差",
    ],
)
def test_r29_one_end_of_several_days_is_no_moment(text: str) -> None:
    assert [fact.event_at for fact in read(text)] == [None]
