"""R10, R11: what overrules an older statement by its words, and what only stands near it. The rules are a table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.remember import conflict
from app.remember.conflict import ADDED, DOUBT, cued, denies, overrules
from app.remember.cues import CUES
from app.remember.statement import statement
from app.remember.wording import NEGATION

# The older statement, then the newer one.
OVERRULED = [
    ("我住在上海", "我搬到杭州了"),
    ("我住在上海", "我现在住在杭州"),
    ("用户住在北京朝阳区", "用户搬家到深圳了"),
    ("我妈妈住在南京", "我妈妈搬到苏州了"),
    ("我家在广州", "我搬到珠海去了"),
    ("我搬到杭州了", "我搬到苏州了"),
    ("我每天喝咖啡", "我不再喝咖啡了"),
    ("我喜欢吃辣", "我不喜欢吃辣了"),
    ("我喜欢吃辣", "我再也不吃辣了"),
    ("我吃肉", "我不吃肉了"),
    ("我抽烟", "我戒烟了"),
    ("我是素食者", "我不再是素食者了"),
    ("我偏好邮件沟通", "我不再喜欢邮件沟通"),
    ("会议在周三下午3点", "会议改到周四下午4点"),
    ("会议改到周三下午3点", "会议改到周三下午4点"),
    ("项目截止日期是10月15日", "项目截止日期改成10月20日"),
    ("我的手机号是13912345678", "我的手机号换成13812345678了"),
    ("我用安卓手机", "我从安卓换成苹果手机了"),
    ("数据库用的是 MySQL", "数据库从 MySQL 换成了 PostgreSQL"),
    ("用户的默认语言是英文", "用户把默认语言从英文改成中文"),
    ("公司名称是云启科技", "公司改名为云启智能"),
    ("我在腾讯工作", "我现在在字节跳动工作"),
    ("订单状态是已发货", "订单状态变更为已签收"),
    ("收货地址是人民路1号", "收货地址改为解放路2号"),
    ("我的会员等级是银卡", "我的会员等级升级为金卡"),
    ("我在上海工作", "我不是在上海，是在苏州"),
    ("我喜欢喝咖啡", "我讨厌喝咖啡"),
    ("他同意了", "他没同意"),
    ("I love spicy food", "I can't stand spicy food any more"),
    ("I love spicy food", "I no longer like spicy food"),
    ("I live in Shanghai", "I moved to Hangzhou"),
    ("Amy lives in Paris", "Amy moved to Rome"),
    ("I work at Acme", "I now work at Orchid Labs"),
    ("Stack: Postgres", "Stack changed to MySQL"),
    ("API v2.3 is live", "API upgraded to v2.4"),
    ("My e-mail address is a@x.com", "My e-mail address changed to b@y.com"),
    ("The deadline is Friday", "The deadline was postponed to Monday"),
    ("The meeting is on Monday at 10 am", "The meeting moved to Tuesday at 2 pm"),
    ("Order status is shipped", "Order status updated to delivered"),
    ("We use Slack", "We switched from Slack to Teams"),
    ("Order A-17 status is shipped", "Order A-17 status updated to delivered"),
    ("I smoke", "I quit smoking"),
    ("I drink coffee every morning", "I stopped drinking coffee"),
    ("I am a vegetarian", "I am no longer a vegetarian"),
    ("Amy eats meat", "Amy does not eat meat"),
    ("I like tea", "I don't like tea"),
    ("我不吃辣", "我现在能吃辣了"),
    ("Deadline is 16 October", "The deadline has been moved to 20 October"),
    ("我单身", "我结婚了"),
    ("I am single", "I got married last week"),
    ("我同意这个方案", "我反对这个方案"),
    ("我喜欢喝咖啡", "我戒咖啡了"),
    ("My favourite colour is blue", "My favourite colour is now red"),
    ("我最喜欢的颜色是蓝色", "我最喜欢的颜色现在是红色"),
    ("我在腾讯上班", "我跳槽到阿里了"),
    ("I work at Google", "I left Google and joined Meta"),
    ("I work at Google", "I left Google"),
    ("我在腾讯上班", "我从腾讯离职了"),
    ("我的电话是13800138000", "我的新手机号是13900139000"),
    ("My phone number is 415-555-0100", "My new phone number is 415-555-0199"),
    ("我的地址是文三路9号", "我的新地址是解放路2号"),
    ("A man is playing the piano", "There is no man playing the piano"),
    ("The children are playing", "The children aren't playing"),
    ("The VPN is enabled", "The VPN is disabled"),
    ("双重验证已开启", "双重验证已关闭"),
    ("I have a dog", "I don't have a dog"),
    ("我在腾讯工作", "我入职阿里了"),
    ("我喜欢抽雪茄", "我戒雪茄了"),
]
STILL_TRUE = [
    ("Dana works at Acme", "Dana also runs the payroll committee"),
    ("Dana lives in Berlin", "Dana moved to the night shift team"),
    ("Dana's cat is called Milo", "Dana moved to Rome"),
    ("Amy lives in Paris", "I moved to Rome"),
    ("My sister lives in Boston", "I moved to Seattle"),
    ("I love Paris", "I moved to Rome"),
    ("I work at Acme", "I might move to Rome"),
    ("I like tea", "I like coffee"),
    ("I drink tea every morning", "I stopped drinking coffee"),
    ("I am allergic to nuts", "I am no longer a vegetarian"),
    ("The meeting is in room A", "The meeting moved to Tuesday"),
    ("I go to the gym on Monday", "The meeting was moved to Tuesday"),
    ("I have a dog named Max", "The project was renamed to Max"),
    ("I live in Shanghai", "Should I have moved to Hangzhou?"),
    ("parcel was moved to Rome case-12", "parcel was moved to Lima case-72"),
    ("订单1002的状态是已发货", "订单1001的状态变更为已签收"),
    ("Order A-17 status is shipped", "Order A-18 status updated to delivered"),
    ("I take 2 pills", "I no longer take 3 pills"),
    ("我住在上海", "我妈妈搬到杭州了"),
    ("我住在上海", "我打算搬到杭州"),
    ("我住在上海", "如果降价我就搬到杭州"),
    ("我住在上海", "我搬到新工位了"),
    ("我喜欢上海", "我搬到杭州了"),
    ("我在腾讯工作", "我搬到杭州了"),
    ("我在腾讯工作", "我现在住在杭州"),
    ("我会弹钢琴", "我现在在字节跳动工作"),
    ("我喜欢喝咖啡", "我也喜欢喝茶"),
    ("我养了一只猫", "我不再喝咖啡了"),
    ("我喜欢打篮球", "我不喜欢踢足球了"),
    ("我老板喜欢喝茶", "我不喝茶了"),
    ("我喜欢吃辣", "今天不想吃辣"),
    ("我喜欢吃苹果", "我把手机从苹果换成了华为"),
    ("会议由张伟主持", "会议改到周四下午4点"),
    ("会议在A座301", "会议改到周四下午4点"),
    ("公司有200名员工", "公司改名为云启智能"),
    ("订单地址是人民路1号", "订单状态变更为已签收"),
    ("我的手机号是13912345678", "我的邮箱换成a@b.com了"),
    ("项目预算是20万", "项目截止日期改成10月20日"),
    ("数据库用的是 MySQL", "我们从 Jenkins 换成了 GitHub Actions"),
    ("My cat is called Max", "My new cat is called Milo"),
    ("I like Google Maps", "I left Google"),
    ("我喜欢腾讯视频", "我从腾讯离职了"),
    ("我姐姐单身", "我结婚了"),
    ("I am single", "My brother got married"),
    ("我早上喝咖啡", "我晚上喝咖啡"),
    ("I bought a car", "I sold a bike"),
    ("The meeting is about budgets", "The meeting is now in room B"),
    ("我养了一只猫", "我戒咖啡了"),
    ("我的戒指是金的", "我买了戒指"),
    ("I live in Rome", "I left Rome and joined Meta"),
    ("我在腾讯上班", "我女儿入职阿里了"),
    ("我在上海工作", "我明天入职体检"),
    ("The shop is open on Monday", "The shop is closed on Sunday"),
    ("I turned on the light in the kitchen", "I turned off the light in the hall"),
    ("公司同意远程办公", "我反对远程办公"),
    ("我有两个新手机", "我的新手机是华为的"),
    ("I work at Acme", "I left Acme's party early"),
    ("花呗可用额度下降了", "不是花呗，是我的网商贷"),
    ("花呗可用额度", "我花呗不能使用了"),
    ("花呗账单可以提前还", "我的花呗没有了"),
    ("借呗额度是500", "借呗不能借了"),
    ("I love Postgres conferences", "We switched from Postgres to MySQL"),
    # A question states nothing, with or without its mark.
    ("为什么蚂蚁花呗不管使用", "我的花呗为什么不能用了"),
    ("怎么分辩花呗是不是临时额度", "这个月的花呗怎么没有临时额度了"),
    ("我的网商贷怎么变回借呗", "网商贷怎样改为借呗"),
    ("我的花呗可以用", "我的花呗为什么不可以用了"),
    ("How do I cancel my card", "How do I not cancel my card"),
]


@pytest.mark.parametrize(("old", "new"), OVERRULED)
def test_r10_words_of_change_overrule_the_matching_statement(old: str, new: str) -> None:
    assert overrules(new, old) is not None


@pytest.mark.parametrize(("old", "new"), STILL_TRUE)
def test_r11_what_is_added_or_about_something_else_overrules_nothing(old: str, new: str) -> None:
    assert overrules(new, old) is None


@pytest.mark.parametrize("text", ["我现在能吃辣了", "I can eat spicy food again", "我结婚了", "The VPN is disabled"])
def test_what_may_turn_round_something_worded_otherwise_is_looked_for_far_away(text: str) -> None:
    assert cued(text) or denies(text)


def test_each_row_of_cues_is_used() -> None:
    first = {
        next((number for number, cue in enumerate(CUES) if cue.words.search(new.lower())), None)
        for _, new in [*OVERRULED, *STILL_TRUE, *MORE_CUES]
    }
    assert set(range(len(CUES))) <= first


MORE_CUES = [
    ("We log to files", "We replaced files with a log service"),
    ("The release is on Monday", "The release was rescheduled to Tuesday"),
    ("I work at Acme", "I lost my job"),
    ("I live in Berlin", "I moved away from Berlin"),
]


@pytest.mark.parametrize(("old", "new"), MORE_CUES)
def test_rarer_words_of_change(old: str, new: str) -> None:
    assert overrules(new, old) == "update_words"


@given(st.text(max_size=60), st.text(max_size=60))
def test_nothing_overrules_itself_and_any_text_is_taken(left: str, right: str) -> None:
    assert overrules(left, left) is None
    assert overrules(left, right) in {None, "update_words", "opposite"}


@given(st.sampled_from(STILL_TRUE + OVERRULED))
def test_a_question_changes_nothing(pair: tuple[str, str]) -> None:
    old, new = pair
    asked = new + ("吗？" if not new.isascii() else ", should I ask?")
    assert not cued(asked)
    assert overrules(asked, old) is None


SAID = [text for pair in OVERRULED + STILL_TRUE for text in pair]
PUT_IN = [
    "不",
    "没",
    "别",
    "再也",
    "现在",
    "改成",
    "搬到",
    "3",
    "2月",
    "A-17",
    "也",
    "吗？",
    " never ",
    " not ",
    " moved to ",
    " now ",
]


@st.composite
def said(draw: st.DrawFn) -> str:
    """A statement of the tables with up to two words put in anywhere."""
    text = draw(st.sampled_from(SAID))
    for word in draw(st.lists(st.sampled_from(PUT_IN), max_size=2)):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + word + text[at:]
    return text


@given(said(), said())
def test_first_looks_spare_work_and_change_no_verdict(new: str, old: str) -> None:
    verdict = overrules(new, old)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conflict, "_may_change", lambda change, b: not b.negations)
        assert overrules(new, old) == verdict
    folded = statement(new).folded
    assert bool(conflict._ANY_CUE.search(folded)) == any(cue.words.search(folded) for cue in CUES)
    for pattern in (ADDED, DOUBT, NEGATION, conflict._ANY_CUE, conflict._DISLIKING, conflict._STATES):
        assert (pattern.search(folded) is None) == (pattern.search(f"。 {folded}") is None)  # which is not in ASCII
