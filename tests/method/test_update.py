"""LLM_upd(v, g): gathering, rewriting, refusing (Eq. 9; decision 11)."""

from dataclasses import replace

import pytest

from promptcodebook import types
from promptcodebook.base.incidents import Incident
from promptcodebook.calls import Reply
from promptcodebook.config import load_config
from promptcodebook.config.schema import Update
from promptcodebook.errors import EndpointDown
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.rewrite_checks import AllChecks, LengthCheck, NoLeakCheck, near_copy
from promptcodebook.method.update import PendingUpdate, apply_rewrites, collect_gradients
from tests.build.cases import table
from tests.build.method import (
    Counts,
    World,
    book,
    config,
    never,
    parameters,
    sent,
)


def trace(explored: bool = False, **gradients) -> types.Trace:
    route = types.Route((0, 1), explored=explored)
    return types.Trace(
        types.Rollout("x", route, reward=0.0), 0.0, gradients=types.Gradients(**gradients)
    )


ALL = {"encoder": "z", "generator": "r", "codebook": {1: "i1", 0: "i0"}, "critic": "own"}


def test_the_order_is_theta_phi_codebook_psi():
    """Eq. 9 in the order of Algorithm 1; what is not blamed, or is frozen, stays."""
    pending = collect_gradients(parameters(), [trace(), trace(**ALL)], config())
    assert [p.variable for p in pending] == ["encoder", "generator", 0, 1, "critic"]
    frozen = parameters(book(frozen=[0]))
    assert [p.variable for p in collect_gradients(frozen, [trace(**ALL)], config())][2:-1] == [1]


@pytest.mark.parametrize("flag", [False, True])
def test_explored_routes_teach_theta_only_if_told_to(flag: bool):
    """θ did not choose an explored route, so its fault is not θ's (decision 7)."""
    settings = config(update={"encoder_on_explored": flag})
    traces = [trace(explored=True, encoder="not chosen by me"), trace(encoder="chosen by me")]
    (theta,) = collect_gradients(parameters(), traces, settings)
    assert theta.gradients == (("not chosen by me", "chosen by me") if flag else ("chosen by me",))


QUOTES = "Keep this in the prompt: Open and close the text with a quotation mark."
LIMIT = "The prompt lost the limit of fifty words."
AGAIN = "It lost the limit of fifty words, which an instinct holds."


def batch(*gradients: dict[str, str], fallback: int = -1) -> list[types.Trace]:
    """Traces of one batch; of the one at `fallback` the route had to be filled up."""
    made = [replace(trace(**g), rollout=types.Rollout(f"x{i}", types.Route((0, 1)))) for i, g in
            enumerate(gradients)]  # fmt: skip
    if fallback >= 0:
        route = types.Route((0, 1), fallback=True)
        made[fallback] = replace(made[fallback], rollout=types.Rollout("f", route))
    return made


def gathered(traces: list[types.Trace], **tree) -> dict[object, tuple[str, ...]]:
    texts = parameters(book("count words", "mark quotations", "name all sources", "be kind"))
    return {
        p.variable: p.gradients
        for p in collect_gradients(texts, traces, config(**{"update": {"shared_by": 2}, **tree}))
    }


@pytest.mark.parametrize("channel", ["generator", "encoder"])
def test_a_complaint_of_one_example_reaches_no_directive_but_an_instinct(channel: str):
    """Decision 28. One such sentence in φ stood in every prompt, and most states were ruined."""
    traces = batch({channel: QUOTES}, {channel: LIMIT}, {}, {})
    found = gathered(traces)
    assert channel not in found
    assert found == {1: (QUOTES,), 0: (LIMIT,)}, "the one that is nearest in words"
    assert gathered(traces, update={"shared_by": 1}) == {channel: (QUOTES, LIMIT)}
    assert gathered(traces, update={"mode": "online"}) == {channel: (QUOTES, LIMIT)}, "the paper's"
    assert load_config({"preset": "paper"}).update.shared_by == 1


def test_a_directive_learns_what_two_examples_share_and_nothing_else_of_them():
    traces = batch({"generator": f"{LIMIT} {QUOTES}"}, {}, {"generator": AGAIN})
    assert gathered(traces) == {"generator": (LIMIT, AGAIN), 1: (QUOTES,)}
    twice = batch({"generator": f"{LIMIT} {AGAIN}"}, {})
    assert "generator" not in gathered(twice), "one example that says it twice is one"
    assert "generator" not in gathered(traces, update={"shared_by": 3})
    # A frozen instinct takes no complaint; what the fault of a route says is about its form.
    frozen = parameters(book("count words", "mark quotations", frozen=[0, 1]))
    (one,) = batch({"generator": QUOTES})
    assert collect_gradients(frozen, [one], config(update={"shared_by": 2})) == []
    fault = "Its reply was not a valid choice: it was not of the form asked for."
    assert gathered(batch({"encoder": fault}, {}, fallback=0)) == {}
    two = batch({"encoder": fault}, {"encoder": fault}, fallback=0)
    assert gathered(two) == {"encoder": (fault, fault)}
    (one,) = batch({"generator": "The text is harmful: it lies."})
    called = replace(one, verdict=types.Critique(0.0, "", {"generator": "it lies"}))
    assert gathered([called]) == {"generator": ("The text is harmful: it lies.",)}, "one is enough"


def test_applying_keeps_the_order_of_the_codebook():
    """Decision 14: edits to the codebook keep its order; refused rewrites change nothing."""
    rewrites = [
        types.Rewrite("encoder", "theta 0", "theta 1", "", kept=True),
        types.Rewrite("generator", "phi 0", "phi 1", "", kept=False),
        types.Rewrite(2, "rule two", "rule 2 new", "", kept=True),
        types.Rewrite("critic", "psi 0", "psi 1", "", kept=True),
    ]
    new = apply_rewrites(parameters(book(frozen=[2])), rewrites)
    assert (new.encoder, new.generator, new.critic) == ("theta 1", "phi 0", "psi 1")
    assert new.codebook.texts == ("rule zero", "rule one", "rule 2 new", "rule three")
    assert new.codebook[2].frozen
    phi = types.Rewrite("generator", "phi 0", "phi 1", "", kept=True)
    assert apply_rewrites(parameters(), [phi]).generator == "phi 1"


async def rewrite(*pending: PendingUpdate, replies: tuple[Scripted, ...] = (), check=never, **tree):
    world = World(config(**tree), ScriptedLM().enqueue(*replies), check=check)
    return world, await world.updater.rewrite_all(pending, 3)


async def test_the_updater_sees_text_gradients_cap_checks_and_the_others_by_their_titles():
    """What another says already is not to be repeated; a long one is shown by its first words."""
    long = " ".join(f"w{i}" for i in range(26))
    world, (done, _) = await rewrite(
        PendingUpdate(1, "rule one", ("first\nline", "second"), ("rule\nzero", long)),
        PendingUpdate("generator", "phi", ("g",)),
        replies=(" new rule \n", "new phi"),
    )
    assert done == types.Rewrite(1, "rule one", "new rule", "- first line\n- second", kept=True)
    seen, directive = map(sent, world.lm.history)
    for part in ("rule one", "- first line\n- second", "at most 25 words", "another instinct"):
        assert part in seen
    assert "eight words" in seen
    assert "- rule zero\n- w0 w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 …\n" in seen
    assert seen.index("w11 …") < seen.index("Present text:")
    assert "Other instincts" in seen and "Other instincts" not in directive


async def test_at_most_max_gradients_go_into_one_rewrite_by_a_seeded_choice():
    """An 8k context must hold them all."""
    many = PendingUpdate(1, "rule one", tuple(f"g{i:02}" for i in range(20)))
    chosen: list[list[str]] = []
    for seed in (0, 0, 1):
        update = {"max_gradients": 3}
        _, (done,) = await rewrite(many, replies=("new",), update=update, seed=seed)
        chosen.append(done.gradient.splitlines())
    assert all(len(lines) == 3 and lines == sorted(set(lines)) for lines in chosen)
    assert chosen[0] == chosen[1] != chosen[2]
    _, (done,) = await rewrite(replace(many, gradients=many.gradients[:3]), replies=("new",))
    assert done.gradient == "- g00\n- g01\n- g02"


def refusing(*bad: str):
    def check(variable, text, before, others):
        return "it quotes an input: SECRET" if text in bad else None

    return check


async def test_a_refused_rewrite_is_asked_for_once_more_with_the_reason_alone():
    """Decision 11. What a reason quotes, and the refused text, are not sent again."""
    world, (done,) = await rewrite(
        PendingUpdate(2, "rule two", ("g",)), replies=("leaked", "better"), check=refusing("leaked")
    )
    first, again = world.lm.history
    assert done == types.Rewrite(
        2, "rule two", "better", "- g", kept=True, reason="",
        earlier=types.RefusedReply("leaked", "it quotes an input: SECRET"),
    )  # fmt: skip
    assert sent(again).startswith(sent(first)) and again.sample != first.sample
    assert "it quotes an input." in sent(again)
    assert "SECRET" not in sent(again) and "leaked" not in sent(again)
    assert (world.tally["rewrites_reasked"], world.tally["rewrites_refused"]) == (1, 0)
    cut = Reply("half a rew", finish="length")
    for first, read, reason in (
        (cut, "half a rew", "the rewrite was cut at its length cap"),
        ("<think>hm</think>", "", "the rewrite is empty"),
    ):
        pending, check = PendingUpdate(0, "rule zero", ("g",)), LengthCheck(Update())
        _, (done,) = await rewrite(pending, replies=(first, "whole"), check=check)
        assert done.kept and (done.after, done.earlier) == (
            "whole",
            types.RefusedReply(read, reason),
        )


REFUSES = "I'm sorry, but I can't help with that."


@pytest.mark.parametrize("place", ["", "tool:look: "])
@pytest.mark.parametrize("reply", [REFUSES, '{"index": 3}', "</instinct>", "[2]"])
async def test_a_reply_in_place_of_a_text_is_asked_for_once_more_then_refused(reply, place):
    pending, check = PendingUpdate(0, f"{place}rule zero", ("g",)), LengthCheck(Update())
    world, (done,) = await rewrite(pending, replies=(reply, '{"text": "Whole."}'), check=check)
    assert done.kept and done.after == f"{place}Whole." and done.earlier is not None
    assert "is no text" in done.earlier.reason and "no text" in sent(world.lm.history[1])
    world, (done,) = await rewrite(pending, replies=(reply, reply), check=check)
    assert not done.kept and "is no text" in done.reason and len(world.lm.history) == 2


async def test_what_is_refused_twice_or_cannot_be_asked_for_stays_as_it_was():
    """Decision 11: the log says why. Of several checks the first refusal counts, and is counted
    apart; a second request that fails leaves the first refusal as the reason."""

    def no(variable, text, before, others):
        return f"{variable} may not become {text!r}"

    counted, psi = Counts(), PendingUpdate("critic", "psi", ("g",))
    checks = [(never, Incident.REWRITES_LONG), (no, Incident.REWRITES_UNSAFE), (near_copy, None)]
    both = {"replies": ("bad", "worse"), "check": AllChecks(checks, counted)}
    world, (done,) = await rewrite(psi, **both)
    assert (done.kept, done.after, done.reason) == (False, "worse", no("critic", "worse", "", ()))
    assert done.earlier == types.RefusedReply("bad", no("critic", "bad", "", ()))
    assert (world.tally["rewrites_reasked"], world.tally["rewrites_refused"]) == (1, 1)
    assert counted == {"rewrites_unsafe": 2}
    world, (done,) = await rewrite(PendingUpdate(0, "a", ("g",)), replies=(EndpointDown("gone"),))
    assert done.failure is not None and len(world.lm.history) == 1
    assert (world.tally["rewrites_reasked"], world.tally["rewrites_refused"]) == (0, 1)
    world, (done,) = await rewrite(
        PendingUpdate(0, "a", ("g",)), replies=("bad", EndpointDown("gone")), check=refusing("bad")
    )
    assert (done.kept, done.after, done.failure) == (False, "bad", None)
    assert done.reason == "it quotes an input: SECRET" and done.earlier is None
    assert (world.tally["rewrites_reasked"], world.tally["rewrites_refused"]) == (1, 1)


@pytest.mark.parametrize(("origin", "texts", "calls"), [
    ("gradient", (False, "rule two", None), 1), ("safety", (True, "something else", "rule two"), 2),
])  # fmt: skip
async def test_a_near_copy_is_refused_without_a_second_call(origin, texts, calls: int):
    """The request has shown the other instincts already: asking again says nothing new. But a
    refusal would leave a harmful text in place."""
    others, replies = ("rule zero", "rule two"), ("rule two", "something else")
    pending = PendingUpdate(1, "rule one", ("g",), others, origin)
    world, (done,) = await rewrite(pending, replies=replies, check=near_copy)
    earlier = None if done.earlier is None else done.earlier.text
    assert ((done.kept, done.after, earlier), len(world.lm.history)) == (texts, calls)
    refused = world.tally["rewrites_reasked"], world.tally["rewrites_refused"]
    assert refused == (calls - 1, 2 - calls)


async def test_of_twins_of_one_step_the_later_keeps_its_old_text():
    """Decision 11: neither is a copy of an old entry."""
    same = "count every word before you answer"
    world, done = await rewrite(
        PendingUpdate(0, "rule zero", ("g",), ("rule one", "rule two")),
        PendingUpdate(1, "rule one", ("g",), ("rule zero", "rule two")),
        PendingUpdate("critic", "psi", ("g",)),
        replies=(same, same, same),
        check=near_copy,
    )
    assert [r.kept for r in done] == [True, False, True]
    assert done[1].reason == "a near-copy of another instinct"
    assert (world.tally["rewrites_reasked"], world.tally["rewrites_refused"]) == (0, 1)


TWO = "Count the words before you answer. Then say the number, and cut what is over the limit."


@pytest.mark.parametrize(("cap", "reply", "after"), [
    (8, TWO, "Count the words before you answer."),
    (6, TWO, "Count the words before you answer."),
    (8, "- Count the words.\n- Keep the list short.\n- Name no names", "- Count the words."),
    (9, "Write, e.g. Paris, in full. Then explain it at length.", "Write, e.g. Paris, in full."),
])  # fmt: skip
async def test_what_is_only_too_long_is_cut_at_a_sentence_without_a_call(
    cap: int, reply: str, after: str
):
    world, (done,) = await rewrite(
        PendingUpdate(0, "rule zero", ("g",)),
        replies=(reply, "another reply"),
        check=LengthCheck(Update(instinct_words=cap)),
        update={"instinct_words": cap},
    )
    assert (done.kept, done.after, len(world.lm.history)) == (True, after, 1)
    assert done.reason == f"shortened from {len(reply.split())} words, at the end of a sentence"
    for odd in (TWO, 'Say "Done. And well done" at the end of it all.'):
        world, (done,) = await rewrite(
            PendingUpdate(0, "rule zero", ("g",)),
            replies=(odd, "count first"),
            check=LengthCheck(Update(instinct_words=5)),
            update={"instinct_words": 5},
        )
        assert (done.kept, done.after, len(world.lm.history)) == (True, "count first", 2)


# What a rewrite must pass (decision 11).

TRAIN = [
    types.Example("a", "The quick brown fox jumps over the lazy dog, twice.", "Paris"),
    types.Example("b", "Short input.", "The Treaty of Westphalia"),
    types.Example("c", "Another.", "hypothalamus"),
    types.Example("d", "No reference at all here.", None),
    types.Example("e", "One more.", "by the sea"),
    types.Example("f", "And one.", "low tides"),
]


@pytest.mark.parametrize(
    ("variable", "cap"), [(0, 25), (15, 25), ("encoder", 300), ("critic", 300)]
)
def test_the_cap_is_in_words(variable: str, cap: int):
    """Decision 11: an instinct has 25 words (decision 24); θ, φ and ψ have a cap of their own. What
    is no text is refused by its characters."""
    check = LengthCheck(Update())
    assert check(variable, "word " * cap, "x", []) is None
    over = f"{cap + 1} words, over the cap of {cap}"
    assert check(variable, "word " * (cap + 1), "x", []) == over
    letters = "a." * (cap * 10)
    assert check(variable, letters, "x", []) is None
    over = f"{cap * 20 + 1} characters, over the cap of {cap * 20}"
    assert check(variable, f"{letters}a", "x", []) == over
    assert check(variable, "  \n\t", "x", []) == "the rewrite is empty"


COUNT = "Always count the words of your answer before sending it off"
TEN = "one two three four five six seven eight nine ten"
FEW = " ".join(f"word{i % 10}" for i in range(250))


@pytest.mark.parametrize(("text", "other", "copy"), [
    (COUNT.upper() + "!", COUNT, True), (COUNT.replace("sending", "posting"), COUNT, True),
    ("Count the letters of every line instead", COUNT, False),
    (TEN.replace("four", "4th"), TEN, True),  # nine words of ten in common, and eight
    (TEN.replace("four", "4th").replace("six", "6th"), TEN, False),
    (f"Mind {FEW}", f"Heed {FEW}", True),  # what is frequent in a long text is no noise there
])  # fmt: skip
def test_a_near_copy_of_another_entry_is_refused(text: str, other: str, copy: bool):
    found = near_copy(0, text, "x", ["Be kind", other])
    assert found == ("a near-copy of another instinct" if copy else None)
    assert near_copy(0, text, "x", []) is None


@pytest.mark.parametrize(("text", "before", "reason"), table(__file__, "leaks"))
def test_eight_words_in_a_row_or_a_whole_answer_of_training_are_a_leak(text, before, reason):
    check = NoLeakCheck(TRAIN)
    assert check(0, text, before, []) == check("critic", text, before, []) == (reason or None)
