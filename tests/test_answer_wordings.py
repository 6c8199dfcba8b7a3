"""Answers in further wordings: groups of texts that must be read alike, and texts that only look like them."""

from __future__ import annotations

import pytest

from fpa.answers import extract_answer

METRES = ("2 metres", "4 metres", "8 metres", "16 metres")


def read(text: str) -> str:
    """The letter, or the status where there is none."""
    answer = extract_answer(text, METRES, "stop")
    return answer.outcome if answer.status == "parsed" else answer.status


CHINESE_AND_JAPANESE_C = [
    "应该选择 C 项。", "应当选择C", "应当选C。", "应该选C。", "应选C", "应选择C项。", "故选C。", "C选项正确。",
    "C选项是正确的。", "C 项正确。", "C项是对的。", "只有C选项正确。", "选项C是正确答案。",
    "A选项错误，B选项错误，C选项正确，D选项错误。", "A错，B错，C对，D错。", "因此必须选择C。", "只能选C。",
    "我们应当选择选项C。", "所以，C选项是正确的。", "C選項正確。", "正确的是C。", "正确的是C选项。",
    "正确答案应该选择C。", "本题应选（C）。", "本题选择C选项。", "應該選擇C。", "選択肢Cが正しいです。",
    "Cが正しいです。", "Cを選びます。", "Cを選ぶべきです。", "したがって、Cを選択します。", "正しいのはCです。",
    "C가 정답입니다.", "**C**选项正确。", "$C$选项正确。", "不应该选A，应该选C。", "不应选A，应当选择C。",
    "应该选择 $\\text{C}$ 项。",
]  # fmt: skip

VERDICTS = [
    ("B", "(A) wrong\n(B) right\n(C) wrong\n(D) wrong"),
    ("B", "A) incorrect\nB) correct\nC) incorrect\nD) incorrect"),
    ("B", "A. incorrect\nB. correct\nC. incorrect\nD. incorrect"), ("B", "A: wrong\nB: right\nC: wrong\nD: wrong"),
    ("B", "- **A**: wrong\n- **B**: right\n- **C**: wrong\n- **D**: wrong"),
    ("B", "(a) wrong\n(b) right\n(c) wrong\n(d) wrong"), ("B", "A false\nB true\nC false\nD false"),
    ("B", "A) False\nB) True\nC) False\nD) False"), ("B", "(A) wrong, (B) right, (C) wrong, (D) wrong."),
    ("B", "A - wrong\nB - right\nC - wrong\nD - wrong"), ("B", "A ✗\nB ✓\nC ✗\nD ✗"),
    ("B", "A：错误\nB：正确\nC：错误\nD：错误"),
    ("B", "| A | wrong |\n| B | right |\n| C | wrong |\n| D | wrong |"),
    ("B", "$\\text{(A)}$ wrong\n$\\text{(B)}$ right\n$\\text{(C)}$ wrong"),
    ("B", "A) 2 metres: incorrect\nB) 4 metres: correct\nC) 8 metres: incorrect"),
    ("B", "(A) 2 metres is wrong.\n(B) 4 metres is right.\n(C) wrong"),
    ("B", "x</think>\nA) wrong\nB) right\nC) wrong"), ("C", "A is false, B is false, C is true, D is false."),
    ("C", "A is false. B is false. C is true. D is false."),
    ("C", "A is false; B is false; C is true; D is false."),
    ("C", "Statement A is false, statement B is false, statement C is true and statement D is false."),
    ("C", "Option A is false, option B is false, option C is true."),
    ("C", "(A) is false, (B) is false, but (C) is true."),
    ("C", "- A is false\n- B is false\n- C is true\n- D is false"),
    ("C", "**A** is false, **B** is false, **C** is true, **D** is false."), ("C", "Only C is true."),
    ("none", "A is true, B is true, C is false, D is true."), ("none", "If A is true then C is true."),
    ("D", "A is false, B is false, C is true. The answer is (D)."),
    ("D", "The answer is (D). A is false, B is false, C is true."),
    ("none", "A: too small. B: too hot. C: fine. D: too cold."), ("none", "A right angle has 90 degrees."),
    ("none", "A correct reading would help."), ("none", "应该选择合适的公式。"), ("none", "选项C不正确。"),
    ("none", "C选项错误。"), ("none", "C选项不正确。"), ("D", "C选项不正确，D选项正确。"),
    ("none", "如果C选项正确，那么速度为零。"), ("none", "If (A) right\nthen nothing."),
    ("none", "(A) right-hand rule\n(B) left-hand rule"), ("none", "不应该选择C。"), ("none", "不应当选择C。"),
]  # fmt: skip


@pytest.mark.parametrize("text", CHINESE_AND_JAPANESE_C)
def test_chinese_and_japanese_wordings_of_a_choice(text: str) -> None:
    assert read(text) == "C"


@pytest.mark.parametrize(("wanted", "text"), VERDICTS)
def test_a_row_of_verdicts_declares_the_only_option_that_is_right(wanted: str, text: str) -> None:
    assert read(text) == wanted
