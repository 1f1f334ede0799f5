"""CUSTOMERS: triggers for what customers of a service say: how to serve them, what is wrong, their numbers.

They are looked at behind TRIGGERS, in the same way: in folded text of one sentence whose subject is the speaker.
"""

from typing import Final

from app.extract.triggers import I_ZH, Row, Words
from app.kinds import DEFAULT_KIND

_WHEN_ZH = "白天|夜里|晚上|早上|上午|中午|下午|周末|工作日|上班时间|休息时间|节假日|周[一二三四五六日末天]"
_LABELS_ZH = (
    "订单号?|单号|保单号?|账号|帐号|尾号|后四位|车牌号?|会员号|客户号|工号|学号|护照号?|证件号|身份证号?|宽带号?|电话"
    "|手机号?|合同号"
    "|案件号|税号|抬头|收货人|收件人|联系人|邮编|门牌号?|房号|桌号|座位号?|航班号?|车次|型号|序列号|地址|住址"
)
_LABELS_EN = (
    "order|booking|confirmation|reference|account|policy|member(?:ship)?|customer|claim|case|ticket|flight|plate"
    "|serial|model|tracking|frequent flyer|passport|loyalty|vat|postcode|zip"
)
ASKED_FOR: Final = Words(
    rf"(?P<label>(?:{_LABELS_ZH})码?(?:的?后[四六]位)?)[^，,。]{{0,6}}(?:是多少|是什么|[?？。]*$)|(?:提供|告诉|报|说|发"
    rf"|输入)一?下?[^，,。]{{0,8}}?(?P<wanted>(?:{_LABELS_ZH})码?(?:的?后[四六]位)?)",
    rf"(?P<label_en>\b(?:{_LABELS_EN})(?: (?:number|code|reference|no\.?|id|plate))?)\b",
)
"""What an assistant asks for by its name, so that a bare number in the answer has one."""
_WRONG_EN = (
    "broken|damaged|stolen|lost|leaking|dead|cracked|missing|blocked|locked|hacked|stuck|frozen|expired|faulty"
    "|defective|wrong|too (?:small|big|large|slow|loud|short|long|tight)"
)
_PAPERS_ZH = "居住证|签证|护照|身份证|驾照|执照|贷款|保单|理赔|宽带|套餐|合约|会员|信用卡|银行卡|社保|公积金|户口|发票"

CUSTOMERS: Final = (
    Row("preference", "user_preference", Words(
        r"(?<![你您])(?:别|不要|请勿)(?:再)?(?:给我|帮我|把)?(?:放|送|寄|订|安排|选|派|推荐|敲|按|用|打(?=电话|给)"
        r"|发(?=短信|邮件|微信|消息|到|给|货|快递))(?![了呀啊吧心手弃])[^。，,？?]{1,16}"
        r"|(?<!已)(?<!已经)(?:送|寄|邮|快递|派送)(?:货)?(?:到|至)(?!了|货|哪|时)[^。，,？?了]{2,20}$"
        r"|放(?:到|在)?(?:家)?(?:门口|门卫|前台|快递柜|驿站|物业|丰巢|保安)"
        rf"|(?:发|寄)(?:到|给)?{I_ZH}的?(?:邮箱|微信|手机)|给{I_ZH}发(?:短信|微信|邮件|信息)"
        rf"|发(?:短信|微信|邮件)(?:给|通知|告诉){I_ZH}"
        rf"|(?:打|汇|退|转|付)款?(?:到|给|进){I_ZH}[^，,。？?]{{0,8}}(?:卡|账户|账号|支付宝|微信)"
        rf"|^(?:就|请|用|有事|直接)*(?:微信|邮件|邮箱|短信|电话|钉钉)上?(?:联系|沟通|通知|回复)(?:{I_ZH})?(?:就行"
        rf"|就好|吧|即可)?[。.!！]*$"
        rf"|(?:{_WHEN_ZH})[^，,。？?]{{0,6}}(?:别来|不要来|别打|不要打|不方便|没空|没时间|再来|不在家)",
        r"(?:^|please |, (?:so |and |but )?(?:please )?)(?:don't|do not|never) (?:ever )?(?:block|leave|deliver|send"
        r"|call"
        r"|charge|renew|share|use|ring|knock|ship|assume|book|add|include|cancel|text|email|contact)\b"
        r"(?! (?:it|that|this) that\b)"
        r"|^(?:please |just |so |and |but |also )*(?:(?:leave|drop|put) (?:it|them|the [\w ]{2,20}?) (?:with|at|in|by"
        r"|on"
        r"|behind|outside|next to)|(?:deliver|ship|mail|send|post|forward|charge|bill) (?:it|them|this"
        r"|the [\w ]{2,20}?)"
        r" to (?:my|our|the))\b"
        r"|^(?:please |just |so |and |but |also )*(?:send|deliver|reply|answer|contact|notify|update|confirm|respond)\b"
        r"[^.?!]{0,40}\bby (?:post|mail|e-?mail|text|phone|sms|courier|letter)\b",
    ), order=True),
    Row("preference", "user_preference", Words(
        rf"{I_ZH}[^，,。？?]{{0,6}}(?:一般|平时|通常|从来?不|再也不|绝不)(?:都|就|只|会|是)?[^。，,？?]{{2,}}"
        rf"|{I_ZH}[^，,。？?]{{0,6}}[用吃住穿喝坐]不惯|(?:^|[，,])[^，,。？?]{{1,8}}{I_ZH}[用吃住穿喝坐]不惯"
        rf"|{I_ZH}[^，,。？?]{{0,4}}(?:只有|只能|除了)[^，,。？?]{{1,12}}(?:有空|有时间|方便|在家)"
        rf"|(?:{I_ZH})?(?:平时|一般|都)?[穿戴]\d{{1,3}}(?:码|号)",
        r"\b(?:i|we) (?:don't|do not|never|only|always|usually|normally|typically|generally|mostly|rarely|can't|cannot"
        r"|can only) (?:use|take|answer|eat|drink|buy|wear|work|drive|fly|walk|hear|climb|lift|pay|shop|order|stay"
        r"|travel|speak|read|carry|sleep|smoke|cook)\b(?! (?:it|that|this|you|there|so|out|on)\b)"
        r"|\b(?:i'm|i am|we're|we are) (?:only |usually |always |never |not |mostly )*(?:free|available|unavailable"
        r"|home|at home|busy|away) (?:on|at|after|before|in|from|until|between|during|every|all|most)\b"
        r"|\b(?:i|we) (?:travel|work|commute|shop|fly|drive|cook) (?:a lot|often|from home|every|each|regularly|abroad"
        r"|at night|nights|shifts|full[- ]time|part[- ]time|remotely)\b"
        r"|\b(?:i|we)(?:'ll| will) never\b",
    )),
    Row("profile", "profile", Words(
        rf"{I_ZH}(?:的)?(?:睡眠|听力|记性|身体|胃|腰|膝盖|腿脚?|眼睛|耳朵|肠胃)[^。，,？?]{{0,4}}(?:浅|差|不好|不太好"
        rf"|弱|疼|不行)"
        rf"|{I_ZH}叫(?!了|上|他|她|你|什么|啥|过|车|外卖|醒)[^，,。？?]{{2,4}}(?=[，,])",
        r"\b(?:i|we) (?:have|suffer from) (?:an? )?(?:bad|weak|poor|sore) \w+",
    )),
    Row("task_state", "task_state", Words(
        rf"(?:^|[，,]|{I_ZH}(?:的|家)?)[^，,。？?你您]{{0,14}}(?:(?:(?<![吓累饿忙乐急气闷愁])坏|碎|破|裂|凹|丢|掉线"
        rf"|断网|断线"
        rf"|死机|黑屏|被盗|被偷|被锁|停电"
        r"|停水|失效)了|漏水|漏油|漏尿|卡顿|异响|用不了|打不开|连不上|登不上|收不到|没反应|开不了机|充不进|没声音"
        r"|没网|没信号|老是?断)"
        rf"|(?:{_PAPERS_ZH})[^。，,？?]{{0,12}}(?:办下来|办好|办完|到期|批下来|补办|过期|注销|还没|丢了|断了)"
        rf"|{I_ZH}(?:是|也|就|现在|这次|还)*(?:想|要|需要)(?:把|给|将)?[^。，,？?]{{0,12}}(?:降到|升到|升级|取消|退货"
        rf"|退款|退掉|换货|办理|开通|注销|续约|续费"
        r"|报案|挂失|理赔|投保|退保|转账|提前还|改签|报修|转网|携号)[^。，,？?]*$"
        r"|^[^，,。我你您他她它]{0,6}(?:打算|计划|准备|想带)(?!好|什么|一下|备)[^。，,？?]{2,}",
        r"\b(?:i|we) (?:want|need|have|wish) to (?:add|change|cancel|upgrade|downgrade|switch|close|renew|transfer"
        r"|return"
        r"|exchange|insure|report|claim|dispute|reschedule|move|update|replace)\b(?! (?:it|that|this) )"
        r"|\b(?:my|our|the) [\w' -]{2,30}? (?:keeps (?:dropping|crashing|freezing|cutting|disconnecting|failing"
        r"|restarting|buffering|logging|turning|stopping"
        r"|beeping|breaking|leaking|showing|asking|declining|rejecting|overheating)|(?:is|are|was|were|got|has been"
        r"|have been) (?:\w+ ){0,2}?"
        rf"(?:{_WRONG_EN})|(?:won't|doesn't|does not|isn't|is not|stopped) (?:work|turn|charg|connect|start|load"
        r"|respond|open|fit)\w*)\b",
    )),
    Row("entity", DEFAULT_KIND, Words(
        rf"(?:{_LABELS_ZH})码?(?:(?:就|还)?(?:是|为|在|开|填|写|:)\s*[^，,。？?]{{2,}}|\s*[a-z]{{0,8}}\d)"
        rf"|预算(?:是|在|大概|大约|每[月天年]|不超过|最多|控制|只有)*[^，,。？?]{{0,4}}\d",
        rf"\b(?:{_LABELS_EN})(?: (?:number|code|no\.?|id|plate))?(?: is|:)? #?(?=[a-z0-9-]*\d)[a-z0-9-]{{3,}}"
        r"|\bending (?:in |with )?\d{3,4}\b"
        r"|\b(?:i|we) (?:pay|owe|earn|make|spend)\b[^.?!]{0,20}\d",
    )),
)  # fmt: skip
"""In order: the first that matches names kind and trigger."""

AMOUNT: Final = Words(
    r"\d(?:多|余)?\s*[万千百]?(?:元|块钱?|万|美元|欧元|港币|日元)|[\$€£¥]\s?\d",
    r"\b\d[\d,.]*\s?(?:k|usd|rmb|cny|eur|gbp|dollars?|euros?|pounds?|yuan|bucks)\b",
)
"""A sum of money: with whose it is or when, a statement worth keeping."""

PUT_OFF: Final = Words(
    r"(?:再)?(?:考虑|想)(?:一下|考虑|想|看看)(?:吧)?(?:[，,].{0,16}(?:再说|联系|回复|找你|找您|来问"
    r"|答复))?[^，,]{0,4}$",
    r"\b(?:i|we)(?:'ll| will)? (?:have to |need to |will )?think about it\b|\bget back to you\b",
)
"""Neither yes nor no: nothing that anybody asks for later."""

NOTHING_DONE: Final = Words(
    r"^(?:好的?|嗯|亲|您好|是的|没问题|稍等|这边|已经?|刚刚?|都|成功|为|帮|给|替|您|你|把|将|它|这个|了|啦|哦|的|呢"
    r"|登记|取消|提交|受理|更新|修改"
    r"|安排|办理|解决|备注|处理|[，,。!！~\s])+$",
    r"^(?:ok(?:ay)?|sure|done|great|[,.! ]|i've|i have|we've|we have|now|just|already|it|that|this|for you|your"
    r"|request|was|has been|is now|[a-z]+ed)+$",
)
"""What an assistant did, without a word of what it did it to."""
