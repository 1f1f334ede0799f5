"""TRIGGERS: what makes a sentence worth keeping, and what forbids keeping it; all as data.

A pattern is searched in folded text (lower case, simplified characters) of one sentence whose subject is the speaker.
"""

import re
from dataclasses import dataclass
from typing import Final

from app.extract.conversation import Trigger


@dataclass(frozen=True, slots=True)
class Words:
    """Words of both languages as one pattern."""

    zh: str
    en: str

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(f"(?:{self.zh})|(?:{self.en})")


@dataclass(frozen=True, slots=True)
class Row:
    """A trigger: what it is called, which kind of memory it makes, its words, and whether the words are an order."""

    trigger: Trigger
    kind: str
    words: Words
    order: bool = False


I_ZH: Final = r"(?:我们?|本人|咱们?)"
_DEGREE = (
    r"(?:真的|一直|从来|平时|平常|其实|个人|也|都|就|还是|还|最|更|比较|非常|特别|很|挺|超级?|太|有点|不太|不是很"
    r"|尤其|现在|以前|向来|只|又|再也)*"
)
_OFTEN = (
    r"(?:strongly|strictly|vastly|deeply|truly|especially|particularly|personally|greatly|highly|really|also|just"
    r"|always"
    r"|usually|often|actually|absolutely|generally|mostly|still|never|only|rather|do"
    r"|'ve always)"
)

_MY_WORDS_ZH = (
    r"(?:我|咱们?)(?:(?:刚才|刚刚|刚|之前|上面|前面|以前|今天|现在|下面|接下来|一直|都|要|和|跟|对|给|你|您|所)*"
    r"(?:说|讲|提|提到|告诉|交代|讲到|说到|强调)(?:你|您|过|了)*的(?:话|事情?|内容|要求|这些|那些|一切)?|的话)"
    r"(?:这[些点句]|那[些点句])?(?:吧|哦|啊|哈|呀|了)?"
)
_MY_WORDS_EN = (
    r"(?:what (?:i(?:'ve| have)?|we)(?: (?:just|already|always|am|was))*"
    r" (?:said|told you|mentioned|say|tell you|telling you|asked)"
    r"|my words)(?: (?:earlier|before|above|just now|to you|today|last time|about (?:it|this|that)))*"
)
"""What somebody calls their own words by, before or after saying them: no part of what they say."""

REQUEST: Final = Words(
    r"(?:^|(?<=[，,：:!！。\s]))(?:请|麻烦|拜托|帮我|帮忙|替我|给我|你|您|一定要?|务必|千万|也|要|可以|能|先|得"
    r"|好好|顺便|再)*"
    r"(?:记住|记一下|记下来|记下|记好|记着|记录一下|记录下来|牢记|记牢|备注一下|做个备注|别忘(?:记)?了?"
    r"|不要忘(?:记)?了?"
    r"|勿忘|莫忘|(?<=请)记得|(?<=定)记得|(?<=定要)记得|(?<=必)记得|(?<=万)记得|(?<=你)记得|(?<=您)记得"
    r"|(?<=你要)记得|(?<=帮我)记得)"
    r"(?:了|哦|啊|吧|哈|呀|一点)?(?:(?:这点|这件事|这个|一件事|以下(?:几点|内容|信息)?|下面(?:几点|内容)?|如下)"
    rf"|{_MY_WORDS_ZH}(?=[，,：:。.!！~\s]|$))?",
    r"(?:^|(?<=[,:;]\s)|(?<=\band\s))(?:please |kindly |just |also |could you |can you |you (?:should|must) "
    r"|i (?:want|need|would like|'d like) you to )*"
    r"(?:(?:remember|note|keep in mind|bear in mind|make a note|take note|memori[sz]e|don't forget|do not forget"
    r"|never forget)"
    r"(?:(?: (?:that|this|the following|of the fact that|down))+\b"
    rf"| {_MY_WORDS_EN}(?=[:,;.!~ -]*$|[:,;-]\s| - | that\b)(?: that\b)?)|write (?:this|that) down\b|(?:remember|note"
    r"|don't forget)(?=:)"
    r"|(?:remember|don't forget|do not forget)(?= (?:my|i|i'm|i've|we|our|to)\b)|(?:don't forget"
    r"|do not forget)(?= (?:the|an?|about)\b)|(?<=please )note(?= (?!s\b))|(?:please )?(?:remember"
    r"|don't forget)(?=[.! ]*$))",
)
"""An explicit request; with what belongs to the request and not to the fact."""

NOT_A_REQUEST: Final = Words(
    r"(?:我|他|她|你们|谁|还|不)(?:还|都|一直|也|不)?(?:记得|记住)|记得(?:吗|不|么)|记不记得|不记得|记错|记混",
    r"\b(?:i|he|she|they|we|do you|did you|can't|cannot|don't you|to|i'll|i will|i'd) (?:still |always |never "
    r"|barely |don't |can't )?"
    r"(?:remember|note|forget)\b|\bremember (?:when|how|the time|me\b)|\bon a (?:side )?note\b",
)

ASKED_NOT_TO: Final = Words(
    r"(?:别|不要|不用|不必|无需|请勿|勿|甭|不许|不准|禁止)(?:再|把|将|帮我|给我|替我|去|要|这(?:个|些|件事"
    r"|句话|条)?|它|我说的(?:话)?|刚才的?)*"
    r"(?:记住|记下|记录|记在|记进|记得|保存|存储|存下|存起来|存进|留存|写进|写入|记(?![错混反忆得载号者性]))"
    r"|(?<![别勿要能会])(?:忘掉|忘了|忘记)(?:我)?(?:刚才|刚刚|之前|上面|前面)?(?:说的|讲的|那句话|这件事|这些)"
    r"|当我没说|别往外说",
    r"\b(?:don't|do not|please don't|never|no need to|you needn't|shouldn't|must not|mustn't) "
    r"(?:remember|save|store|record|keep|memori[sz]e|log|write (?:this|that|it) down|note (?:this|that|it|any)"
    r"|make a note)"
    r"|(?<!don't )(?<!not )(?<!never )\bforget (?:this|that|it|what i (?:just )?(?:said|told you)|i said)\b"
    r"|\boff the record\b|\bbetween you and me\b",
)
"""A request not to keep: the whole message is left alone."""

SECRET: Final = Words(
    r"密码|口令|验证码|动态码|安全码|密保|私钥|支付密码|银行卡号|信用卡号|cvv",
    r"\b(?:password|passcode|passphrase|pin (?:code|number|is)|verification code|one-time code|otp|cvv|private key"
    r"|api key|secret key"
    r"|credit card number|card number|security (?:code|answer|question)|memorable (?:word|name))\b",
)
"""What is never kept of our own accord."""

QUESTION: Final = Words(
    r"(?:吗|么|嘛)[。.!！~]*$|(?:对吧|对不对|是吧|好不好|行不行)[。.!！~]*$|为什么|为啥|怎么(?!都|也)|怎样|咋|如何"
    r"|什么(?!都|也|的)|啥(?!都|也)|哪(?!怕|都|也)"
    r"|(?<!不管)(?<!无论)谁(?!都|也)|多少(?!有点|都|也)|几(?:点(?!钟?[前后])|号|岁|月)|多(?:大|久|长|高"
    r"|远)[了呢啊。]*$|是不是|有没有|能不能|可不可以|会不会|要不要|算不算|是否|记不记得|知不知道"
    r"|(?:请问|想问|问一下|咨询一下)",
    r"^(?:so |and |but |well |hey |also |then )*(?:who|whom|whose|what|which|when|where|why|how)(?:'s|'re)?"
    r"\s+(?:is|are|am|was|were|do"
    r"|does|did|can|could|will|would|should|shall|may|might|has|have|had|many|much|long|far|old|often|come|about"
    r"|to|kind|time)\b"
    r"|^(?:so |and |but |well |hey |also |then )*(?:is|are|am|was|were|do|does|did|can|could|will|would|should"
    r"|shall|may|might|have|has|had|isn't|aren't|don't|doesn't"
    r"|didn't|can't|couldn't|won't|wouldn't|shouldn't|haven't|hasn't)\s+(?:you|i|we|it|he|she|they|there|this|that"
    r"|these|those|the|my|your|our|his|her|their|its|any|some|anyone|anybody|someone)\b"
    r"|\b(?:i wonder|wondering|not sure) (?:if|whether|what|who|how|why|where|when)\b|\bdo you (?:know|remember"
    r"|think)\b",
)
TAG: Final = Words(
    r"^(?:对吗|对吧|对不对|是吗|是吧|是不是|好吗|好不好|没错吧|不是吗|记得吗|知道吗|你知道吗)$",
    r"^(?:right|correct|is it|isn't it|isn't he|isn't she|don't i|do i|am i|aren't i|doesn't it|wasn't it|ok|okay"
    r"|huh|eh)$",
)
"""A question that turns the statement before it into one."""

HYPOTHETICAL: Final = Words(
    r"^(?:那|但|但是|可是|不过|嗯|唉)?(?:如果|假如|假设|要是|倘若|万一|假使|假若|若是|若(?!干)|设想|想象一下|想象"
    r"|就当|比如说?|例如|举个例子|打个比方|比方说|就好像|如同)|的话(?:$|，|,)"
    r"|(?:真希望|但愿|巴不得|恨不得|要是.*就好了)|(?:假装|扮演|角色扮演)",
    r"^(?:but |and |so |well |even )*(?:if|suppose|supposing|imagine|assuming|assume|what if|let's say|say,"
    r"|hypothetically|pretend|for example|for instance|e\.g\.|unless|in case"
    r"|were i|had i)\b|\bi wish\b|\bif only\b|\b(?:would|'d) (?:love|like|rather|prefer|enjoy|hate) to\b"
    r"|\b(?:as if|as though)\b|\bi(?:'d| would) (?:love|like|be|have|go|buy|move|choose)\b",
)

COMMAND: Final = Words(
    r"^(?:请|麻烦|劳驾|拜托|快|帮我|帮忙|帮|给我|替我|你|您|能|可以|再|来|把|将|用|那|现在|赶紧|小\w)*"
    r"(?:翻译|改写|润色|总结|概括|归纳|生成|编(?=写|一|个|首)|写(?!字楼)|画(?!画|展|家)|模仿|播放|打开|关闭|关掉"
    r"|开启|搜索|查询|查找"
    r"|查(?!出)|解释|介绍|推荐|讲(?!座|师)|唱|计算|算(?!了|是|上)|列出|续写|造句|朗读|读(?!大学|研|博|书|小学|初中"
    r"|高中|本科)|回答|设置"
    r"|发送|打电话|"
    r"聊|说说|告诉我|导航|放一?首|换个?|看看|看一?下|找一?下|分析|比较|检查|纠正)",
    r"^(?:please |kindly |hey |now |ok |okay |so |then |could you |can you |would you |will you |i want you to "
    r"|i need you to |help me (?:to )?|let's )*"
    r"(?:translate|rewrite|rephrase|paraphrase|summari[sz]e|draft|generate|write|compose|draw|play|open|close"
    r"|search|look up|find|explain|tell me|show|give me|list|recommend|suggest"
    r"|act as|calculate|compute|convert|define|describe|create|proofread|correct|repeat|say|sing|set|turn"
    r"|analy[sz]e|compare|check|ignore|disregard|answer the)\b",
)
"""A task of the moment; what it is about (a text to translate, a line to sing) is no statement of the speaker."""

RELATIVES: Final = Words(
    r"(?:妈妈?|母亲|老妈|娘|爸爸?|父亲|老爸|爹|老公|丈夫|老婆|妻子|太太|爱人|对象|男朋友|女朋友|男友|女友"
    r"|未婚[妻夫]|前任|前[男女]友|前[夫妻]"
    r"|儿子|女儿|孩子|宝宝|闺女|孙子|孙女|外孙女?|哥哥?|姐姐?|弟弟?|妹妹?|兄弟|爷爷|奶奶|外公|外婆|姥爷|姥姥|叔叔?"
    r"|伯伯|伯父|舅舅?|姑姑?|姑妈|姨妈?|阿姨|婶婶"
    r"|侄子|侄女|外甥女?|表[哥姐弟妹]|堂[哥姐弟妹]|岳父|岳母|公公|婆婆|嫂子?|姐夫|妹夫|家人|父母|爸妈|亲戚"
    r"|朋友|闺蜜|同事|同学|老板|上司|领导|主管|经理|下属|老师|导师|学生|室友|邻居|客户|房东|搭档|合伙人|徒弟|师傅"
    r"|医生|律师|秘书|助理)",
    r"(?:mother|mom|mum|father|dad|parents?|wife|husband|spouse|partner|fianc[eé]e?|boyfriend|girlfriend|ex|son"
    r"|daughter|kids?|child|children|baby|brother|sister|siblings?"
    r"|grandmother|grandma|grandfather|grandpa|grandparents|uncle|aunt|cousin|nephew|niece|in-laws|mother-in-law"
    r"|father-in-law|brother-in-law|sister-in-law|family"
    r"|friend|colleague|coworker|co-worker|classmate|boss|manager|supervisor|teacher|professor|student|roommate"
    r"|flatmate|neighbou?r|client|customer|landlord|mentor"
    r"|assistant|doctor|lawyer|secretary|subordinate)s?",
)
"""Who belongs to the speaker: a sentence about them is about them."""

LASTING: Final = Words(
    r"是|叫(?!我)|名字|在|有|没有|喜欢|讨厌|爱|恨|怕|不吃|不喝|过敏|住|岁|生日|工作|上班|电话|手机|邮箱|身高|体重"
    r"|厘米|公斤|毕业|学历|来自|老家|性格|爱好|擅长|结婚|离婚|怀孕|去世|生病|住院|养|会|从事|负责|姓|属|信",
    r"\b(?:is|are|was|were|has|have|had|likes?|loves?|hates?|dislikes?|prefers?|enjoys?|lives?|works?|studies"
    r"|studied|graduated|moved|owns?|plays?|speaks?|teaches|turned|married|divorced"
    r"|died|passed away|can't|cannot|doesn't|don't|never|always|named|called|born|got|went|started|joined|runs?"
    r"|manages?)\b",
)
"""What a sentence about somebody else must say to be worth keeping."""

EVENTS: Final = Words(
    r"会议|开会|面试|考试|复诊|就诊|体检|手术|出差|旅行|旅游|航班|婚礼|聚会|聚餐|约会|演出|比赛|截止|交付|入职"
    r"|搬家|毕业|到期|见面|会面|结婚",
    r"\b(?:meeting|appointment|interview|exam|flight|trip|wedding|party|deadline|concert|check-?up|surgery)\b",
)
"""What a sentence about a day must name if the speaker is not in it."""

TRIGGERS: Final = (
    Row("request", "task_state", Words(
        r"^(?:请|麻烦|记得|到时候?|帮我|你|您|也|再)*提醒我",
        r"^(?:please |can you |could you )*remind me\b",
    ), order=True),
    Row("preference", "user_preference", Words(
        r"(?:(?<!分钟)(?<!小时)(?<![天年月周])以后|今后|往后|从现在起|从今以后|从今天起|下次|每次|一律"
        r"|永远)[^。，,]{0,10}(?:都|请|(?<!特)别|不要"
        r"|不用|就|只|先|叫我|用|给我|统一|改)"
        r"|^(?:请|麻烦|拜托)?(?:你|您|你们)?(?:一律|务必|必须|千万|永远|始终|总是|尽量)(?:都|要|用|别|不要|先|给"
        r"|叫|以)"
        r"|^(?:请|麻烦|拜托)?(?:你|您|你们|就)?(?:叫|称呼)我|(?:请|麻烦|最好)?(?:别|不要|不用)(?:再)?(?:给我|叫我"
        r"|打我|向我|跟我|联系我|推荐)",
        r"\bfrom now on\b|\bin (?:the )?future\b.*\b(?:please|always|use|call|send|don't|never)\b"
        r"|^(?:please )?(?:always|never)\s+(?:ever )?(?:use|call|send|answer|reply|respond|speak|write|book|order"
        r"|ask|include|address|contact|share|recommend|suggest|tell|give|show|add|keep|check|email|text|assume"
        r"|mention)\b"
        r"|^(?:please )?(?:don't|do not|stop) (?:ever )?(?:call|email|text|contact|send|recommend|suggest|address"
        r"|use)\w*\b"
        r"|^(?:please )?(?:call me|address me|refer to me|contact me|email me|text me|reach me)\b"
        r"|\bnext time,? (?:please|don't|use|call)\b",
    ), order=True),
    Row("preference", "user_preference", Words(
        rf"{I_ZH}{_DEGREE}(?:不|没)?{_DEGREE}(?:喜欢|喜爱|偏爱|偏好|爱(?:吃|喝|看|听|玩|用|穿|好|上|的)|钟爱|热爱"
        rf"|讨厌|厌恶|反感|受不了|不爱|恨|习惯|倾向于?|更愿意|宁愿|宁可|不吃|不喝|不看|只吃|只喝|只用|只穿"
        r"|吃素|忌口|怕(?:辣|冷|热|吵|黑|酸|苦)|爱好是|感兴趣|迷上|上瘾|希望(?:你|您|你们|贵|能|用|以|先)"
        r"|想要.*(?:风格|口味|颜色|方式))"
        rf"|{I_ZH}的?(?:爱好|兴趣|口味|最爱|偏好|习惯)(?:是|有|比较|偏)|{I_ZH}对[^。，,]{{1,12}}(?:感兴趣|没兴趣"
        rf"|不感兴趣|着迷|反感)"
        rf"|{I_ZH}最(?:喜欢|爱|讨厌)的",
        rf"\b(?:i|we)(?:'ve| have)?(?:\s+{_OFTEN})*\s*(?:do not |don't |didn't |can't |cannot |couldn't "
        rf"|can not )?(?:{_OFTEN}\s+)*"
        r"(?:like|love|prefer|enjoy|adore|hate|dislike|despise|loathe|detest|stand|tolerate|avoid|refuse|favou?r|eat"
        r"|drink)\b(?! (?:it|that|this"
        r"|you|them|him|her|to know|to ask)\b)"
        r"|\b(?:i'm|i am|we're|we are)(?: really| also| not| very| so)* (?:a (?:big |huge )?fan of|fond of|into|keen on"
        r"|obsessed with|crazy about|used to|tired of|opposed to|against|uninterested in|averse to"
        r"|passionate about|interested in(?! (?:learning|knowing|getting|buying|an?\b)))\b"
        r"|\b(?:i|we) (?:have|'ve got) (?:an? )?(?:\w+ )?(?:aversion|preference|dislike|distaste|weakness|no interest"
        r"|interest|passion|allergy)\b"
        r"|\b(?:i|we) (?:adhere to|stick to|follow) (?:an? |the )"
        r"|\b(?:my|our) (?:favou?rite|preferred|go-to|hobby|hobbies|passion)\b|\b(?:i|we)(?:'d| would) (?:rather"
        r"|prefer)\b"
        r"|\b(?:i|we) want (?:you|your|all|every|my|an?|only)\b"
        r"|\b(?:i|we) (?:always|usually|never|only) (?:use|buy|wear|order|take|pay|read|watch|listen|fly|sit|sleep"
        r"|choose"
        r"|pick|get|go|drive|work|cook)\b",
    )),
    Row("profile", "profile", Words(
        rf"{I_ZH}[^。，,]{{0,6}}对[^。，,]{{1,16}}过敏|{I_ZH}[^。，,]{{0,8}}(?:过敏|近视|色盲|恐高|晕车|晕船"
        rf"|乳糖不耐受|贫血|失眠|怀孕|孕\d|患有|得了|确诊|做过手术|残疾|是(?:rh|[ab]|o|ab)型血)"
        rf"|{I_ZH}[^。，,]{{0,4}}(?:有|患)[^。，,]{{0,6}}(?:糖尿病|高血压|哮喘|心脏病|癫痫|病史|疾病|抑郁症|焦虑症"
        rf"|胃病|鼻炎)|{I_ZH}(?:血型|血压|身高|体重|鞋码|尺码|衣服尺码|视力|度数|星座|属相|生肖|学历|专业|国籍"
        rf"|民族)"
        rf"|{I_ZH}(?:今年|现在|刚满|快|已经)*\d{{1,3}}岁|{I_ZH}(?:是|在|曾|曾经|目前|现在|刚|已经"
        rf"|从)?[^。，,]{{0,12}}(?:毕业于|毕业|就读于?|就职于?|任职于?|供职于?|入职|从事|创办|经营)"
        rf"|{I_ZH}(?:现在|目前|一直|平时|刚|已经|都)*在[^。，,]{{2,24}}(?:工作|上班|上学|读书|读研|读博|做(?!什么)"
        rf"|当(?!时)|教书|实习|任教|住|生活|定居|开店|创业)"
        rf"|{I_ZH}(?:公司|团队|部门|店里?|学校|单位)[^，,]{{0,6}}(?:有|是|在|做|卖|主要|专门)"
        rf"|{I_ZH}(?:(?:和|跟|与)[^，,]{{1,8}}?)?(?:现在|目前|一直|以前|刚|已经)*(?:住在?|居住在?|定居在?|搬到"
        rf"|搬去|搬进|租住|来自|出生于|出生在"
        rf"|生于|家在|家住|老家)"
        rf"|{I_ZH}(?:家)?(?:里)?(?:还)?(?:有|养了?|生了|领养了)[^。，,]{{0,8}}(?:猫|狗|宠物|鱼|鸟|兔|仓鼠|乌龟"
        rf"|孩子|儿子|女儿|娃|哥哥|姐姐|弟弟|妹妹|房|车|公司|店)"
        rf"|{I_ZH}(?:已经|刚|还没|还未|没有|没|未)?(?:结婚|离婚|订婚|单身|退休|失业|离职|辞职|跳槽|升职|转行)"
        rf"|{I_ZH}(?:也|现在|其实|就|只|原来)*是(?:一个|一名|一位|一家|个|名|位)[^。，,]{{1,30}}"
        rf"|{I_ZH}是[^。，,]{{1,14}}(?:人|师|员|生|长|者|家|手|工|医|商|迷|党|族|控|士|主|理|监|总|编|教|粉丝"
        rf"|负责人|专业的|毕业的)(?=[。，,!！~]|$)"
        rf"|{I_ZH}(?:讲|说)(?:[^，,话]{{1,3}}语|(?:普通|广东|客家|闽南)话)(?=[。.!！~]|$)"
        rf"|{I_ZH}(?:会|能|懂|擅长|精通|不会|正在学|在学)(?:说|讲|弹|拉|开|写|用)?(?:一点"
        rf"|一些)?[^。，,]{{0,8}}(?:语|文|话|琴|吉他|车|编程|代码|python|java|画(?!画|展|家)|棋|舞)"
        rf"|{I_ZH}(?:的|公司的?|家的?|们公司的?)?(?:名字|姓名|昵称|英文名|公司|单位|学校|职业|工作|职位|岗位|职务"
        rf"|部门|电话|手机|手机号码?|邮箱|微信号?|地址|住址|收货地址|家庭住址|生日|母语|目标|团队|产品|主管"
        rf"|直属领导)[^。，,？]{{0,8}}(?:是|为|叫|在|:|：|改)",
        r"\b(?:i'm|i am|we're|we are)(?: also| severely| very| highly| mildly| lactose| really| not)* (?:allergic"
        r"|intolerant"
        r"|diabetic|pregnant|vegan|vegetarian|asthmatic|colou?r-?blind|disabled|married|divorced|single|engaged"
        r"|retired|unemployed|left-handed|deaf|blind|muslim|jewish|hindu|buddhist|christian|celiac|gluten)\b"
        r"|\b(?:i|we) (?:have|suffer from|was diagnosed with|got diagnosed with) (?:an? "
        r"|the )?(?:\w+ ){0,3}(?:allerg(?:y"
        r"|ies)|diabetes|asthma|epilepsy|condition|disease|disorder|migraines?|blood pressure|intolerance)\b"
        r"|\b(?:i'm|i am|we're|we are) (?:an? |the )(?!bit|little|few|lot|fan|huge|big)\w|\b(?:i'm|i am|we're"
        r"|we are) (?:from|based in"
        r"|living in|working (?:at|for|as|in)|studying|originally|\d{1,3} years? old|turning)\b"
        r"|\b(?:i|we) (?:currently |now |still |also |just |recently |used to |have |'ve )*(?:live|lived"
        r"|work(?:ed)?(?! (?:well|hard|together|out)\b)"
        r"|study|studied|moved|grew up|was born|graduated|teach|own|look after|care for|got (?:married|divorced"
        r"|engaged|promoted)|run|speak|founded|majored|major|retired|quit"
        r"|joined|became an?)\b"
        r"|\b(?:i|we)(?:'ve| have)(?: got)? (?:an?|one|two|three|four|five|\d+) (?:\w+ ){0,3}(?:cats?|dogs?|pets?"
        r"|birds?"
        r"|fish|rabbits?|hamsters?|kids?|children|sons?|daughters?|brothers?|sisters?|siblings|house|car|company"
        r"|shop)\b"
        r"|\b(?:my|our) (?:full |first |last |nick|sur|user|blood |shoe |dress |shirt |native |home |work |shipping "
        r"|billing "
        r"|delivery |email |e-mail |phone |mobile |contact |wedding )?"
        r"(?:name|nickname|username|type|size|language|address|birthday|anniversary|company|employer"
        r"|job(?: title)?|title|position|role|profession|occupation|department|team|phone(?: number)?|number"
        r"|mobile|email|e-mail"
        r"|school|university|major|degree|hometown|city|country|nationality|age|height|weight|goal|religion"
        r"|time ?zone)\b[^.?!]{0,20}?(?:\bis\b|\bare\b|'s\b|:)",
    )),
    Row("task_state", "task_state", Words(
        rf"{I_ZH}(?:们)?(?:已经|刚|刚刚)?把[^，,？]{{1,12}}(?:好|完|掉|回|成|到)[^，,？]{{0,8}}了"
        r"|^(?:正在|打算|计划|准备|要|在|先)*用[^，。,]{1,24}(?:重写|重构|迁移|替换|改造)"
        rf"|{I_ZH}(?:这边|们)?(?:刚刚|刚才|刚|已经|已|昨天|今天|前天|上周|都|就)*(?:取消|提交|付款|付|支付|下单"
        rf"|退货|退款|寄出|寄回|寄|发货|完成|签|签收|收到|预约|预订|预定|订|订购|报名|升级|续费|续约|解决|更换"
        rf"|更改|申请|办理|注册|激活|注销|开通|搞定|交|买|购买|下架|上线|提现|修改|改)[^。，,]{{0,16}}了"
        r"|(?:订单|退款|工单|合同|发票|项目|任务|报销|预约|快递|包裹|申请|会议|航班|行程|装修|报告|方案|论文|课程"
        r"|设备|手机|电脑|账号|账户|服务|版本|需求|问题|故障|流程|审批|款项|货|商品|机票|酒店)[^。，？?,]{0,16}"
        r"(?:已经?|还没|还未|尚未|没有|被|改到|改为|改成|推迟|延期|延后|提前|取消|完成|通过|驳回|拒绝|签收|收到"
        r"|退回|发货|到账|解决|搞定|批了|过了|坏了|丢了|处理|交付|上线|开通|暂停|失败|成功|待)"
        rf"|{I_ZH}(?:还|现在|目前|最近|下周|下个?月|明天|后天|今年|明年|周末)*(?:正在|打算|计划|准备|将要|即将"
        rf"|马上要|快要|要去|决定|想在)[^。，,？]{{2,}}",
        r"\b(?:i|we)(?:'ve| have)? (?:just |already |now |also |finally |recently )*(?:cancell?ed|submitted|paid"
        r"|ordered"
        r"|returned|shipped|finished|completed|booked|signed|received|upgraded|renewed|rescheduled|postponed"
        r"|applied|registered"
        r"|changed|replaced|fixed|solved|sent|opened|closed|placed|requested|reported|scheduled|subscribed"
        r"|unsubscribed|switched|bought|purchased)\b"
        r"|\b(?:order|refund|ticket|contract|invoice|project|task|appointment|meeting|delivery|package|parcel"
        r"|application|booking|reservation|flight|trip|subscription|payment|shipment|report|deadline|issue|device"
        r"|account|claim|case|return)\b[^.?!]{0,40}"
        r"\b(?:is|was|has been|have been|got|hasn't|has not|still|will be) (?:\w+ )?(?:cancell?ed|delayed"
        r"|postponed|rescheduled|approved|rejected|denied|completed|done|finished|shipped|delivered|received"
        r"|refunded|lost|broken|moved|pending"
        r"|overdue|resolved|solved|closed|opened|missing|late|arrived|confirmed|declined|paid|due|ready|processed)\b"
        r"|\b(?:i'm|i am|we're|we are) (?:planning|going|about|staying (?:at|in|with|here|near|until)|preparing"
        r"|currently (?:working|preparing|building|writing"
        r"|learning)|working on|building|training for|moving|flying|travell?ing|getting married|starting"
        r"|switching)\b"
        r"|\b(?:i|we)(?:'ve| have) decided\b|\b(?:i|we)(?:'ll| will) (?:be )?(?:arrive|leave|leaving|arriving|fly"
        r"|travel"
        r"|visit|move|start|attend|pick up|return|marry)\b|\b(?:i|we) plan to\b",
    )),
)  # fmt: skip
"""In order: the first that matches names kind and trigger."""

DONE_FOR_THE_USER: Final = Words(
    r"(?:已经?|这边已经?|刚刚?)(?:成功)?(?:为|帮|给|替)?(?:您|你)?(?:把|将)?[^。，,？?]{0,14}(?:取消|退款|提交"
    r"|登记|下单|预约|预订|寄出|发出|补发|换货|受理|创建|开具|修改|更新|升级|续期|安排|开通|注销|办理|转接|关闭"
    r"|解决|挂失|补卡|报修|报案|冻结|解冻|解绑|绑定|充值|激活|派单|转账|退回|寄回|延期|改签|升舱|减免|复机|改派|改约"
    r"|改期|变更"
    r"|调整|发送)",
    r"\b(?:i|we)(?:'ve| have) (?:now |just |already |also |successfully )*(?:cancell?ed|refunded|submitted"
    r"|registered|placed|booked|scheduled|rescheduled|shipped|created|opened|updated|upgraded|renewed|arranged"
    r"|issued|processed|closed|logged|added|applied|activated|waived|credited|disputed|blocked|frozen|replaced|reset"
    r"|enabled|disabled|extended|changed|filed|raised|escalated|transferred|reissued|removed|ordered|requested"
    r"|rebooked|deregistered|sent)\b"
    r"|\byour (?:order|refund|ticket|booking|reservation|subscription|appointment|request|claim|account|return"
    r"|invoice)\b[^.?!]{0,30}\b(?:has been|was|is now) (?:cancell?ed|refunded|submitted|registered|booked"
    r"|scheduled|rescheduled|shipped"
    r"|created|opened|updated|upgraded|renewed|arranged|issued|processed|approved|confirmed|closed)\b",
)
"""What an assistant says to have done: a change of task state. All else that it says is not kept."""

ATTRIBUTE: Final = Words(
    r"^(?!你|您|这|那|他|她|它|今天|现在|最近|其实|真正|所有|大家|人生|生活"
    r"|爱)[^，,。？?]{2,24}的(?!时候|时[，,])[^，,。？?的]{1,8}(?:是|为|在|有|叫|:|：)[^，,。？?]{1,}",
    r"^(?:the |our |my )[\w' -]{2,40}\b(?:is|are|was|will be|costs?|starts?|ends?|opens?|closes?|takes place"
    r"|is called)\b [^?]*\d"
    r"|^(?:the |our |my )[\w' -]{0,30}\b(?:code ?name|name|owner|lead|venue|location|address|hostname|budget)"
    r" (?:is|are|was|will be) \S",
)
"""A thing, one of its attributes, its value."""
