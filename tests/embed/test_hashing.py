"""The weightless embedder: deterministic, unit length, and similar for similar texts in both languages."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.embed import EmbedConfig, Embedder, load_embedder
from app.embed.hashing import HashingEngine

EMBEDDER = load_embedder(EmbedConfig(provider="hashing", query_cache_size=0), Path("unused"))
ENGINE = HashingEngine(EMBEDDER.spec)


async def one(text: str, embedder: Embedder = EMBEDDER) -> np.ndarray:
    (windows,) = await embedder.embed_documents([text])
    assert windows.shape == (1, embedder.spec.dimension)
    vector: np.ndarray = windows[0]
    return vector


@given(st.text(max_size=200))
def test_any_text_gives_a_finite_vector_that_is_not_zero_and_repeats(text: str) -> None:
    vector = ENGINE._vectors([text])[0]
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) > 0
    assert np.array_equal(vector, ENGINE._vectors([text])[0])


def test_the_same_on_every_machine() -> None:
    vector = ENGINE._vectors(["", "芒果 mango"])[1]
    assert np.flatnonzero(vector)[:6].tolist() == [29, 34, 35, 77, 84, 91]


@pytest.mark.parametrize(
    ("text", "near", "far"),
    [
        ("我对芒果过敏，不能吃芒果", "芒果过敏要注意什么", "今天天气真好，中午吃了黄焖鸡米饭"),
        ("The customer asked for a refund of order A-1024", "refund for order A-1024?", "Our office is in Berlin"),
        ("订单 A-1024 已经退款", "A-1024 退款了吗", "客户喜欢喝咖啡"),
    ],
)
async def test_similar_texts_have_similar_vectors(text: str, near: str, far: str) -> None:
    vector = await one(text)
    assert vector @ await one(near) > 0.2 + vector @ await one(far)


async def test_a_query_and_a_document_of_the_same_text_are_equal() -> None:
    np.testing.assert_allclose(await EMBEDDER.embed_query("芒果"), await one("芒果"), atol=1e-6)


async def test_the_dimension_is_configurable() -> None:
    embedder = load_embedder(EmbedConfig(provider="hashing", dimension=64), Path("unused"))
    assert np.linalg.norm(await one("text", embedder)) == pytest.approx(1.0, abs=1e-5)
    assert embedder.spec.dimension == 64
