"""What counts as a word and a sentence in every script, and all that goes by it: copies, answers,
the parts of a prompt."""

from __future__ import annotations

from typing import Any

import pytest

from promptcodebook import rewards
from promptcodebook.base.text import count_words, cut_at_sentence, parts_of, sentences_of, words_of
from promptcodebook.config.schema import Update
from promptcodebook.data import load
from promptcodebook.data.dataset import examine
from promptcodebook.method.critic import nearest_instinct, split_shared
from promptcodebook.method.update import LengthCheck, NoLeakCheck, near_copy
from promptcodebook.types import Codebook, Example, Instinct

# An input of each script, and its translation into an order that has nothing of it.
INPUTS = {
    "Chinese": "请问我上周买的那双红色运动鞋什么时候能够送到上海？",
    "traditional Chinese": "請問我上週買的那雙紅色運動鞋什麼時候能夠送到臺北？",
    "Japanese": "先週注文した赤いスニーカーはいつ大阪の自宅に届きますか。",
    "Thai": "รองเท้าผ้าใบสีแดงที่ฉันสั่งซื้อเมื่อสัปดาห์ที่แล้วจะมาถึงเชียงใหม่เมื่อไหร่",
    "Korean": "제가 지난주에 주문한 그 빨간 운동화는 언제쯤 부산 집에 도착하나요?",
    "Arabic": "متى يصل الحذاء الرياضي الأحمر الذي طلبته في الأسبوع الماضي إلى القاهرة؟",
    "Hindi": "मैंने पिछले हफ़्ते जो लाल जूते मँगवाए थे वे दिल्ली कब तक पहुँचेंगे?",
    "mixed": "请用 Python 3.11 写一个函数，读取 CSV 文件并输出每列的平均值。",
    "Vietnamese": "Khi nào đôi giày thể thao màu đỏ tôi đặt tuần trước sẽ tới Huế?",
    "Khmer": "តើស្បែកជើងប៉ាតាពណ៌ក្រហមដែលខ្ញុំបានបញ្ជាទិញកាលពីសប្តាហ៍មុននឹងមកដល់នៅពេលណា",
}
OTHER = {
    "Chinese": "先道歉，再给出订单的状态和预计日期。",
    "Japanese": "まず謝り、次に配送状況を伝える。",
    "Thai": "ขอโทษก่อน แล้วแจ้งสถานะของคำสั่งซื้อ", "Korean": "먼저 사과하고 배송 상태를 알려 준다.",
    "Arabic": "اعتذر أولا ثم اذكر حالة الطلب.", "Hindi": "पहले माफ़ी माँगें, फिर ऑर्डर की स्थिति बताएँ।",
}  # fmt: skip


@pytest.mark.parametrize("language", INPUTS)
def test_a_rewrite_that_copies_an_input_is_refused_in_every_script(language: str) -> None:
    asked = INPUTS[language]
    check = NoLeakCheck([Example("e1", asked)])
    marks = "？?。؟"
    copied = f"Example: {asked.strip(marks)}!"
    assert "copies eight words" in (check(0, copied, "Be brief.", ()) or "")
    assert check(0, copied, copied, ()) is None  # it held it before
    assert check(0, OTHER.get(language, "Be brief."), "Be brief.", ()) is None
    [(start, end, _)] = check.find(copied)
    assert copied[start:end] == asked.strip(marks)


@pytest.mark.parametrize(("answer", "text", "leaks"), [
    ("上海浦东发展银行", "答案是上海浦东发展银行。", True),
    ("退货", "如果要退货，请说明步骤。", False),
    ("東京スカイツリー", "東京スカイツリーと答える。", True),
    ("ยกเลิก", "ถ้าลูกค้าต้องการยกเลิก ให้บอกขั้นตอน", False),
    ("टेस्ट", "टेस्ट के बाद उत्तर दें", False),
])  # fmt: skip
def test_an_answer_of_many_letters_is_given_away_and_a_label_is_not(
    answer: str, text: str, leaks: bool
) -> None:
    found = NoLeakCheck([Example("e1", "?", answer)])(0, text, "", ())
    assert ("gives away the answer" in (found or "")) is leaks


@pytest.mark.parametrize("language", INPUTS)
def test_a_near_copy_in_another_split_is_found_in_every_script(language: str) -> None:
    text = INPUTS[language] * 2
    rows = {"train": text, "val": f"{text} 谢谢", "test": "Quite another input."}
    found = examine(load({s: [{"input": each, "target": "x"}] for s, each in rows.items()}))
    assert [leak.splits for leak in found.near] == [("train", "val")]
    assert found.lengths["train"].shortest > 10


@pytest.mark.parametrize("language", OTHER)
def test_an_instinct_that_differs_in_a_letter_or_a_word_is_a_near_copy(language: str) -> None:
    long = f"{OTHER[language]} {INPUTS[language]}"
    assert near_copy(1, f"{long} {OTHER[language][:2]}", "", [long]) is not None
    assert near_copy(1, INPUTS[language], "", [OTHER[language]]) is None


def score(kind: str, target: str, output: str) -> float:
    made: Any = getattr(rewards, kind)()
    return made(Example("e1", "?", target), output).value


LONG = "人工智能是研究如何让计算机完成过去只有人才能做的智能工作的一门学科并且发展很快很好"


@pytest.mark.parametrize(("kind", "target", "output", "least", "most"), [
    ("f1", LONG, f"{LONG[:-1]}坏", 0.95, 0.99),
    ("f1", "東京タワー", "東京タワーです。", 0.7, 0.9),
    ("f1", "เชียงใหม่", "จังหวัดเชียงใหม่", 0.5, 0.9),
    ("f1", "서울 부산", "서울 대구", 0.5, 0.5),
    ("f1", "नई दिल्ली", "नई दिल्ली।", 1.0, 1.0),
    ("f1", "القاهرة", "القاهرة؟", 1.0, 1.0),
    ("f1", "用 Python 写", "用Python写。", 1.0, 1.0),
    ("f1", "the red hat", "red hat", 1.0, 1.0),
    ("normalised", "北京", "北京。", 1.0, 1.0),
    ("normalised", "「東京」", "東京", 1.0, 1.0),
    ("normalised", "ＡＢＣ１２", "abc12", 1.0, 1.0),
    ("normalised", "北京", "南京", 0.0, 0.0),
    ("normalised", "x ≥ 5", "x ≤ 5", 0.0, 0.0),
    ("numeric", "8", "一共有8个苹果。", 1.0, 1.0),
    ("numeric", "42", "답은42입니다", 1.0, 1.0),
    ("numeric", "3", "v3 of x3", 0.0, 0.0),
])  # fmt: skip
def test_a_reward_reads_answers_in_every_script(
    kind: str, target: str, output: str, least: float, most: float
) -> None:
    assert least <= score(kind, target, output) <= most


@pytest.mark.parametrize(("text", "sentences"), [
    ("请简短回答。不要道歉！要用表格吗？好", ["请简短回答。", "不要道歉！", "要用表格吗？", "好"]),
    ("丁寧に答える。「はい。」と言う。数字は１．５とする。",
     ["丁寧に答える。", "「はい。」と言う。", "数字は１．５とする。"]),
    ("أجب بإيجاز. هل تعرف؟ قل لا أعرف.", ["أجب بإيجاز.", "هل تعرف؟", "قل لا أعرف."]),
    ("संक्षेप में उत्तर दें। सूची बनाएँ।", ["संक्षेप में उत्तर दें।", "सूची बनाएँ।"]),
    ("مختصر جواب دیں۔ فہرست بنائیں۔", ["مختصر جواب دیں۔", "فہرست بنائیں۔"]),
    ("짧게 답하세요. 목록을 쓰세요!", ["짧게 답하세요.", "목록을 쓰세요!"]),
    ("用 Python 3.11 写。Use tabs. 不要解释!谢谢",
     ["用 Python 3.11 写。", "Use tabs.", "不要解释!", "谢谢"]),
    ("规则：\n1、要简短。否则重写。\n（2）要礼貌\n・例を出す\n②用中文",
     ["要简短。否则重写。", "要礼貌", "例を出す", "用中文"]),
    ("ตอบสั้น ๆ\nใช้ภาษาสุภาพ", ["ตอบสั้น ๆ", "ใช้ภาษาสุภาพ"]),
    ("Be brief (e.g. No. 5). Say „Nein“. Dann enden.",
     ["Be brief (e.g. No. 5).", "Say „Nein“.", "Dann enden."]),
])  # fmt: skip
def test_a_prompt_of_any_script_is_cut_at_its_sentences(text: str, sentences: list[str]) -> None:
    assert sentences_of(text) == sentences == parts_of(text)


def test_lengths_count_the_same_in_every_script() -> None:
    """Five letters of Chinese are four words, and what has blanks is counted as before."""
    assert count_words("don't stop - now") == 4 and count_words("") == 0
    assert count_words("请用简短的语言回答") == 7 and count_words("नमस्ते दुनिया") == 2
    assert words_of("नमस्ते") == ["नमस्ते"] and words_of("が") == ["が"]
    long = "请先道歉再说明。" * 30
    assert "over the cap of 60" in (LengthCheck(Update(instinct_words=60))(0, long, "", ()) or "")
    assert cut_at_sentence(long, 60) == "请先道歉再说明。" * 10


def test_a_complaint_reaches_the_instinct_that_it_is_about_in_every_script() -> None:
    book = Codebook((Instinct("回答前请先数一数字数。"), Instinct("请引用政策中的段落。")))
    assert nearest_instinct("没有引用政策的段落", book, (0, 1)) == 1
    shared, own = split_shared(["引用政策的段落太少。语气不好。", "缺少引用政策的段落。"], 2)
    assert shared == ("引用政策的段落太少。", "缺少引用政策的段落。") and own == [(0, "语气不好。")]


FENCE = 'Answer in this form:\n```json\n{"a": 1}\n\n- no. Really.\n```'
TABLE = "| code | means |\n|---|---|\n| 1 | Yes. Always. |"
TAGGED = "<rules>\n- Be brief.\n<inner>Be kind. Be quick.</inner>\n</rules>"
SUB = "If they are angry:\n  - say sorry. Then stop.\n\n  - call a clerk"


@pytest.mark.parametrize(("text", "parts"), [
    (f"Be good. {FENCE}\nBe kind.", ["Be good.", FENCE, "Be kind."]),
    (f"{TABLE}\n\nBe kind.", [TABLE, "Be kind."]),
    ("Use it:\n\na | b\n--- | ---\n1 | 2\nBe kind.",
     ["Use it:\na | b\n--- | ---\n1 | 2", "Be kind."]),
    (f"Follow all.\n{TAGGED}\nBe kind.", ["Follow all.", TAGGED, "Be kind."]),
    (f"Rules:\n- {SUB}\n- Cite. Count.", [SUB, "Cite.", "Count."]),
    ("1. Ask:\n   a) who\n   b) when\n2. Stop.", ["Ask:\n   a) who\n   b) when", "Stop."]),
    ("- Never name prices\n  unless asked.\n* Be kind\nto all",
     ["Never name prices unless asked.", "Be kind to all"]),
    ("Name no price\nunless asked.\nBe kind.", ["Name no price unless asked.", "Be kind."]),
    ("be brief\nbe kind", ["be brief", "be kind"]),
    ("- Reply so:\n~~~\nx: 1\n~~~\n- Be kind", ["Reply so:\n~~~\nx: 1\n~~~", "Be kind"]),
    ("<b>Be brief. Be kind.</b>", ["<b>Be brief. Be kind.</b>"]),
    ("Answer within <answer></answer>. Be kind.", ["Answer within <answer></answer>.", "Be kind."]),
    ("Use <name> and ``` here. Be kind.\n```\nleft open",
     ["Use <name> and ``` here.", "Be kind.", "left open"]),
    ("规则：\n- 生气时：\n  - 道歉。\n  - 停。\n```\n代码。\n```",
     ["生气时：\n  - 道歉。\n  - 停。", "```\n代码。\n```"]),
])  # fmt: skip
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_block_of_a_prompt_stays_whole(text: str, parts: list[str], end: str) -> None:
    assert parts_of(text.replace("\n", end)) == parts
