"""A query of several questions is taken apart; any other is left whole."""

import pytest

from app.language import questions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("我用的手机是啥型号？另外，张伟的身高是多少？", ("我用的手机是啥型号？", "另外，张伟的身高是多少？")),
        ("Where is my order? And can I still change the address?",
         ("Where is my order?", "And can I still change the address?")),
        ("国庆去杭州要注意什么？", ()),
        ("我的订单到了。发票怎么开？", ()),
        ("真的？吗？我的订单到哪了？", ()),
        ("第一个问题是什么？第二个问题是什么？第三个问题是什么？第四个问题是什么？",
         ("第二个问题是什么？", "第三个问题是什么？", "第四个问题是什么？")),
        ("", ()),
        ("？？？", ()),
    ],
)  # fmt: skip
def test_questions(text: str, expected: tuple[str, ...]) -> None:
    assert questions(text) == expected
