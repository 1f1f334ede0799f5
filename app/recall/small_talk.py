"""What small talk sounds like to the model: its mean vector, so that likeness to everything can be told from likeness.

Invariant: one vector a process, made from sentences of our own; until the embedder gives it, ranking does without. The
signs of cold memories are told from it, too: another sentence here, and those of before are found by words only.
"""

import asyncio
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from app.embed import Embedder
from app.errors import EmbeddingUnavailable

RETRY_SECONDS = 60

SENTENCES = (
    "Anna: Hi Tom! It's been ages. How was your trip?",
    "Tom: Hey Anna! It was amazing, the mountains were so peaceful. We hiked every single day.",
    "Maya: That sounds wonderful! I really needed a break like that too.",
    "Leo: Thanks, that means a lot to me. I've been working on it for months.",
    "Nina: Wow, congratulations! You must be so proud of yourself.",
    "Sam: Yeah, it was tough at first, but my friends kept me going.",
    "Ella: I just signed up for a pottery class last week. I'm so excited!",
    "Chris: Nice! What made you want to try that?",
    "Anna: My grandmother used to make bowls, so it reminds me of her.",
    "Tom: That's really sweet. Do you have a picture of one of them?",
    "Maya: Here's a photo from the workshop. [a table with three painted cups]",
    "Leo: They look great! I love the colours you picked.",
    "Nina: By the way, how is your new job going?",
    "Sam: It's going well. The team is friendly and I'm learning a lot.",
    "Ella: Good to hear. Remember to take some time for yourself too.",
    "Chris: I will. We're planning a small party next month, you should come!",
    "User: I've had a rough day, nothing went right at the office.",
    "AI: I'm sorry to hear that. Would you like to talk about what happened?",
    "User: Can you recommend a good book about starting a small business?",
    "AI: Of course! You could start with one on planning, then one on marketing.",
    "User: My order still hasn't arrived and I need it before Friday.",
    "Agent: I understand, let me check the delivery status for you right away.",
    "User: Thank you, I'll give it a try and let you know how it goes.",
    "AI: You're welcome! Take your time, and feel free to come back with questions.",
    "小林：好久不见！你最近忙什么呢？",
    "阿杰：我上个月换了工作，现在在一家设计公司，每天都挺忙的。",
    "小林：哇，恭喜你！新同事怎么样？",
    "阿杰：都很好相处，周末还一起去打了羽毛球。",
    "小林：听起来不错，下次也叫上我吧。",
    "阿杰：没问题，我到时候提前告诉你。",
    "用户：我今天心情不太好，跟朋友吵了一架。",
    "AI：别难过，朋友之间有误会很正常，你愿意说说发生了什么吗？",
    "用户：我想学做饭，有没有简单的菜可以推荐？",
    "AI：当然可以，番茄炒蛋和清炒时蔬都很适合新手。",
    "用户：我买的鞋子码数不对，想换大一号的。",
    "客服：亲，可以的，您把订单号发给我，我马上帮您登记换货。",
    "用户：好的，谢谢你的建议，我试试看。",
    "AI：不客气，希望你会喜欢，有问题随时来找我。",
    "用户：我昨天去看了一场音乐会，现场气氛特别好。",
    "AI：真为你高兴！你最喜欢哪一首曲子呢？",
    "客服：您好，很高兴为您服务，请问有什么可以帮您？",
    "客服：感谢您的耐心等待，这边已经为您提交申请了。",
    "用户：快递显示已经签收，可是我没有收到。",
    "用户：哈哈，那太好了，我明天就去报名。",
    "小林：我也这么觉得，慢慢来，别着急。",
    "阿杰：给你看看我拍的照片，海边的日落真美。",
    "小林：真漂亮！这是在哪里拍的？",
    "阿杰：在厦门，上周末我和家人一起去的。",
)


class SmallTalk:
    """The mean of the vectors of SENTENCES, made in the background."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._task: asyncio.Task[None] | None = None
        self.mean: NDArray[np.float32] | None = None
        """Shape (dimension,), not of unit length; None until it is known."""

    async def prepare(self) -> None:
        """Make the vector, or keep trying in the background while the embedder is away."""
        with suppress(EmbeddingUnavailable):
            await self.make()
        if self.mean is None:
            self._task = asyncio.create_task(self._keep_trying())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def make(self) -> None:
        """Make the vector. Raises EmbeddingUnavailable."""
        vectors = await self._embedder.embed_documents(SENTENCES)
        self.mean = np.mean([windows[0] for windows in vectors], axis=0, dtype=np.float32)

    async def _keep_trying(self) -> None:
        while self.mean is None:
            await asyncio.sleep(RETRY_SECONDS)
            with suppress(EmbeddingUnavailable):
                await self.make()
