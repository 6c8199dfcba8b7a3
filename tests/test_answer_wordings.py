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


OTHER_CASES = [
    "If friction were present, the answer would be (A).", "Without friction, the answer is (A).",
    "Otherwise the answer is (A).", "Otherwise, the answer would be (A).",
    "Had friction been present, the answer would have been (A).", "When friction is present, the answer is (A).",
    "For a heavier car, the answer is (A).", "The worst answer is (D).", "The opposite answer is (D).",
    "The second best answer is (C).", "The second-best answer is (C).", "The least likely option is (A).",
    "With friction, it would be (A).", "With friction, the answer is (A).",
    "In the presence of friction, the answer is (A).", "In a vacuum, the answer would be (A).",
    "The answer would be (A) with friction.", "The answer would have been (A).",
    "The answer is (A) if friction is present.", "The answer is (A) only when friction is present.",
    "The answer would be (A) for a heavier car.", "If friction is present, choose (A).",
    "If friction is present, (A) is correct.", "Were friction present, the answer would be (A).",
    "Should the car be heavier, the answer is (A).", "Suppose there were friction. Then the answer would be (A).",
    "Now imagine a heavier car. Then the answer is (A).", "For heavier cars, the answer is **A**.",
    "**Otherwise**, the answer is $\\boxed{A}$.", "if friction is present, the answer is a.",
    "unless friction is absent, the answer is (a).", "The next best choice is (C).", "The weakest option is (D).",
    "The answer least likely to be right is (D).", "The answer that makes the least sense is (D).",
    "The wrong answer is (D).", "Another possible answer is (C), if air drags.",
    "In that case, the answer would be (A).", "In such cases the answer is (A).",
    "The answer without friction is (A).", "The answer for a heavier car is (A).",
    "The answer when friction is present is (A).", "However, if friction were present, the answer would be (A).",
    "But with friction the answer would be (A).", "Note: if the road were wet, the correct option would be (A).",
    "(If friction were present, the answer would be (A).)", "> If friction were present, the answer would be (A).",
    "- Otherwise: the answer is (A).", "如果有摩擦，答案就是A。", "否则答案是A。", "否则选A。", "最差的答案是D。",
    "最不可能的选项是D。", "在有摩擦的情况下，答案是A。", "もし摩擦があれば、答えはAです。",
    "そうでなければ、答えはAです。", "摩擦がある場合、答えはAです。",
    "Whenever friction is present, the answer is (A).", "Assuming friction, the answer is (A).",
    "Provided that there is friction, the answer is (A).", "Under other conditions, the answer is (A).",
    "If the car were heavier then, of course, the answer would be (A).",
    "If friction were present, the speed would drop, so the answer would be (A).", "My initial answer was (A).",
    "The other possible answer is (A).", "The least correct answer would be (D).", "The poorest choice is (D).",
]  # fmt: skip

NO_ASIDES = [
    ("B", "When friction is ignored, the answer is (B). If friction were present, the answer would be (A)."),
    ("B", "If friction were present, the answer would be (A). There is none, so the answer is (B)."),
    ("B", "With friction it would be (A), but here the answer is (B)."),
    ("C", "The answer is (A). Wait, actually the answer is (C)."),
    ("B", "Hence, without friction, the answer is (B)."), ("B", "Without friction, the answer is (B)."),
    ("B", "If x = 2, then the answer is (B)."), ("B", "Otherwise the answer is (B)."),
    ("B", "For a heavier car, the answer is (B)."), ("B", "The least likely option is (B)."),
    ("B", "The worst answer is (B)."), ("B", "The second best answer is (B)."),
    ("B", "When friction is present, the answer is (B)."), ("B", "The answer would be (B)."),
    ("B", "The answer would have been (B)."), ("B", "If we plug in x = 2 we get 4, so the answer is (B)."),
    ("C", "The answer is (A). But is that right? No: the speed doubles. The answer is (C)."),
    ("C", "The answer is (A). Wait, if we use the right mass, the answer is (C)."),
    ("C", "The answer is (A). Hmm, the question asks for the least likely. The least likely option is (C)."),
    ("C", "The answer is (A). Actually, without friction the answer is (C)."),
    ("C", "The answer is (A). I misread the question. So the answer would be (C)."),
    ("C", "The answer is (A). Wait, that is the mass. The answer would be (C)."),
    ("C", "The answer is (A). Let me recheck. The speed doubles. The answer would be (C)."),
    ("C", "The answer is (A). If we plug in x = 2, we get 4, so the answer is (C)."),
    ("C", "The answer is (A). For this question, the answer is (C)."),
    ("C", "The answer is (A). With this in mind, the answer is (C)."),
    ("C", "The answer is (A). In other words, the answer is (C)."),
    ("C", "The answer is (A). In the end, the answer is (C)."),
    ("C", "The answer is (A). For these reasons the answer is (C)."),
    ("C", "The answer is (A). Without a doubt, the answer is (C)."),
    ("C", "The answer is (A). Without further ado, the answer is (C)."),
    ("C", "The answer is (A). When we check again, the answer is (C)."),
    ("C", "The answer is (A). On second thought, I would choose (C)."),
    ("C", "The answer is (A). I would say the answer is (C)."), ("C", "The answer is (A). The best answer is (C)."),
    ("C", "The answer is (A). That would violate a law, and the answer is (C)."),
    ("C", "The answer is (A). In any case, the answer is (C)."),
    ("C", "The answer is (A). No, the answer is not (A). Without friction, the answer is (C)."),
    ("C", "The answer is (A). At the least, the answer is (C)."), ("C", "The answer is (A). 等等，答案应该是C。"),
    ("C", "The answer is (A). いや、答えはCです。"),
    ("C", "The answer is (A). In order to be safe, the answer is (C)."),
    ("C", "The answer is (A). The answer to the second part is 3. The answer is (C)."),
    ("B", "It might be (A). If friction is ignored, the answer is (B)."), ("C", "如果没有摩擦，答案是C。"),
    ("C", "否则答案是C。"), ("C", "もし摩擦がなければ、答えはCです。"), ("C", "当没有摩擦时，答案是C。"),
    ("C", "x</think>Without friction, the answer is (C)."), ("C", "Without friction, $\\boxed{C}$."),
    ("C", "The answer is (A). In either case, the answer is (C)."),
    ("C", "The answer is (A). If I am not mistaken, the answer is (C)."),
    ("C", "If x is even, the answer is (A); otherwise the answer is (C)."),
    ("C", "The answer is (A). Given the values above, the answer is (C)."),
    ("C", "The answer is (A). In a nutshell, the answer is (C)."),
    ("C", "The answer is (A). For a number of reasons, the answer is (C)."),
]  # fmt: skip


@pytest.mark.parametrize(
    "stated",
    [
        "The answer is (B). ",
        "Answer: b\n\n",
        "B\n\n",
        "<think>It is (C).</think>**Answer: B**\n\n",
        "So $\\boxed{\\text{B}}$.\n",
        "答案是B。",
    ],
)
@pytest.mark.parametrize("later", OTHER_CASES)
def test_what_is_said_of_another_case_takes_no_stated_answer_back(stated: str, later: str) -> None:
    assert read(stated + later) == "B"


@pytest.mark.parametrize(("wanted", "text"), NO_ASIDES)
def test_another_case_counts_where_no_answer_stands_and_revisions_count(wanted: str, text: str) -> None:
    assert read(text) == wanted


OTHER_QUESTIONS = [
    "The largest planet is\nA) Mars\nB) Venus\nC) Jupiter\nD) Earth\nThe answer is (C).",
    "The capital of France is ____.\nA) Rome\nB) Oslo\nC) Paris\nD) Bern\nThe answer is (C).",
    "The capital of France is:\nA. Rome\nB. Oslo\nC. Paris\nD. Bern\nThe answer is (C).",
    "What is the capital of France?\na) Rome\nb) Oslo\nc) Paris\nd) Bern\nThe answer is (C).",
    "What is the capital of France?\n1) Rome\n2) Oslo\n3) Paris\nThe answer is (C).",
    "What is the capital of France?\n- A: Rome\n- B: Oslo\n- C: Paris\nThe answer is (C).",
    "What is the capital of France?\nThe answer is (C).",
    "Which of these is a metal?\n(A) Wood\n(B) Glass\n(C) Iron\nThe answer is (C).",
    "Let's do another one: which is big? The answer is (C).",
    "Now try a new problem: how far is the moon? The answer is (C).",
    "法国的首都是什么？\nA. 罗马\nB. 奥斯陆\nC. 巴黎\n答案是C。",
]


@pytest.mark.parametrize("text", OTHER_QUESTIONS)
def test_what_follows_another_question_does_not_count(text: str) -> None:
    assert read(f"The answer is (B).\n{text}") == "B"
    assert read(f"x</think>The answer is (B).\n\n{text}") == "B"


@pytest.mark.parametrize(
    "text",
    [
        "But is that right? Let me check again. Actually, the answer is (C).",
        "Wait. What is the speed again? It is 4 m/s, so the answer is (C).",
        "Wait, is it (B)? No, the answer is (C).",
        "Checking the options:\nA) 2 metres: too small\nB) 4 metres: too small\nC) 8 metres: fits\nThe answer is (C).",
        "A) 2 metres\nB) 4 metres\nC) 8 metres\nD) 16 metres\nOn reflection, the answer is (C).",
        "However:\n1. the speed is 4 m/s\n2. the time is 2 s\nSo the answer is (C).",
    ],
)
def test_what_is_asked_and_listed_about_this_question_counts(text: str) -> None:
    assert read(f"The answer is (B).\n{text}") == "C"
